"""Common base class of mechanisms with distributed noise, and the events that they charge."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from typing import ClassVar, Literal, Self

from pydantic import Field, PrivateAttr
from scipy.special import ndtr

from accounting.events import CHANGE, ZERO_OUT, Event
from accounting.noises import LARGEST_NOISE, Gaussian, Noise, Skellam
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, Release, TruncatedPoisson, Unprotected
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.core.vector import Layout
from privfed.privacy.clipping import clip_rows
from privfed.privacy.codec import MOST_IN_SINGLE, Codec
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    NoisedMechanism,
    PublicState,
    require_bounded,
)
from privfed.privacy.rotation import padded, rotate, signs, unrotate
from privfed.privacy.setting import Setting
from privfed.privacy.shared_noise import IntegerGrid
from privfed.sampling.cohort import Witness, sampled_at_sites

_SPREAD = 4.0
"""Number k of standard deviations of a rotated sum with noise that fit half of the modulus."""
_QUANTILE = 40.0
"""Number of noise standard deviations assumed never to be exceeded."""


class DistributedNoise(NoisedMechanism):
    """Base class of distributed noise; `DiscreteGaussianNoise` states the guarantee."""

    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = standard deviation of the guaranteed noise on the sum / clip; None until calibrated."""
    tolerance: float = Field(0.2, ge=0, lt=1)
    """Fraction of an expected cohort that may drop out of a sum; `secure.minimum` overrides it."""
    _setting: Setting | None = PrivateAttr(None)

    trust: ClassVar[Literal["sum"]] = "sum"
    arithmetic: ClassVar[str] = (
        "integer arithmetic; noise sampled exactly up to a total "
        "variation distance charged to delta"
    )

    def resolved(self, setting: Setting) -> Self:
        mechanism = self.model_copy()
        mechanism._setting = setting
        return mechanism

    @property
    def against(self) -> str:
        """Adversary whose guarantee the budget bounds: "server", "readers", or "sites"."""
        return self._planned_setting().against

    @property
    def honest(self) -> float:
        """Lower bound on the fraction of the noise that honest clients add and keep secret."""
        return self._planned_setting().clients.honest

    @property
    def _exact(self) -> bool:
        """Whether layers are exact: the total noise is the same for all cohort sizes and dropouts.

        Coarse layers leave up to 5 % more noise, depending on the cohort size and the dropouts, and
        so may reveal the cohort size. Amplification against readers therefore needs exact layers:
        as many as there may be dropouts. Coarse layers suffice where excess noise is
        post-processing: against a server, which knows the cohort size, and with sites, whose
        presence does not depend on any client's participation.
        """
        setting = self._planned_setting()
        return (
            self.layered
            and not setting.sites
            and self.against == "readers"
            and setting.clients.added == 1.0
        )

    def grid(self) -> IntegerGrid:
        """Returns the grid that the secure sum's bits allow. Raises `Refused` for too few bits."""
        return self._roomy_grid() or self._rotated_grid()

    def _roomy_grid(self) -> IntegerGrid | None:
        """Returns the grid of unrotated rows if their sum cannot wrap; otherwise None.

        If parties are few (sites), each adds much noise, so steps are coarse and bits remain
        unused. If n (clip / step + 1) plus the noise fits, the sum cannot wrap even if all n
        clients put their whole norm into one coordinate, and rows need no rotation. The step is a
        power of two.
        """
        setting = self._planned_setting()
        share = self._share_std()
        if not setting.sites or not share:
            return None
        n, d, norm = setting.cohort.likely_largest, self._columns(setting.length), self._largest()
        finest = max(share / self._largest_std(), norm / MOST_IN_SINGLE)
        finest = 2.0 ** math.ceil(math.log2(finest))
        for step in (finest, 2 * finest, 4 * finest):
            noise = _QUANTILE * share / step * math.sqrt(setting.sites.sites)
            if n * (norm / step + 1) + noise < 2.0 ** (setting.bits - 1):
                bound = Codec(norm, step, d, setting.bits).bound
                l1 = bound * min(math.sqrt(d), bound)
                return IntegerGrid(step, share / step, bound, l1, d, 0.0, rotated=False)
        return None

    def _rotated_grid(self) -> IntegerGrid:
        """Returns the grid of rotated rows. Raises `Refused` if the bits are too few.

        From 2^b step = 2 k s, where b are the bits, k is `_SPREAD`, and s^2 = clip^2 n^2 / d +
        step^2 n / 4 + share^2 m is the variance of a coordinate of the rotated sum of n clients, to
        which all m = n clients, or m sites, add noise (Kairouz, Liu & Steinke 2021, section 5).
        """
        setting = self._planned_setting()
        n, d = setting.cohort.likely_largest, padded(self._columns(setting.length))
        adding = setting.sites.sites if setting.sites else n
        share, norm = self._share_std(), self._largest()
        variance = (norm * n) ** 2 / d + share**2 * adding
        room = 4.0**setting.bits / (4 * _SPREAD**2) - n / 4
        if room <= 0:
            raise self._too_few_bits()
        step = max(math.sqrt(variance / room), share / self._largest_std(), norm * 2.0**-30)
        std = math.sqrt(variance + n * step**2 / 4)
        codec = Codec(norm, step, d, setting.bits)
        l1 = codec.bound * min(math.sqrt(d), codec.bound)
        wraps = 2 * float(ndtr(-(2.0 ** (setting.bits - 1)) * step / std))
        return IntegerGrid(step, share / step, codec.bound, l1, d, wraps)

    def _largest_std(self) -> float:
        """Returns the largest standard deviation of a share, in steps; grids are not finer."""
        return 4096.0

    def _largest(self) -> float:
        """Returns the norm bound, in round 1, of a row with all `_columns`; z is relative to it."""
        return self.clip

    def _columns(self, length: int) -> int:
        """Returns the number of columns of a clipped row, before padding.

        These are the message's `length` numbers and, if the clip adapts, the report on its norm.
        """
        return length

    def _share_std(self) -> float:
        """Returns the std of one party's noise in units of rows, not steps.

        All counted shares together have std z times `_largest`.
        """
        return self._noise() * self._largest() / math.sqrt(self._shares())

    def _shares(self) -> int:
        """Returns the number of shares that provide the counted noise."""
        setting = self._planned_setting()
        return setting.sites.shares(self.layered) if setting.sites else setting.clients.minimum

    def event(self, witness: Witness, exchanges: int) -> Event:
        """Returns the event of the guarantee that the budget bounds (`privacy.against`)."""
        return self.events(witness, exchanges)[self.against]

    def events(self, witness: Witness, exchanges: int) -> dict[str, Event]:
        """Returns the events by adversary: "server", and "readers" of the releases.

        If sites add the noise, they are those of `_site_events`. The proof is in the rules of
        proof (docs/explanation/rules_of_proof.md), section 5.

        *Server*: it knows the cohort, so there is no amplification. Adjacency is zero-out: one
        client's contribution against zero, while this client still adds its noise. Only the noise
        of honest survivors counts.

        *Readers*: the noise of all survivors that are not Byzantine counts. The actual noise may be
        more, but the excess is independent additional noise, a post-processing, which increases no
        divergence. This requires the excess to be the same on both neighbours, as under zero-out:
        the cohort, the dropouts and the Byzantine clients do not depend on the contribution of one
        client.

        Privacy against readers is amplified if the total noise does not depend on the count (exact
        layers, used when the budget bounds the guarantee against readers) and no client is
        Byzantine. The release is then that of central noise, for any sampler with an event for
        Gaussian noise, and for Skellam noise under Poisson sampling. Otherwise, if h of m survivors
        are Byzantine, a fraction h / m of the noise may be missing, so the noise itself would
        reveal m, which differs by one between add/remove neighbours. In addition, every client that
        shares keys learns the cohort, and a Byzantine client could encode the cohort's members into
        its row.
        """
        slack = self._total_variation() * exchanges
        if self._planned_setting().sites:
            return self._site_events(witness, exchanges, slack)
        server = self._release(self._planned_setting().clients.honest, exchanges)
        readers = self._release(self._planned_setting().clients.added, exchanges)
        if isinstance(witness.release, TruncatedPoisson) and isinstance(server, Skellam):
            raise Refused(
                f"cohort.sampler is {witness.sampler!r}, but has no proof with Skellam noise; use "
                'privacy.mechanism = "discrete_gaussian", or cohort.sampler = "poisson" with '
                "secure.capacity, whose aborts are charged"
            )
        by_party = {
            "server": Event(_once_in(witness, server), witness.sampler, ZERO_OUT, slack=slack),
            "readers": Event(_once_in(witness, readers), witness.sampler, ZERO_OUT, slack=slack),
        }
        amplified = _as_central(witness, readers) if self._exact else None
        if amplified:
            by_party["readers"] = Event(amplified, witness.sampler, witness.relation, slack=slack)
        return by_party

    def _site_events(self, witness: Witness, exchanges: int, slack: float) -> dict[str, Event]:
        """Returns the events against "sites" (the server with colluding sites), and "others".

        "Others" are all sites except the client's own.

        The proof (rules of proof, section 9.1) is for a client of a site in H, the survivors
        without colluders. The joint view of the server, the network and any k sites is a function
        of public values, these sites' inputs, and Y = sum over H of (its sampled clients' encoded
        rows + its share of noise), H being independent of honest sites' sampling. Fix all other
        clients' participation, rows and roundings: with and without the client, Y is a mixture of a
        constant plus noise and the same plus the client's row, which is included in secret with
        probability q. Privacy is therefore amplified by subsampling against every observer, and
        adding or removing the client is the same pair as its contribution against zero.

        *Sites*: the variance of the noise of H is at least (z C)^2. *Others*: only the noise of the
        client's own site counts, as if all other sites colluded: one share, or the base of its
        layers, whose seeds the other sites hold.
        """
        sites = self._planned_setting().sites
        assert sites is not None
        parts = {"sites": 1.0, "others": 1 / sites.shares(self.layered)}
        return {
            party: sampled_at_sites(witness, self._release(part, exchanges), slack)
            for party, part in parts.items()
        }

    @abstractmethod
    def _release(self, counted: float, exchanges: int) -> Noise | Unprotected:
        """Returns the release of `exchanges` sums if a part `counted` of the variance counts."""

    @abstractmethod
    def share(self) -> Share:
        """Returns the noise that one party adds: a client, or a site."""

    def _total_variation(self) -> float:
        """Bounds the total variation distance between one sum's noise vector and the accounted."""
        setting = self._planned_setting()
        parties = setting.sites.sites if setting.sites else setting.cohort.largest
        most = parties if self.layered else 1  # draws per party: base and layers
        draws = self.grid().length * parties * most
        return min(1.0, self.share().total_variation * draws)

    def noise_on_update(self, size: int) -> float:
        grid = self.grid()  # raises Refused
        sites = self._planned_setting().sites
        if sites:  # the noise without dropouts
            added = math.sqrt(sites.added_by(sites.sites, self.layered))
            return self._noise() * self._largest() / self.clip * added
        return grid.share * grid.step * math.sqrt(size) / self.clip

    @property
    def rotates(self) -> bool:
        return self.grid().rotated

    def init(self) -> PublicState:
        return {"rotation": torch.zeros((), dtype=torch.int64)}

    def encoding(self, state: PublicState) -> Encoding:
        return Encoding(self.clip, step=self.grid().step, noise=self.share())

    def width(self, layout: Layout) -> int:
        columns = self._columns(layout.length)
        return padded(columns) if self.grid().rotated else columns

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Returns rows clipped and rotated; clients encode them and add noise in the secure sum."""
        clipped = self._clipped(rows, state)
        if not self.grid().rotated:
            return clipped
        return rotate(clipped, _signs(state, clipped.rows.shape[1]))

    def _clipped(self, rows: Tensor, state: PublicState) -> BoundedRows:
        return clip_rows(rows, self.clip)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        require_bounded(total, self.clip)
        return (self._sums(total, state) / divisor).float(), rotated_on(state)

    def _sums(self, total: BoundedSum, state: PublicState) -> Tensor:
        """Returns the sums of the rows' columns, rotated back."""
        if not self.grid().rotated:
            return total.total
        columns = self._columns(self._planned_setting().length)
        return unrotate(total.total, _signs(state, columns), columns)

    def _planned_setting(self) -> Setting:
        if self._setting is None:
            raise ValueError("distributed noise depends on the secure sum; plan the run first")
        return self._setting

    def _too_few_bits(self) -> Refused:
        setting = self._planned_setting()
        return Refused(
            f"secure.bits is {setting.bits}, but the noise of {setting.cohort.likely_largest} "
            "clients in integer steps needs more; raise secure.bits"
        )


def _as_central(witness: Witness, noise: Noise | Unprotected) -> Release | None:
    """Returns the release of a cohort sampled as `witness` states; None without a proof.

    The total noise, `noise`, does not depend on the cohort.
    """
    match witness.release, noise:
        case (None, _) | (_, Unprotected()):
            return None
        case PoissonSampled(rate=rate), Skellam():
            return PoissonSampled(rate, noise)
        case _, Gaussian(noise_multiplier=z):
            assert witness.sampled is not None
            return witness.sampled(Gaussian(z / CHANGE[witness.relation]))
    return None


def _once_in(witness: Witness, noise: Noise | Unprotected) -> Noise | Unprotected | Separated:
    b = witness.separation
    return Separated(b, noise) if b > 1 and not isinstance(noise, Unprotected) else noise


def rotated_on(state: PublicState) -> PublicState:
    """Returns the state after a release; its number `rotation` selects the next rotation."""
    return {**state, "rotation": state["rotation"] + 1}


def _signs(state: PublicState, length: int) -> Tensor:
    """Returns the public signs `[padded(length)]` of the next release's rotation.

    They are computed from a hash of the number of earlier releases.
    """
    seed = hashlib.sha256(b"privfed rotation %d" % int(state["rotation"])).digest()
    return signs(Keys(seed, secret=True), length)
