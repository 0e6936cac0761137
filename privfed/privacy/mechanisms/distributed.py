"""Distributed noise: integer noise that clients add before a secure sum."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from accounting.events import Event
from accounting.noises import Gaussian, Skellam, same_cohort
from accounting.releases import Unprotected
from privfed.core.deferred import Tensor
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.privacy.clipping import AdaptiveClip, clip_rows_and_report
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    Mechanism,
    PublicState,
    require_bounded,
)
from privfed.privacy.mechanisms.distributed_noise import DistributedNoise, rotated_on
from privfed.privacy.noise.shares import (
    LEAST_GAUSSIAN,
    SHARES,
    SMOOTHED,
    WASTE,
    DiscreteGaussianShare,
    Layers,
)
from privfed.sampling.cohort import Witness

_DOWNWARD = 1 - 1e-12
"""Factor on a variance that compensates the rounding errors of its terms."""


class InLayers(DistributedNoise):
    """Base class of noise whose sums have a distribution that depends on their variance alone."""

    sizing: Literal["minimum", "layers"] = "minimum"
    """"minimum": the least number of survivors adds enough noise. "layers": excess noise is removed
    after dropouts are known, so that the total is nearly the same for every number of survivors."""

    kind: ClassVar[str]
    """Name of the noise in `privfed.privacy.noise.shares.SHARES`."""

    @property
    def layered(self) -> bool:
        return self.sizing == "layers"

    def _shares(self) -> int:
        setting = self._planned_setting()
        if self.layered and not setting.sites:  # the total is z clip for any count
            return setting.cohort.expected
        return super()._shares()

    def _largest_std(self) -> float:
        """Returns the largest standard deviation of a share that can be sampled, in steps.

        It is smaller with layers: if few parties survive, each keeps more layers, and the sum of
        these must be sampled, too.
        """
        most = super()._largest_std()
        setting = self._planned_setting()
        if not self.layered:
            return most
        fewest = setting.sites.counted if setting.sites else setting.clients.counted
        return most * math.sqrt(fewest / self._shares())

    def _variance(self) -> float:
        """Returns the variance (z C)^2 of the counted noise, in squared steps."""
        return (self._noise() * self._largest() / self.grid().step) ** 2

    def share(self) -> Share:
        variance, sites = self._variance(), self._planned_setting().sites
        if not self.layered:
            return SHARES[self.kind](variance / self._shares())
        if sites:
            return sites.layers(variance, self.kind)
        waste = 0.0 if self._exact else WASTE
        return Layers(variance, self.tolerance, 0, waste, self.kind)

    def noise_on_update(self, size: int) -> float:
        exact = self.layered and not self._planned_setting().sites and self.grid()
        norm = self._largest() / self.clip
        return self._noise() * norm if exact else super().noise_on_update(size)


class SkellamNoise(InLayers):
    """Distributed Skellam noise, for coarse grids: few bits, or shares of fewer than three steps.

    Releases (sum of encoded, clipped updates + Skellam of variance (z C)^2 or more) / (q N).

    The same as `discrete_gaussian`, except for the noise and its accounting: any variance has a
    proof, but only by Rényi divergences, which cost 7 to 12 % more noise. Their bound also depends
    on the L1 norm of encoded rows, at most min(sqrt(d), L2) times the L2 norm, d the padded length.
    Privacy against readers is amplified under Poisson sampling only.

    Source: Agarwal, Kairouz & Liu 2021.
    """

    kind: ClassVar[str] = "skellam"

    def _release(self, counted: float, exchanges: int) -> Skellam:
        grid = self.grid()
        return Skellam(self._variance() * counted, grid.l2, grid.l1, exchanges)


class DiscreteGaussianNoise(AdaptiveClip, InLayers):
    """Distributed Gaussian noise: each client adds a share, so the server sees only the noised sum.

    Releases (sum of encoded, clipped updates + noise of variance (z C)^2 or more) / (q N).

    *Releases*: this vector for every exchange of the round. Rows are clipped, rotated by public
    signs, divided by a public step and rounded to integers; the sum is modulo 2^bits, and
    unwrapping, rotating back and dividing are post-processing.

    *Noise*: each share, and each layer, is a discrete Gaussian of standard deviation at least 3
    grid steps. A sum of such shares is post-processing of the central Gaussian mechanism of the
    same variance less 4.5, in squared steps, up to a total variation distance that is charged to
    delta (`DiscreteGaussianShare` has the proof). The event is therefore that of central Gaussian
    noise. The variance of 4.5 squared steps is charged as a fraction of the smallest share's
    variance, which covers any number of honest shares.

    *Unit and adjacency*: one client. Against the server, and against readers of the aggregates, its
    contribution against zero (zero-out, not amplified). Against readers, if the noise is in exact
    layers and no client is Byzantine, the relation is the sampler's, with amplification; otherwise
    it is zero-out.

    *Sensitivity*: that of the encoded integers, `Codec.bound` in L2. With `adaptive_clip` a row
    also reports whether its unclipped norm was within C, as a further number of the clipped and
    encoded vector. C then follows the `clip_quantile` of these norms, as with central noise
    (`privfed.privacy.clipping`). The step follows C, so that bound, shares and event in steps are
    those of the first round.

    *Sizing*: with "minimum", `secure.minimum` clients (or 1 - `tolerance` of the expected cohort)
    provide the noise; more clients only add to it, and with fewer the sum aborts. With "layers",
    excess noise is removed after dropouts are known, so the total variance is (z C)^2, or up to 5 %
    more, depending on the number of dropouts; it is exact if the budget bounds the guarantee
    against readers and no client is Byzantine.

    *Trust*: honest survivors, and the secure sum. The noise of Byzantine clients
    (`aggregation.byzantine`) is never counted, and that of colluding clients (`secure.colluders`)
    is not counted against the server. Readers do not take part: a client knows its own share and
    the cohort, and is therefore counted as a colluder.

    Source: Kairouz, Liu & Steinke 2021, algorithm 1; layers: Jiang et al. 2024 (add-then-remove).
    """

    noise_sampler: Literal["table", "exact"] = "table"
    """"table" samples by a table; "exact" uses random bits and integers only, about twenty times
    slower, for sizing "minimum"."""

    kind: ClassVar[str] = "discrete_gaussian"

    @model_validator(mode="after")
    def _drawn_from_seeds(self) -> Self:
        if self.noise_sampler == "exact" and self.layered:
            raise ValueError(
                'noise_sampler is "exact", but layers are drawn from seeds by a table; use "table" '
                'or sizing = "minimum"'
            )
        return self

    def with_clip(self, clip: float) -> Mechanism:
        keys = {"clip": clip, "noise_multiplier": None, "adaptive_clip": False}
        return self.model_copy(update=keys)

    def events(self, witness: Witness, exchanges: int) -> dict[str, Event]:
        self._refuse_exchanges(exchanges)
        return super().events(witness, exchanges)

    def _largest(self) -> float:
        count = self.count_noise if self.adaptive_clip else None
        if count is None or self._noise() >= 2 * count:
            return self.clip  # the plan refuses too little noise on the count: `_split`
        return self._split().bound(self.clip)

    def _columns(self, length: int) -> int:
        return length + self.adaptive_clip

    def encoding(self, state: PublicState) -> Encoding:
        norm, first = self._norm(state), self._largest()
        return Encoding(norm, step=self.grid().step * (norm / first), noise=self.share())

    def _clipped(self, rows: Tensor, state: PublicState) -> BoundedRows:
        if not self.adaptive_clip:
            return super()._clipped(rows, state)
        clip = float(state["clip"])
        return clip_rows_and_report(rows, clip, self._split().weight(clip))

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        if not self.adaptive_clip:
            return super().release(total, divisor, keys, state)
        require_bounded(total, self._norm(state))
        sums = self._sums(total, state)
        adapted = self._adapted(float(sums[-1]), divisor, state)
        return (sums[:-1] / divisor).float(), rotated_on(adapted)

    def noise_on_update(self, size: int) -> float:
        if self.adaptive_clip:
            self._split()  # raises Refused
        if self._noise() and min(self._least_shares()) < LEAST_GAUSSIAN**2:
            raise self._too_small_shares()
        return super().noise_on_update(size)

    def _largest_std(self) -> float:
        if self.noise_sampler == "exact":
            return 399.0
        # The shares of sites have one table for all rounds, so a larger table is worthwhile.
        return super()._largest_std() * (4 if self._planned_setting().sites else 1)

    def _least_shares(self) -> tuple[float, float]:
        """Returns lower bounds on the variances of one party's share (or base), and of its layers.

        They are in squared steps, and hold for every number of parties that a sum may have. The
        second is infinite without layers.
        """
        share, setting = self.share(), self._planned_setting()
        if not isinstance(share, Layers):
            assert isinstance(share, DiscreteGaussianShare)
            return float(share.variance), math.inf
        most = setting.sites.sites if setting.sites else setting.cohort.largest
        return float(share.base(most).variance), share.least_layer(most)

    def _release(self, counted: float, exchanges: int) -> Gaussian | Unprotected:
        if not self._noise():
            return Gaussian(0.0)
        least, layer = self._least_shares()
        if min(least, layer) < LEAST_GAUSSIAN**2:
            return Unprotected(
                "discrete Gaussian shares with a standard deviation below 3 grid steps have no "
                "proof"
            )
        variance = self._variance() * counted * (1 - SMOOTHED / least) * _DOWNWARD
        return same_cohort(math.sqrt(variance) / self.grid().l2, exchanges)

    def share(self) -> Share:
        share = super().share()
        if self.noise_sampler == "exact" and isinstance(share, DiscreteGaussianShare):
            return DiscreteGaussianShare(math.ceil(share.variance), True)
        return share

    def _too_small_shares(self) -> Refused:
        share, layer = map(math.sqrt, self._least_shares())
        what = "share" if share < LEAST_GAUSSIAN else "layer"
        return Refused(
            f"secure.bits is {self._planned_setting().bits}, but then a party's {what} of the "
            f"noise may be {min(share, layer):.2g} steps, below the {LEAST_GAUSSIAN:g} steps that "
            "the proof of discrete Gaussian noise requires; raise secure.bits, lower "
            "secure.capacity or "
            'privacy.tolerance, or use privacy.mechanism = "skellam"'
        )
