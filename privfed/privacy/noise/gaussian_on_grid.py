"""Gaussian noise on a grid, exactly: the continuous Gaussian, rounded to the nearest integer.

Noise added to a real vector in floating point leaks through the last bits of the sum (Mironov 2012;
Haney et al. 2022). Sums here are integer multiples of a grid, and for x on the grid x + round(N) =
round(x + N): a release is post-processing of the continuous Gaussian mechanism, and has the event
of that mechanism.

The quantile of 64 random bits is evaluated in double precision. If its error could move it across a
rounding boundary, 128 more bits are drawn and compared with the boundary's tail at 80 digits. A
draw then has the exact distribution up to a total variation distance below 2^-180, negligible for
any delta in double precision, provided that SciPy's `ndtri` is accurate to 2e-14 (it states 7e-16;
tested against 50 digits, to a twentieth of that), and so, for tails above 2^-10, is PyTorch's
`erfinv` of 1 - 2 tail (tested likewise, to a quarter: 1 - 2 tail is rounded to 2^-54, which moves
the quantile by up to 9e-15). Whichever is used, the same bits are returned.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Reals, Words
from privfed.core.vector import Indices

T = TypeVar("T")
_ERROR = 2e-14
"""Largest error of a quantile z, divided by 1 + z."""
_BLOCK = 1 << 14
"""Number of values per block, which fits the cache."""
_FEWEST = 4
"""Least number of blocks for each thread."""
_TAIL = 1 << 24
"""Tail probability, in multiples of 2^-64, below which 64 bits give too coarse a quantile."""
_CENTRAL = np.uint64(1 << 54)
"""Tail probability, in multiples of 2^-64, from which `erfinv` gives quantiles, which is faster."""
_LIKELY = np.uint64(1 << 44)
"""Tail probability, in multiples of 2^-64; fewer than two of a million draws are below it."""
_MOST_SLACK = 1.3e-13
"""Upper bound on the error of a draw of tail probability above `_LIKELY`, over the scale. The error
is largest at 2^-20: there z is 4.76, the error of z is 1.16e-13, and the rest is below 9e-15."""
FINENESS = 2.0**30
"""Least number of grid steps per standard deviation; there are fewer than twice as many."""
LARGEST_SCALE = 4 * FINENESS
"""Scale up to which `_ERROR` is far below half a grid step."""


def grid_of(std: float) -> float | None:
    """Returns the public grid of rows and noise; None if `std` is 0, which needs no grid.

    It is the power of two in (2^-31 std, 2^-30 std]. Rounding n rows toward zero changes a
    coordinate of their sum by less than n 2^-30 standard deviations, and sums of integer multiples
    are exact in float64 for up to 2^22 z rows at the clip.
    """
    if std == 0.0:
        return None
    return math.ldexp(1.0, math.frexp(std / FINENESS)[1] - 1)


def refuse_inexact(noise_multiplier: float, size: int) -> None:
    """Raises `Refused` if sums over a cohort of expected `size` may be inexact in float64.

    Cohorts more than forty standard deviations above `size` are assumed never to occur.
    """
    most = size + 40 * math.sqrt(size) + 100
    if noise_multiplier and most * 2 * FINENESS / noise_multiplier > 2.0**53:
        raise Refused(
            f"the noise multiplier is {noise_multiplier:g}, but sums over cohorts of {size} are "
            "then inexact in double precision; raise the noise multiplier, or lower cohort.size"
        )


def gaussian_on_grid(keys: Keys, std: float, length: int) -> Reals:
    """Returns N(0, std^2) noise `[length]`, rounded to `grid_of(std)`; zeros if `std` is 0.

    A part of a longer draw is reproduced bit for bit by `keys.beginning` at the part's start.
    Sampling uses PyTorch's number of threads (`run.threads`); the result does not depend on it.
    """
    noise, grid = np.zeros(length), grid_of(std)
    if grid is None or not length:
        return noise
    scale = math.nextafter(std / grid, math.inf)
    _refuse_scale(scale)

    def draw(start: int) -> tuple[Indices, Words]:
        """Fills the block of noise at `start`; returns the indices in doubt, and their 64 bits."""
        words = keys.beginning(start).bits(min(_BLOCK, length - start))
        rounded, unsure = _quickly(words, scale)
        np.multiply(rounded, grid, out=noise[start : start + len(words)])
        return start + unsure, words[unsure]

    drawn = _in_threads(draw, range(0, length, _BLOCK))
    places, words = (np.concatenate(each) for each in zip(*drawn, strict=True))
    if len(places):
        further = keys.further_at(places)
        noise[places] = _exactly(words, further, scale, np.zeros(len(places))) * grid
    return noise


def _in_threads(act: Callable[[int], T], places: range) -> list[T]:
    """Returns the results of `act` at `places` (starts of blocks), with threads in any order.

    Threads are used if there are several, with at least `_FEWEST` places for each.
    """
    threads = min(torch.get_num_threads(), len(places) // _FEWEST)
    if threads < 2:
        return [act(place) for place in places]

    def share(places: range) -> list[T]:
        torch.set_num_threads(1)  # of PyTorch's operations in this thread
        return [act(place) for place in places]

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads) as pool:
            shares = pool.map(share, (places[n::threads] for n in range(threads)))
            return [result for share in shares for result in share]
    finally:
        torch.set_num_threads(before)


def rounded_normal(
    words: Words, scale: float, more: Callable[[int], Words], shift: Reals | None = None
) -> Reals:
    """Returns round(scale Z - shift) for standard normal Z, one per word, as integers in float64.

    Args:
      words: uniform 64-bit words, of any shape.
      scale: scale of the noise, at most 2^32.
      more: function that returns n further uniform words.
      shift: exact shifts in [0, 1), of the shape of `words`; None for 0.

    Raises:
      ValueError: for a scale outside its range.
    """
    _refuse_scale(scale)
    flat = words.ravel()
    shifts = np.zeros(1) if shift is None else shift.ravel()
    rounded, places = np.empty(len(flat)), []
    for start in range(0, len(flat), _BLOCK):
        block = slice(start, start + _BLOCK)
        if shift is None:
            rounded[block], doubtful = _quickly(flat[block], scale)
        else:
            rounded[block], doubtful = _quickly_shifted(flat[block], scale, shifts[block])
        places.append(start + doubtful)
    unsure = np.concatenate([np.empty(0, dtype=np.int64), *places])
    if len(unsure):
        further = more(2 * len(unsure)).reshape(-1, 2)
        of_unsure = np.broadcast_to(shifts, flat.shape)[unsure]
        rounded[unsure] = _exactly(flat[unsure], further, scale, of_unsure)
    return rounded.reshape(words.shape)


def _refuse_scale(scale: float) -> None:
    if not 0.0 <= scale <= LARGEST_SCALE:
        raise ValueError(f"the scale is {scale!r}; expected a number from 0 to 2^32")


def _quickly_shifted(words: Words, scale: float, shift: Reals) -> tuple[Reals, Indices]:
    """Returns the same as `_quickly`, but for quantiles minus `shift` `[n]`."""
    value, slack = _scaled_quantiles(words, scale)
    value = _signed(words, value) - shift
    slack += 2.3e-16 * (np.abs(value) + 1.0) * (scale > 0.0)
    return np.floor(value + 0.5), np.flatnonzero(_doubtful(words, value, slack))


def _quickly(words: Words, scale: float) -> tuple[Reals, Indices]:
    """Returns rounded quantiles of `words` in double precision, and the indices to recompute.

    A quantile is recomputed exactly if a rounding boundary is within its error bound. A common
    bound for all tail probabilities from `_LIKELY` on selects few candidates. `_scaled_quantiles`
    then computes quantiles and individual bounds of these, and of all smaller tail probabilities.
    """
    low = words >> np.uint64(1)
    value = low.view(np.int64).astype(np.float64)
    outer = np.flatnonzero(low < _CENTRAL)  # from there on, adding 0.5 would be rounded away
    tails = (value[outer] + 0.5) * 2.0**-64
    value *= -(2.0**-63)
    value += 1.0
    torch.erfinv(torch.from_numpy(value), out=torch.from_numpy(value))
    value *= -math.sqrt(2.0)
    value[outer] = ndtri(tails)
    value *= scale
    rounded = np.rint(value)
    value -= rounded
    np.abs(value, out=value)
    near = value >= 0.5 - _MOST_SLACK * scale
    near[outer[low[outer] < _LIKELY]] = True
    unsure = np.flatnonzero(near)
    value, slack = _scaled_quantiles(words[unsure], scale)
    rounded[unsure] = -np.rint(value)
    signs = np.left_shift(words, np.uint64(63), out=low)
    rounded.view(np.uint64)[:] ^= signs  # no value is above zero
    rounded += 0.0  # -0.0 would reveal a row's sign
    return rounded, unsure[_doubtful(words[unsure], value, slack)]


def _doubtful(words: Words, value: Reals, slack: Reals) -> NDArray[np.bool_]:
    """Returns a mask of `words` whose rounding is in doubt.

    `slack` is above 0, and the nearest rounding boundary is within `slack` of `value` or the tail
    is too coarse in 64 bits.
    """
    near = np.abs(value - np.floor(value) - 0.5) <= slack
    return (near | (words >> np.uint64(1) < _TAIL)) & (slack > 0.0)


def _scaled_quantiles(words: Words, scale: float) -> tuple[Reals, Reals]:
    """Returns the magnitudes of `scale` Z for `words`, and bounds on their errors."""
    low = words >> np.uint64(1)  # the tail is in [low, low + 1) 2^-64
    tail = (low.astype(np.float64) + 0.5) * 2.0**-64
    z = -ndtri(np.minimum(tail, 0.5))
    width = 0.51 * 2.0**-64 / tail * np.minimum(1.2534, 1 / np.maximum(z, 1e-300))
    value = scale * z
    slack = scale * (width + _ERROR * (1 + z)) + 4e-16 * value
    return value, slack


def _exactly(words: Words, further: Words, scale: float, shifts: Reals) -> NDArray[np.float64]:
    """Returns the rounded quantiles of tails (low + U) 2^-64.

    The integer low is each of `words` without its last bit, the sign, shifted right; U in (0, 1)
    has the 128 `further` bits `[n, 2]`.

    Quantiles minus `shifts` `[n]` are compared with a rounding boundary at 80 digits. Only the
    boundary nearest to the double-precision value is in doubt. Without a shift it is the boundary
    of the number's magnitude, so that both signs round alike.
    """
    exact, rounded = _digits(threading.get_ident()), np.empty(len(words))
    rows = zip(words.tolist(), further.tolist(), shifts.tolist(), strict=True)
    over, half = 1 / (exact.mpf(scale) * exact.sqrt(2)), exact.mpf(0.5)
    for place, (word, bits, shift) in enumerate(rows):
        tail = exact.ldexp((word >> 1 << 128) + (bits[0] << 64) + bits[1] + half, -192)
        size = -float(ndtri(min(float(tail), 0.5)))
        sign = 1 if word & 1 or not shift else -1
        below = math.floor(sign * scale * size - shift)
        # The normal number is beyond the boundary where its upper tail is below the boundary's.
        upper = tail if sign > 0 else 1 - tail
        beyond = 2 * upper < exact.erfc((below + half + shift) * over)
        rounded[place] = below + beyond
    return np.where(shifts > 0.0, rounded, _signed(words, rounded)) + 0.0


@functools.lru_cache(maxsize=64)
def _digits(thread: int) -> Any:
    """Returns numbers of 80 digits for one `thread`: their precision varies while they compute."""
    import mpmath  # imported here: few runs have a draw in doubt

    exact = mpmath.mp.clone()  # in a millisecond
    exact.dps = 80
    return exact


def _signed(words: Words, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns `sizes` with the sign given by the last bit of each of `words`.

    Adding zero turns -0.0, which would reveal a row's sign, into 0.0.
    """
    return np.where(words & np.uint64(1), sizes, -sizes) + 0.0
