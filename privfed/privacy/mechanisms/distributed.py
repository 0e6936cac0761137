"""Distributed noise: whole numbers that clients add before the sum, which nobody sees without."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr
from scipy.special import ndtr

from accounting.events import ZERO_OUT, Event
from accounting.releases import (
    LARGEST_NOISE,
    DiscreteGaussians,
    IntegerNoise,
    PoissonSampled,
    Separated,
    Skellam,
    TruncatedPoisson,
    Unprotected,
)
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.privacy.clipping import clip_rows
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    MechanismPart,
    Setting,
    State,
    require_bounded,
)
from privfed.privacy.noise.shares import DiscreteGaussianShare, Layers, Share, SkellamShare
from privfed.privacy.rotation import padded, rotate, signs, unrotate
from privfed.privacy.shared_noise import Grid
from privfed.sampling.cohort import Witness
from privfed.streams import Keys
from privfed.vector import Layout

if TYPE_CHECKING:
    from torch import Tensor

_SPREAD = 4.0
"""k: a half of the modulus holds so many deviations of a rotated sum and its noise."""


class Distributed(MechanismPart):
    """What both kinds of distributed noise have in common; see `SkellamNoise`."""

    clip: float = Field(0.4, ge=1e-6, le=1e20)
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = deviation of the guaranteed noise on the sum / clip; None until calibrated."""
    tolerance: float = Field(0.2, ge=0, lt=1)
    """The part of an expected cohort that may be missing from a sum; secure.minimum replaces it."""
    _setting: Setting | None = PrivateAttr(None)

    trust: ClassVar[Literal["sum"]] = "sum"
    arithmetic: ClassVar[str] = "whole numbers, and noise exact but for what delta is charged"
    private: ClassVar[bool] = True

    def resolved(self, setting: Setting) -> Self:
        found = self.model_copy()
        found._setting = setting
        return found

    def at(self, noise_multiplier: float | None) -> Self:
        return self.model_copy(update={"noise_multiplier": noise_multiplier})

    @property
    def against(self) -> str:
        return self._known().against

    @property
    def honest(self) -> float:
        """Of the noise, at least this part is added by clients who keep it to themselves."""
        return self._known().honest

    def grid(self) -> Grid:
        """The grid that the secure sum's bits allow for this noise. Raises `Refused`.

        From 2^b step = 2 k deviation, with deviation^2 = clip^2 n^2 / d + (step^2 / 4 + share^2) n
        of a coordinate of the rotated sum of n clients (Kairouz, Liu & Steinke 2021, section 5).
        """
        known = self._known()
        n, d = _likely_most(known), padded(known.length)
        share = self._share_deviation()
        variance = (self.clip * n) ** 2 / d + share**2 * n
        room = 4.0**known.bits / (4 * _SPREAD**2) - n / 4
        if room <= 0:
            raise self._too_few_bits()
        step = max(math.sqrt(variance / room), share / self._most_deviation(), self.clip * 2.0**-30)
        deviation = math.sqrt(variance + n * step**2 / 4)
        codec = Codec(self.clip, step, d, known.bits)
        l1 = codec.bound * min(math.sqrt(d), codec.bound)
        wraps = 2 * float(ndtr(-(2.0 ** (known.bits - 1)) * step / deviation))
        return Grid(step, share / step, codec.bound, l1, d, wraps)

    def _most_deviation(self) -> float:
        """Of a share, in steps: a finer grid gains nothing."""
        return 4096.0

    def _share_deviation(self) -> float:
        """Of one client's noise, so that `minimum` clients make up z clip."""
        return self._noise() * self.clip / math.sqrt(self._known().minimum)

    def event(self, witness: Witness, exchanges: int) -> Event:
        """That of the guarantee which the budget gates (`privacy.against`)."""
        return self.events(witness, exchanges)[self.against]

    def events(self, witness: Witness, exchanges: int) -> dict[str, Event]:
        """Against the server, and against who reads the released aggregates (PRIVACY, section 5).

        *Server*: it knows the cohort, so nothing is amplified; one client's contribution against
        zero, whose noise it still adds; the noise of honest survivors alone.

        *Readers*: the noise of all survivors who are not hostile. It may be more than is counted,
        but a sum of Skellams is Skellam, and one of discrete Gaussians has more terms: what is more
        is independent noise on top, a post-processing, which moves no divergence up. For that it
        has to be as much on both neighbours, as it is under zero-out: who was drawn, stayed or is
        hostile does not follow from what one client contributes.

        Amplified are readers where the total noise is the same whatever the count (layers), and
        nobody is hostile: of m survivors h hostile ones leave out h / m, so that the noise itself
        would tell m, on which a client more or less is one more or less; and whoever shares keys
        is told the cohort, and could write into its row who is in it.
        """
        drawn = witness.release
        if isinstance(drawn, TruncatedPoisson):
            raise Refused(
                f"cohort.sampler = {witness.sampler!r} has no proof with distributed noise; use "
                '"poisson" with secure.capacity, whose aborts are charged'
            )
        slack = self._total_variation() * exchanges
        server = self._release(self._known().honest, exchanges)
        readers = self._release(self._known().added, exchanges)
        found = {
            "server": Event(_once_in(witness, server), witness.sampler, ZERO_OUT, slack=slack),
            "readers": Event(_once_in(witness, readers), witness.sampler, ZERO_OUT, slack=slack),
        }
        exact = self.layered and self._known().added == 1.0
        if exact and isinstance(drawn, PoissonSampled) and isinstance(readers, Skellam):
            amplified = PoissonSampled(drawn.rate, readers)
            found["readers"] = Event(amplified, witness.sampler, witness.relation, slack=slack)
        return found

    @abstractmethod
    def _release(self, counted: float, exchanges: int) -> IntegerNoise | Unprotected:
        """What is released, with the part `counted` of the noise."""

    @abstractmethod
    def share(self) -> Share | Layers: ...

    def _total_variation(self) -> float:
        """Of all noise of one exchange's sum."""
        draws = padded(self._known().length) * self._known().capacity
        most = self._known().capacity if self.layered else 1  # layers, and the base
        return min(1.0, self.share().total_variation * draws * most)

    def noise_on_update(self, size: int) -> float:
        grid = self.grid()  # refuses what cannot be
        return grid.share * grid.step * math.sqrt(size) / self.clip

    def init(self) -> State:
        return {"rotation": torch.zeros((), dtype=torch.int64)}

    def encoding(self, state: State) -> Encoding:
        return Encoding(self.clip, step=self.grid().step, noise=self.share())

    def width(self, layout: Layout) -> int:
        return padded(layout.length)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: State) -> BoundedRows:
        """Clipped and rotated; the secure sum's client encodes this and adds its noise."""
        return rotate(clip_rows(rows, self.clip), _signs(state, rows.shape[1]))

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: State
    ) -> tuple[Tensor, State]:
        require_bounded(total, self.clip)
        length = self._known().length
        summed = unrotate(total.total, _signs(state, length), length)
        return (summed / divisor).float(), {"rotation": state["rotation"] + 1}

    def _known(self) -> Setting:
        if self._setting is None:
            raise ValueError("distributed noise depends on the secure sum; plan the run first")
        return self._setting

    def _noise(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("this mechanism has no noise multiplier yet; calibrate it first")
        return self.noise_multiplier

    def _too_few_bits(self) -> Refused:
        return Refused(
            f"secure.bits is {self._known().bits}, too few for the noise of "
            f"{_likely_most(self._known())} clients in whole steps; raise secure.bits"
        )


class SkellamNoise(Distributed):
    """Distributed Skellam noise: each client adds a share, so that the server never sees less.

    Releases (sum of encoded, clipped updates + Skellam of variance (z C)^2 or more) / (q N).

    *What is released*: that vector for every exchange of the round. Rows are clipped, rotated by
    public signs, divided by a public step and rounded to whole numbers; the sum is modulo 2^bits,
    and unwrapping, rotating back and dividing are post-processing.

    *Unit and relation*: one client; against the server its contribution against zero (zero-out,
    not amplified), as against readers of the aggregates, unless the noise is `layers`, the cohort
    Poisson and no client hostile: then adding or removing a client, amplified.

    *Sensitivity*: of the encoded whole numbers, `Codec.bound` in L2 and min(sqrt(d), L2) times that
    in L1, d the padded length.

    *Sizing*: with "minimum", `secure.minimum` clients (or 1 - `tolerance` of the expected cohort)
    make up the noise, more only add to it, and with fewer the sum aborts. With "layers" noise is
    taken off again for whoever stayed, so that the total is (z C)^2 exactly, whoever dropped.

    *Trust*: honest survivors, and the secure sum. Hostile clients' noise (`aggregation.byzantine`)
    is never counted, and colluding clients' (`secure.colluders`) not against the server. Readers
    take no part: a client, who knows its own share and the cohort, is one of the colluders.

    Source: Agarwal, Kairouz & Liu 2021; layers: Jiang et al. 2024 (add-then-remove).
    """

    sizing: Literal["minimum", "layers"] = "minimum"

    @property
    def layered(self) -> bool:
        return self.sizing == "layers"

    def _share_deviation(self) -> float:
        if self.layered:  # whatever the count, the total is z clip: that of a full expected cohort
            return self._noise() * self.clip / math.sqrt(self._known().size)
        return super()._share_deviation()

    def _most_deviation(self) -> float:
        """With few survivors each keeps more: their shares have to be drawn, too."""
        most = super()._most_deviation()
        known = self._known()
        return most * math.sqrt(known.fewest / known.size) if self.layered else most

    def _release(self, counted: float, exchanges: int) -> Skellam:
        grid = self.grid()
        variance = (self._noise() * self.clip / grid.step) ** 2
        return Skellam(variance * counted, grid.l2, grid.l1, exchanges)

    def share(self) -> Share | Layers:
        grid = self.grid()
        variance = (self._noise() * self.clip / grid.step) ** 2
        if self.layered:
            return Layers(variance, self.tolerance)
        return SkellamShare(variance / self._known().minimum)

    def noise_on_update(self, size: int) -> float:
        return self._noise() if self.layered and self.grid() else super().noise_on_update(size)


class DiscreteGaussianNoise(Distributed):
    """Distributed discrete Gaussian noise: sums of discrete Gaussians, nearly one themselves.

    As `skellam` with sizing "minimum"; its sum is not closed, so that there are no layers and
    nothing is amplified, and each share has a deviation of at least 2 steps.

    Source: Kairouz, Liu & Steinke 2021, algorithm 1 and theorem 1.
    """

    noise_sampler: Literal["table", "exact"] = "table"
    """"exact" draws from random bits and whole numbers alone, some twenty times slower."""

    def noise_on_update(self, size: int) -> float:
        if self._noise() and self.grid().share < 2:
            raise self._too_few_bits()
        return super().noise_on_update(size)

    def _most_deviation(self) -> float:
        return 399.0 if self.noise_sampler == "exact" else super()._most_deviation()

    def _release(self, counted: float, exchanges: int) -> DiscreteGaussians | Unprotected:
        grid, clients = self.grid(), math.floor(self._known().minimum * counted)
        if self._noise() and (grid.share < 2 or clients < 1):
            return Unprotected("shares of less than 2 steps, or of nobody, have no proof")
        deviation = self.share().deviation
        return DiscreteGaussians(
            deviation, max(clients, 1), grid.l2, grid.l1, grid.length, exchanges
        )

    def share(self) -> DiscreteGaussianShare:
        exact = self.noise_sampler == "exact"
        deviation = self.grid().share
        if exact:  # a whole variance, never less
            deviation = math.sqrt(math.ceil(deviation**2))
        return DiscreteGaussianShare(deviation, exact)


def _once_in(
    witness: Witness, noise: IntegerNoise | Unprotected
) -> IntegerNoise | Unprotected | Separated:
    b = witness.separation
    return Separated(b, noise) if b > 1 and not isinstance(noise, Unprotected) else noise


def _likely_most(setting: Setting) -> int:
    """Clients in a cohort that is larger than nearly all."""
    return min(setting.capacity, math.ceil(setting.size + 6 * math.sqrt(setting.size)))


def _signs(state: State, length: int) -> Tensor:
    """The round's public signs: a hash of how many releases there were."""
    seed = hashlib.sha256(b"privfed rotation %d" % int(state["rotation"])).digest()
    return signs(Keys(seed, secret=True), length)
