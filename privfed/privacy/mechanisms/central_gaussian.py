"""User-level central Gaussian noise over a sampled cohort (DP-FedAvg)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from accounting.events import CHANGE, Event
from accounting.noises import LARGEST_NOISE, same_cohort
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.core.vector import Layout
from privfed.privacy.clipping import AdaptiveClip, clip_rows, clip_rows_and_report, on_grid
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    Mechanism,
    NoisedMechanism,
    PublicState,
    SumWithNoise,
    require_bounded,
)
from privfed.privacy.noise.correlated import CorrelatedKeys
from privfed.privacy.noise.gaussian_on_grid import (
    FINENESS,
    gaussian_on_grid,
    grid_of,
    refuse_inexact,
)
from privfed.sampling.cohort import Witness

_BATCH_SIZE = 1 << 17
"""Number of coordinates per thread whose noise is drawn and added at once."""


class CentralGaussian(AdaptiveClip):
    """User-level central noise.

    Releases (sum of clipped updates + N(0, (z C)^2 I)) / (q N), once per exchange.

    *Releases*: this vector `[d]` for every exchange of the round, and nothing else.

    *Unit and adjacency*: one client with all its examples; the adjacency relation is the sampler's:
    add/remove (poisson, truncated_poisson), replace-one (fixed_size), or zero-out (full, cyclic).

    *Sensitivity*: C in L2, by `clip_rows`, and 2 C under replace-one; rows have weight one, and the
    divisor q N is a constant of the configuration: neither depends on the cohort. Under a secure
    sum C is the proven norm of an encoded row, slightly larger than the clip (`BoundedSum.bound`).
    With `adaptive_clip` a row also reports whether its unclipped norm was within C, and C follows
    the `clip_quantile` of these norms. The clipped-count query shares the same Gaussian mechanism
    of multiplier z (`privfed.privacy.clipping`).

    *Sampling*: any sampler whose witness states the resulting release (`Witness.sampled`); under
    Poisson sampling the event is PoissonSampled(q, Gaussian(z)). The inner release is Gaussian(z /
    sqrt(k)) for k exchanges over the same cohort, and half of that under replace-one.

    *Trust*: the server sees the clipped updates (or, under secure sums, their exact sum) and adds
    the noise.

    *Arithmetic*: clipped rows are rounded toward zero to a public grid, so sums are exact, and the
    noise is the continuous Gaussian rounded to the same grid
    (`privfed.privacy.noise.gaussian_on_grid`).

    Source: McMahan, Ramage, Talwar & Zhang 2018, Algorithm 1, with the fixed-denominator estimator
    of section 2; the subsampled Gaussian of Mironov, Talwar & Zhang 2019, section 3.
    """

    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = noise standard deviation / clip; None until calibrated from epsilon."""

    trust: ClassVar[Literal["server"]] = "server"
    arithmetic: ClassVar[str] = "exact sums, Gaussian noise rounded to their grid"

    def event(self, witness: Witness, exchanges: int) -> Event:
        multiplier = self._noise()
        if witness.sampled is None:
            raise Refused(
                f"central Gaussian noise has no proof here for the sampler {witness.sampler!r}; "
                'use cohort.sampler = "poisson"'
            )
        self._refuse_exchanges(exchanges)
        noise = same_cohort(multiplier / CHANGE[witness.relation], exchanges)
        return Event(witness.sampled(noise), witness.sampler, witness.relation)

    def with_clip(self, clip: float) -> Mechanism:
        return CentralGaussian(clip=clip)

    def noise_on_update(self, size: int) -> float:
        """Returns the noise std on a sum of updates, in clipping norms.

        Raises `Refused` if sums over cohorts of expected `size` may be inexact.
        """
        refuse_inexact(self._noise(), size)
        return self._split().update if self.adaptive_clip else self._noise()

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        grid = grid_of(self._noise() * self._norm(state))
        if not self.adaptive_clip:
            return clip_rows(rows, self.clip, grid)
        clip = float(state["clip"])
        return on_grid(clip_rows_and_report(rows, clip, self._split().weight(clip)), grid)

    def width(self, layout: Layout) -> int:
        return layout.length + self.adaptive_clip

    def noised(self, total: BoundedSum, keys: Keys, state: PublicState, part: slice) -> BoundedSum:
        """Adds noise to the coordinates of the sum in `part`; disjoint parts cover all coordinates.

        If several processes compute the sum, exactly one of them adds the noise N(0, (z C)^2) to
        each coordinate, independently of all other coordinates: the release is distributed as with
        one process.
        """
        require_bounded(total, self._norm(state))
        sums = total.total.clone()
        for block, noised in self._noised_blocks(total, keys, part):
            sums[block] = noised
        return SumWithNoise(sums, total.bound, total.survivors)

    def _noised_blocks(
        self, total: BoundedSum, keys: Keys, part: slice
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yields the sum in `part` block by block: a block's slice, and its noised numbers.

        On a GPU there is one block, whose noise is drawn while the GPU still trains: a copy to it
        waits for all of its earlier work.
        """
        std, batch = self._noise() * total.bound, _BATCH_SIZE * torch.get_num_threads()
        batch = batch if total.total.device.type == "cpu" else max(len(total.total), 1)
        for start in range(part.start, part.stop, batch):
            block = slice(start, min(start + batch, part.stop))
            noise = gaussian_on_grid(keys.beginning(start), std, block.stop - start)
            sums = total.total[block]
            yield block, torch.from_numpy(noise).to(sums).add_(sums)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        require_bounded(total, self._norm(state))
        length = len(total.total)
        if isinstance(total, SumWithNoise):
            noised = iter([(slice(0, length), total.total)])
        else:
            noised = self._noised_blocks(total, keys, slice(0, length))
        released = total.total.new_empty(length, dtype=torch.float32)
        for block, sums in noised:
            last = sums[-1:]
            torch.div(sums, divisor, out=released[block])
        if not self.adaptive_clip:
            return released, state
        return released[:-1], self._adapted(float(last[0]), divisor, state)

    def encoding(self, state: PublicState) -> Encoding:
        finest = FINENESS / self._noise() if self._noise() else math.inf
        return Encoding(self._norm(state), finest)


class CorrelatedMechanism(NoisedMechanism):
    """Base class of mechanisms that release x_t + Y_t in round t, over a constant divisor.

    Y is noise that is correlated over rounds, by C Y = Z.

    x_t is the sum of clipped rows, Z is independent over rounds, and C is public. Y must be drawn
    from the keys that the server stores: with independent keys the mechanism would be another one.
    """

    trust: ClassVar[Literal["server"]] = "server"
    remembers: ClassVar[bool] = True

    @abstractmethod
    def std(self) -> float:
        """Returns the std of Z, and thus of the first round's noise, in clipping norms."""

    def noise_on_update(self, size: int = 1) -> float:
        return self.std()

    def with_clip(self, clip: float) -> Mechanism:
        return CentralGaussian(clip=clip)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        require_bounded(total, self.clip)
        if not isinstance(keys, CorrelatedKeys):
            raise TypeError(
                "this noise is correlated over rounds, so independent keys give no proof"
            )
        noise = torch.from_numpy(keys.noise(self.std() * total.bound))
        return ((total.total + noise.to(total.total)) / divisor).float(), state


def refuse_exchanges(exchanges: int) -> None:
    """Raises `Refused` for several exchanges per round; correlated noise has no proof for them."""
    if exchanges > 1:
        raise Refused(
            f"noise that is correlated over rounds has no proof for rounds of {exchanges} "
            "exchanges; use an objective and a rule with one exchange (aggregation.passes), or "
            'privacy.mechanism = "gaussian"'
        )
