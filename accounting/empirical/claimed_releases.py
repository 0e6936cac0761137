"""Points of a claimed privacy profile that releases of two neighbours are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accounting.empirical.claimed_profile import points_of
from accounting.empirical.two_sample import Claim
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.releases import PoissonSampled, Repeated, SeveralSites

_DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


def claimed_points(event: Event, rounds: int, delta: float) -> Iterator[Claim]:
    """Points (epsilon, delta) of the privacy profile claimed for so many rounds, one at `delta`.

    Who is never drawn changes nothing: so much less than accountants of integer noise know is
    claimed of every draw by coins.
    """
    if isinstance(event.release, PoissonSampled | SeveralSites | Repeated):
        rate, coins = _coins(event.release)
        yield 0.0, min(1.0, 1.0 - (1.0 - rate) ** (coins * rounds) + rounds * event.slack)
    yield from points_for_releases(lambda at: guarantee({event: rounds}, at).epsilon, delta)


def points_for_releases(profile: Callable[[float], float], delta: float) -> Iterator[Claim]:
    """Points of `profile`, epsilon by delta, that releases can tell from others, one at `delta`."""
    yield from points_of(profile, sorted({*_DELTAS, delta}))


def _coins(release: PoissonSampled | SeveralSites | Repeated) -> tuple[float, int]:
    """The bias of a client's coins, and how many of them are thrown for one release."""
    match release:
        case PoissonSampled(rate=rate):
            return rate, 1
        case SeveralSites(rate=rate, sites=sites):
            return rate, sites
        case Repeated(count=count, of=each):
            return each.rate, count
