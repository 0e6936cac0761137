"""Points of a claimed privacy profile against which releases of two neighbours are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accounting.empirical.claimed_profile import points_of
from accounting.empirical.two_sample import Claim
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.releases import PoissonSampled, Repeated, SeveralSites

_DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


def claimed_points(event: Event, rounds: int, delta: float) -> Iterator[Claim]:
    """Yields points (epsilon, delta) claimed by `rounds` rounds of `event`.

    They are those of `points_for_releases`. If clients are sampled by independent Bernoulli draws,
    a point at epsilon 0 precedes them. Its delta is the probability that the client is sampled at
    least once (plus slack), since a client that is never sampled changes nothing. For integer noise
    this point is stronger than the accountants' bounds.
    """
    if isinstance(event.release, PoissonSampled | SeveralSites | Repeated):
        rate, draws = _draws(event.release)
        yield 0.0, min(1.0, 1.0 - (1.0 - rate) ** (draws * rounds) + rounds * event.slack)
    yield from points_for_releases(lambda at: guarantee({event: rounds}, at).epsilon, delta)


def points_for_releases(profile: Callable[[float], float], delta: float) -> Iterator[Claim]:
    """Yields points of `profile` (epsilon as a function of delta) that releases can test.

    They are at `delta` and at fixed deltas from 1e-6 to 0.8, in ascending order; those without a
    finite epsilon are left out.
    """
    yield from points_of(profile, sorted({*_DELTAS, delta}))


def _draws(release: PoissonSampled | SeveralSites | Repeated) -> tuple[float, int]:
    """Returns the sampling rate of a client's Bernoulli draws, and their number for one release."""
    match release:
        case PoissonSampled(rate=rate):
            return rate, 1
        case SeveralSites(rate=rate, sites=sites):
            return rate, sites
        case Repeated(count=count, of=each):
            return each.rate, count
