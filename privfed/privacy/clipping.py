"""Clipping: the only place where a client's influence is bounded.

*Adaptive clipping.* The clip (clipping norm C) follows a quantile of the norms of clients' updates,
estimated with a small part of the privacy budget.

Andrew, Thakkar, McMahan & Ramaswamy 2021, "Differentially private learning with adaptive clipping",
Algorithm 1. With its clipped update, each client reports whether its *unclipped* norm is within the
clip C, as b - 1/2 with b in {0, 1}. From the noised sum of these numbers, with the divisor m,

    b~ = 1/2 + (sum (b_k - 1/2) + N(0, sigma_b^2)) / m,     C <- C exp(-rate (b~ - quantile)).

The two sums are one release and one event. Noise of standard deviation z_delta C on the update and
sigma_b on the count is one Gaussian mechanism of multiplier z, z^-2 = z_delta^-2 + (2 sigma_b)^-2
(theorem 1 there): update and count are coordinates of one vector, in which the count is weighted so
that both have the same noise standard deviation. The joint sensitivity is S:

    S = sqrt(C^2 + weight^2 / 4),   weight = z_delta C / sigma_b,   z S = z_delta C.

C is computed from earlier releases, and z does not depend on C, so every round is the same event.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import Field

from accounting.noises import LARGEST_NOISE
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.privacy.mechanism import BoundedRows, NoisedMechanism, PublicState
from privfed.privacy.setting import Setting


@runtime_checkable
class FollowsQuantile(Protocol):
    """A mechanism whose clip follows a quantile of clients' norms if `adaptive_clip` is set."""

    @property
    def clip_quantile(self) -> float:
        """Quantile that the clip follows, between 0 and 1."""


@dataclass(frozen=True)
class Split:
    """Division of the noise multiplier z between updates and the count of norms within the clip.

    `update` is z_delta, the standard deviation of the update's noise over the clip; `count` is
    sigma_b, the standard deviation of the noise on the count.
    """

    update: float
    count: float

    @classmethod
    def of(cls, noise_multiplier: float, count: float) -> Split:
        """Returns the split of the noise multiplier z, given `count` = sigma_b.

        Raises `Refused` if `count` is at most z / 2: the release of the count alone would then cost
        as much privacy as z allows, or more.
        """
        if noise_multiplier == 0.0:
            return cls(0.0, count)
        left = noise_multiplier**-2 - (2 * count) ** -2
        if left <= 0:
            raise Refused(
                f"privacy.count_noise is {count:g} clients, but has to be above half of the noise "
                f"multiplier {noise_multiplier:g}; raise privacy.count_noise, the cohort, or "
                "epsilon"
            )
        return cls(left**-0.5, count)

    def weight(self, clip: float) -> float:
        """Returns the factor on the count at which its noise has the update's standard deviation.

        It is `update` * `clip` / `count`; without noise on the update, `clip` / `count`.
        """
        return self.update * clip / self.count if self.update else clip / self.count

    def bound(self, clip: float) -> float:
        """Returns S = sqrt(clip^2 + weight^2 / 4), the joint L2 sensitivity of update and count."""
        return math.hypot(clip, self.weight(clip) / 2)


class AdaptiveClip(NoisedMechanism):
    """Base class of mechanisms whose clip may adapt to a quantile of clients' norms."""

    adaptive_clip: bool = False
    """Whether the clip follows clients' norms, within the same epsilon."""
    clip_quantile: float = Field(0.5, gt=0, lt=1)
    """Quantile of clients' norms that the clip follows."""
    clip_rate: float = Field(0.2, gt=0, le=2)
    """Learning rate of the adaptive clip."""
    count_noise: float | None = Field(None, gt=0, le=LARGEST_NOISE)
    """Noise sigma_b on the count, in clients; None: a twentieth of the expected cohort."""

    @property
    def adaptive(self) -> bool:
        return self.adaptive_clip

    def resolved(self, setting: Setting) -> Self:
        """Returns the mechanism; if the clip adapts, `count_noise` is set unless it was.

        Its default is a twentieth of the expected cohort size.
        """
        mechanism = super().resolved(setting)
        if not self.adaptive_clip or self.count_noise is not None:
            return mechanism
        return mechanism.model_copy(update={"count_noise": setting.cohort.expected / 20})

    def init(self) -> PublicState:
        state = super().init()
        if not self.adaptive_clip:
            return state
        return {**state, "clip": torch.tensor(self.clip, dtype=torch.float64)}

    def _refuse_exchanges(self, exchanges: int) -> None:
        """Raises `Refused` if the clip is adaptive and a round has several exchanges."""
        if self.adaptive_clip and exchanges > 1:
            raise Refused(
                "privacy.adaptive_clip is true, but the clip adapts to the norms of one exchange "
                f"and a round has {exchanges}; set privacy.adaptive_clip to false, or use an "
                "objective with one exchange"
            )

    def _norm(self, state: PublicState) -> float:
        """Returns the L2 norm bound of a row: the clip or, if it adapts, `Split.bound`."""
        return self._split().bound(float(state["clip"])) if self.adaptive_clip else self.clip

    def _adapted(self, noised_count: float, divisor: float, state: PublicState) -> PublicState:
        """Returns `state` with the next clip; the arguments are those of `share_within`."""
        clip = float(state["clip"])
        share = share_within(noised_count, self._split().weight(clip), divisor)
        after = next_clip(clip, share, self.clip_quantile, self.clip_rate)
        return {**state, "clip": torch.tensor(after, dtype=torch.float64)}

    def _split(self) -> Split:
        if self.count_noise is None:
            raise ValueError("adaptive clipping has no count noise yet; plan the run first")
        mechanism: Any = self  # its class declares the noise multiplier
        return Split.of(mechanism._noise(), self.count_noise)


def next_clip(clip: float, share: float, quantile: float, rate: float) -> float:
    """Returns the next clip if a fraction `share` of the cohort's norms was within `clip`.

    It is clip exp(-rate (share - quantile)), limited to [1e-6, 1e20], as `clip_rows` requires.
    """
    step = rate * (share - quantile)
    return min(max(clip * math.exp(-step), 1e-6), 1e20)


def share_within(noised_count: float, weight: float, divisor: float) -> float:
    """Estimates the fraction of the cohort whose norms are within the clip.

    The estimate may be outside of [0, 1].

    Args:
      noised_count: noised sum of weight (b - 1/2) over the cohort, b = 1 for norms within the clip.
      weight: factor on each client's b - 1/2.
      divisor: constant divisor, the expected cohort size.
    """
    return 0.5 + noised_count / (weight * divisor)


_NUMBERS, _ELSEWHERE = 1 << 16, 1 << 26
"""Numbers of values per block: half a megabyte as float64 on a CPU, half a gigabyte elsewhere."""


def blocks(rows: Tensor) -> Iterator[slice]:
    """Yields slices that partition the columns of `rows` `[c, m]`.

    On a CPU they have fewer columns than on a GPU, so that a block fits the cache.

    >>> import torch
    >>> list(blocks(torch.zeros(4, 40000)))
    [slice(0, 16384, None), slice(16384, 32768, None), slice(32768, 40000, None)]
    """
    count, width = rows.shape
    numbers = _NUMBERS if rows.device.type == "cpu" else _ELSEWHERE
    step = numbers // max(count, 1)
    for start in range(0, width, max(step, 1)):
        yield slice(start, min(start + max(step, 1), width))


def averaged(total: Tensor, divisor: float) -> Tensor:
    """Returns `total` `[m]` / `divisor` in float32; the division is in the precision of `total`."""
    average = total.new_empty(len(total), dtype=torch.float32)
    for block in blocks(total[None]):
        average[block] = total[block] / divisor
    return average


_SLACK = 1 - 2.0**-22
"""Rounding the scale and the product to float32 increases a norm by at most (1 + 2^-24)^2, and the
float64 norm of up to 2^26 numbers is accurate to 2^-27; the slack exceeds the total."""

_FINEST_GRID = 2.0**-100
_SMALLEST_CLIP, _LARGEST_CLIP, _LARGEST_NORM = 1e-6, 1e20, 1e30
"""Limits that keep clip / norm a normal float32 number;
otherwise its rounding error is unbounded."""


def clip_rows(rows: Tensor, clip: float, grid: float | None = None) -> BoundedRows:
    """Clips each row to L2 norm at most `clip`: x -> x min(1, clip / |x|).

    Guarantee: every returned row is finite, and its norm, computed in float64, is at most `clip`,
    for any input. A client's row depends on that client's input only.

    | input row            | output row                                            |
    |----------------------|-------------------------------------------------------|
    | norm <= clip         | unchanged; a norm above (1 - 2^-22) clip is cut to it |
    | norm > clip          | same direction, norm clip (less at most 2^-21 of it)  |
    | zero                 | zero                                                  |
    | any NaN or Inf       | zero: the client takes part and contributes nothing   |
    | norm above 1e30      | zero, likewise: the row has diverged or is Byzantine  |

    Args:
      rows: client updates, float32 or float64, shape [c, m]; not modified.
      clip: clipping norm, from 1e-6 to 1e20.
      grid: grid spacing, a power of two, to which rows are rounded as by `on_grid`, in the same
        pass; None for no rounding.

    Returns:
      The clipped rows, in the dtype of `rows`, with their proven norm bound.

    Raises:
      Refused: if `clip` is outside its range.
      TypeError: if rows are neither float32 nor float64.
      ValueError: if `grid` is not a power of two.

    Source: Abadi et al. 2016, Algorithm 1; McMahan et al. 2018, Algorithm 1 (per user).
    """
    if not _SMALLEST_CLIP <= clip <= _LARGEST_CLIP:
        raise Refused(
            f"privacy.clip is {clip!r}; expected a number from {_SMALLEST_CLIP:g} to "
            f"{_LARGEST_CLIP:g}"
        )
    if rows.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"clip_rows has no proof for {rows.dtype}; expected float32 or float64")
    norms = _norms(rows)
    usable = norms <= _LARGEST_NORM
    scale = (clip * _SLACK / norms).clamp(max=1.0).to(rows.dtype)
    clipped = torch.empty_like(rows, memory_format=torch.contiguous_format)
    if grid is not None:
        _refuse_grid(grid)
        scale = scale * (1 / grid)  # exact, as the grid is a power of two
    for block in blocks(rows):  # each block remains in the cache
        part = torch.mul(rows[:, block], scale, out=clipped[:, block])
        if grid is not None:
            toward_zero(part).mul_(grid)
    if rows.device.type != "cpu" or not bool(usable.all()):  # a GPU does not wait for the mask
        clipped = torch.where(usable, clipped, 0.0)
    return BoundedRows(clipped, bound=float(clip))


def _norms(rows: Tensor) -> Tensor:
    """Returns the L2 norms `[c, 1]` of rows `[c, m]`, in float64."""
    parts = [_block_norms(rows[:, block]) for block in blocks(rows)]
    if len(parts) == 1:
        return parts[0]
    return _block_norms(torch.cat(parts, dim=1) if parts else rows)


def _block_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return norms


def on_grid(bounded: BoundedRows, grid: float | None) -> BoundedRows:
    """Rounds each number of the rows toward zero to a multiple of `grid`, a power of two.

    Without a grid the rows are returned unchanged. The arithmetic is exact.

    Guarantee: no number, hence no norm, increases, so the bound is unchanged. A float32 number that
    is coarser than the grid is already a multiple of it.
    """
    if grid is None:
        return bounded
    return BoundedRows(_onto(grid, bounded.rows.clone()), bounded.bound)


def _onto(grid: float, numbers: Tensor) -> Tensor:
    """Rounds `numbers` toward zero to multiples of `grid`, in place."""
    _refuse_grid(grid)
    numbers.mul_(1 / grid)  # exact, as the grid is a power of two
    return toward_zero(numbers).mul_(grid)


def _refuse_grid(grid: float) -> None:
    """Raises `ValueError` unless `grid` is a power of two, `Refused` if 1 / `grid` overflows."""
    if math.frexp(grid)[0] != 0.5:
        raise ValueError(f"a grid of {grid!r} is not a power of two")
    if not _FINEST_GRID <= grid <= 1 / _FINEST_GRID:
        raise Refused(
            f"the noise's standard deviation is about {grid * 2.0**30:.0e}; expected a number from "
            "1e-21 to 1e39: change the noise multiplier or the clip"
        )


def toward_zero(numbers: Tensor) -> Tensor:
    """Rounds `numbers` toward zero, in place, and returns it.

    On a CPU NumPy rounds, since `torch.trunc` is 40 times slower there.
    """
    if numbers.device.type != "cpu":
        return numbers.trunc_()
    np.trunc(numbers.numpy(), out=numbers.numpy())
    return numbers


def clip_rows_and_report(rows: Tensor, clip: float, weight: float) -> BoundedRows:
    """Clips rows as `clip_rows` does, and appends whether each row was within the clip.

    The last column is weight (b - 1/2), less 2^-22 of it, where b = 1 if the norm of the unclipped
    row is at most `clip` (0 also for rows that are not finite).

    Guarantee: every returned row has an L2 norm of at most sqrt(clip^2 + weight^2 / 4), its bound.

    Args:
      rows: client updates, float32 or float64, shape [c, m].
      clip: clipping norm.
      weight: factor on the last column.

    Returns:
      Rows of shape [c, m + 1] with their bound.

    Source: Andrew, Thakkar, McMahan & Ramaswamy 2021, section 3.1 (the centred indicator).
    """
    clipped = clip_rows(rows, clip)
    norms = _norms(rows)
    within = torch.where(norms <= clip, 0.5, -0.5).to(rows.dtype) * (weight * _SLACK)
    joint = math.hypot(clipped.bound, weight / 2)
    return BoundedRows(torch.cat([clipped.rows, within], dim=1), joint)


def count_turned(bounded: BoundedRows, who: Tensor, within: bool) -> BoundedRows:
    """Returns rows of `clip_rows_and_report`; rows in the mask `who` `[c]` now report `within`.

    This simulates attackers that report a false answer. Guarantee: the magnitude of the last column
    is unchanged, so no norm changes and the bound remains valid.
    """
    rows = bounded.rows.clone()
    count = rows[:, -1].abs()
    rows[:, -1] = torch.where(who, count if within else -count, rows[:, -1])
    return replace(bounded, rows=rows)
