"""One adapter over dp-accounting: epsilon of a list of events, by RDP and by PLD.

Both are proven upper bounds, so their minimum (`tightest`) is one too. The adapter exists because
the library under-counts silently when it is used in the obvious way; by construction here

* noise multipliers and rates reach it as Python floats (events convert them), since ints and NumPy
  scalars lose terms inside a Poisson event;
* a composition inside a Poisson event never reaches it: events hold one effective multiplier;
* relations other than add/remove are not passed on: its RDP accountant takes sigma / clip for
  replace-one where sigma / (2 clip) is due;
* a Renyi divergence that rounding pushed below zero is not taken as a proof of epsilon = 0;
* equal events are composed by their count, never one by one;
* PLD's grid follows the event, so that neither tiny rates lose precision nor tiny noise memory;
* PLD is asked at a delta that is smaller by what its FFT may have rounded away, and not at all
  where that is more than a hundredth of delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting import pld as dp_pld
from dp_accounting import rdp as dp_rdp

from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, Event, Gaussian, PoissonSampled, Unprotected

Spending = Mapping[Event, int]
"""How often each distinct event happened: run-length encoded, since 1,000 single compositions take
20 s."""

ACCOUNTANTS = ("rdp", "pld")

_FFT_ERROR = 1e-15
"""Of delta, per composed event: PLD convolves by FFT, whose rounding was measured at up to 3e-17
per event against the closed form. The bound is asked at a delta smaller by this much."""

_SMALLEST_NOISE = 1e-3
"""Below it losses overflow the accountants' arithmetic, and the bound is infinity."""

_ROUNDING = 1e-12
"""Added to every order's divergence, per event. Against 50-digit arithmetic the library's sums in
double precision were off by up to 1e-14 (alpha = 256)."""

_FINEST_GRID, _COARSEST_GRID, _LARGEST_GRID = 1e-6, 1e-3, 300_000


def supports(event: Event, accountant: str) -> bool:
    """Whether `accountant` ("rdp" or "pld") has a proven bound for `event`; ask when configuring.

    `Unprotected` is supported by both: its epsilon is infinite.
    """
    if accountant not in ACCOUNTANTS:
        raise Unaccountable(f"accountant {accountant!r} is not one of {', '.join(ACCOUNTANTS)}")
    return event.relation == ADD_REMOVE


def epsilon(spending: Spending, delta: float, accountant: str) -> float | None:
    """The epsilon of all events together at `delta`, or None where `accountant` has no bound.

    Raises `Unaccountable` for a delta outside (0, 1).
    """
    if not 0.0 < delta < 1.0:
        raise Unaccountable(f"delta is {delta!r}; expected a number strictly between 0 and 1")
    if not all(supports(event, accountant) for event in spending):
        return None
    counts = {event: count for event, count in spending.items() if count > 0}
    if any(_is_bare(event) for event in counts):
        return math.inf
    if not counts:
        return 0.0
    if accountant == "rdp":
        return _rdp(counts, float(delta))
    error = _FFT_ERROR * sum(counts.values())
    return _pld(tuple(counts.items()), delta - error) if delta >= 100 * error else None


def _is_bare(event: Event) -> bool:
    match event.release:
        case Gaussian(noise_multiplier=z) | PoissonSampled(of=Gaussian(noise_multiplier=z)):
            return z < _SMALLEST_NOISE
        case Unprotected():
            return True


def _library_event(event: Event) -> dp_accounting.DpEvent:
    match event.release:
        case Gaussian(noise_multiplier=z):
            return dp_accounting.GaussianDpEvent(z)
        case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)):
            return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        case Unprotected():
            return dp_accounting.NonPrivateDpEvent()


@functools.lru_cache(maxsize=256)
def _rdp_curve(event: Event) -> tuple[np.ndarray, np.ndarray]:
    """Orders and the event's Renyi divergences, rounded up."""
    accountant = dp_rdp.RdpAccountant()
    with _quiet_library():
        accountant.compose(_library_event(event))
    return accountant.orders, np.maximum(accountant.rdp, 0.0) + _ROUNDING


def _rdp(counts: Spending, delta: float) -> float:
    orders = _rdp_curve(next(iter(counts)))[0]
    total = sum(count * _rdp_curve(event)[1] for event, count in counts.items())
    return float(dp_rdp.compute_epsilon(orders, total, delta)[0])


@functools.lru_cache(maxsize=1024)
def _pld(counts: tuple[tuple[Event, int], ...], delta: float) -> float:
    grid = _grid(dict(counts))
    accountant = dp_pld.PLDAccountant(value_discretization_interval=grid)
    for event, count in counts:
        accountant.compose(_library_event(event), count)
    return float(accountant.get_epsilon(delta))


def _grid(counts: Spending) -> float:
    """The discretisation of privacy losses: any is valid, a finer one is tighter and slower.

    A tenth of the smallest standard deviation of one event's loss, but never so fine that the
    losses of one event, or of their sum (which RDP bounds), need more than 300,000 points.
    """
    spread = min(_loss_deviation(event) for event in counts)
    reach = max([_rdp(counts, 1e-15), *(_loss_reach(event) for event in counts)])
    fine = min(max(spread / 10, _FINEST_GRID), _COARSEST_GRID)
    return max(fine, reach / _LARGEST_GRID)


def _loss_deviation(event: Event) -> float:
    """About q sqrt(exp(1/z^2) - 1): the deviation of the likelihood ratio, capped at 1."""
    q, z = _rate_and_noise(event)
    return min(1.0, q * math.sqrt(math.expm1(min(1 / z**2, 50.0))))


def _loss_reach(event: Event) -> float:
    """A 10-sigma Gaussian privacy loss at multiplier z."""
    _, z = _rate_and_noise(event)
    return 10 / z + 0.5 / z**2


def _rate_and_noise(event: Event) -> tuple[float, float]:
    match event.release:
        case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)):
            return q, z
        case Gaussian(noise_multiplier=z):
            return 1.0, z
    raise Unaccountable(f"{event} has no noise multiplier")


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Leaving out a fractional order that did not converge is safe, and not worth a warning."""
    set_level: Callable[[int], None] = absl_logging.set_verbosity
    before = absl_logging.get_verbosity()
    set_level(absl_logging.ERROR)
    try:
        yield
    finally:
        set_level(before)
