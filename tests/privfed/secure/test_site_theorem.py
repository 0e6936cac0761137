"""The claim of sums over sites against exact laws: tiny populations, every coin, all noise."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from lanes import every_case
from scipy import stats

from accounting.events import ADD_REMOVE, Event
from accounting.guarantee import guarantee
from accounting.releases import PoissonSampled, SeveralSites
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.noise.shares import WASTE, Layers
from privfed.privacy.setting import CohortSize, Setting, SiteNoise
from privfed.sampling.cohort import over_several_sites, sampled_at_sites
from privfed.sampling.samplers import Poisson

RATE, DELTAS, EPSILONS = 0.25, (1e-3, 0.03, 0.1, 0.2), (0.0, 0.1, 0.5, 1.0, 2.0)
SITES = [SiteNoise(3, 3, 1), SiteNoise(4, 3, 1), SiteNoise(5, 4, 2)]
OTHERS = (3, -5)
"""Rows of the other client at the target's site, and of the one client at every other site."""


KINDS = [SkellamNoise, DiscreteGaussianNoise]


def shared(sites, length=1, sizing="minimum", multiplier=1.0, kind=SkellamNoise, parts=1):
    setting = Setting(cohort=CohortSize(parts, 4 * parts), noise=sites, bits=8, length=length)
    mechanism = kind(clip=1.0, noise_multiplier=multiplier, sizing=sizing)
    return mechanism.in_parts(parts).resolved(setting)


def skellam(sites, length=1, multiplier=1.0):
    return shared(sites, length, multiplier=multiplier)


def claimed(mechanism):
    return mechanism.events(Poisson(size=1).witness(0, 4), 1)


def share_of(kind, variance, here):
    """The law of one share."""
    variance = float(variance)
    if kind is SkellamNoise:
        return stats.skellam.pmf(here, variance / 2, variance / 2)
    weights = np.exp(-(here**2) / (2 * variance))
    return weights / weights.sum()


def noise(variances, length, reach=100, kind=SkellamNoise):
    """The law of a sum of independent shares, on whole numbers up to `reach` each way."""
    line, here = np.zeros(2 * reach + 1), np.arange(-reach, reach + 1)
    line[reach] = 1.0
    for variance in variances:
        line = np.convolve(line, share_of(kind, variance, here), "same")
    return line if length == 1 else np.multiply.outer(line, line)


def with_coin(law, row, rate=RATE):
    """The law of the same and a client's `row`, which is added by a coin."""
    return (1 - rate) * law + rate * np.roll(law, row, axis=tuple(range(law.ndim)))


def delta(first, second, epsilon):
    """The larger of both directions' hockey-stick divergences."""
    factor = np.exp(epsilon)
    pairs = ((first, second), (second, first))
    return max(float(np.maximum(p - factor * q, 0.0).sum()) for p, q in pairs)


def longest_rows(mechanism):
    """Rows of whole numbers that are as long as encoded ones may be, in one or two dimensions."""
    bound, length = mechanism.grid().l2, mechanism.grid().length
    top = int(bound)
    if length == 1:
        return [(top,)]
    rows = ((a, int(np.sqrt(bound**2 - a**2))) for a in (0, 2, top // 2, int(bound / 2**0.5), top))
    return [row for row in rows if sum(row) <= mechanism.grid().l1]


def seen(shares, sites, row, rate=RATE, kind=SkellamNoise):
    """What is seen of `sites` with and without the target: their rows, and one share of each."""
    without = noise(shares, len(row), kind=kind)
    for site in sites:
        others = OTHERS[:1] if site == 0 else OTHERS[1:]
        for other in others:
            without = with_coin(without, (other,) * len(row))
    return with_coin(without, row, rate), without


def exceeds(pair, event):
    """Whether an exact pair is further apart than an event says at some delta."""
    return any(
        delta(*pair, guarantee({event: 1}, at).epsilon) > at * (1 + 1e-9) + 1e-12 for at in DELTAS
    )


@every_case("kind", KINDS)
@every_case("length", [1, 2])
@every_case("sites", SITES)
def test_what_is_left_without_colluders_is_as_claimed(sites, length, kind):
    """For every set of honest survivors that may be left, and readers see all of their noise."""
    mechanism = shared(sites, length, kind=kind)
    share, event = mechanism.share().variance, claimed(mechanism)["sites"]
    for row in longest_rows(mechanism):
        for left in {sites.counted, sites.minimum, sites.sites}:
            for others in combinations(range(1, sites.sites), left - 1):
                assert not exceeds(seen([share] * left, (0, *others), row, kind=kind), event)


@every_case("length", [1, 2])
@every_case("sizing", ["minimum", "layers"])
@every_case("sites", SITES)
@every_case("kind", KINDS)
def test_who_trusts_one_site_alone_has_its_noise_and_its_coins(kind, sites, sizing, length):
    """All others collude: of layers they hold enough shares to know all but the base."""
    mechanism = shared(sites, length, sizing, kind=kind)
    share = mechanism.share()
    mine = (share.base(sites.sites) if sizing == "layers" else share).variance
    assert isinstance(share, Layers) == (sizing == "layers")
    for row in longest_rows(mechanism):
        assert not exceeds(seen([mine], (0,), row, kind=kind), claimed(mechanism)["others"])


def test_the_claims_noise_is_what_honest_sites_make_up_and_no_more():
    """Exact deltas: equal with the noise of H, above with that of all sites, or of all who stay."""
    for sites in SITES:
        mechanism = skellam(sites)
        release, share = claimed(mechanism)["sites"].release, mechanism.share().variance
        assert release.rate == RATE
        assert release.of.variance == pytest.approx(share * sites.counted, rel=1e-9)
        row = longest_rows(mechanism)[0]
        honest = noise([share] * sites.counted, 1)
        true = with_coin(honest, row), honest
        for epsilon in EPSILONS:
            assert delta(*seen([share] * sites.counted, range(sites.counted), row), epsilon) <= (
                delta(*true, epsilon) + 1e-12
            )
            for counted in (sites.minimum, sites.sites):
                wrong = noise([share * counted], 1)
                less = delta(with_coin(wrong, row), wrong, epsilon)
                assert less < 0.95 * delta(*true, epsilon)


def test_claims_that_are_wrong_are_refuted():
    """Of coins that are known, and of two rows of full weight charged as one."""
    sites = SITES[0]
    mechanism = skellam(sites)
    share, event = mechanism.share().variance, claimed(mechanism)["sites"]
    row = longest_rows(mechanism)[0]
    shares = [share] * sites.counted
    assert exceeds(seen(shares, (0, 1), row, rate=1.0), event)
    once, without = seen(shares, (0, 1), row)
    assert not exceeds((once, without), event)
    little = skellam(sites, multiplier=0.3)
    share, row = little.share().variance, longest_rows(little)[0]
    once, without = seen([share] * sites.counted, (0, 1), row)
    twice = with_coin(once, row)
    alone = noise([share] * sites.counted, 1)
    for epsilon in EPSILONS[:3]:
        charged = delta(with_coin(alone, row), alone, epsilon)
        assert delta(once, without, epsilon) <= charged + 1e-12 < delta(twice, without, epsilon)


@pytest.mark.parametrize("length", [1, 2])
def test_a_client_at_two_sites_is_within_the_split_charge(length):
    """Its rows are clipped to a half each, and point where they like."""
    sites = SITES[0]
    mechanism = skellam(sites, length, multiplier=1.5).in_parts(2)
    witness = over_several_sites(Poisson(size=1).witness(0, 4), 2)
    event = mechanism.events(witness, 1)["sites"]
    assert event.release.count == 2
    rows, share = longest_rows(mechanism), mechanism.share().variance
    for first, second in product(rows, rows[::-1]):
        once, without = seen([share] * sites.counted, (0, 1), first)
        assert not exceeds((with_coin(once, second), without), event)


@pytest.mark.parametrize("length", [1, 2])
def test_a_client_at_two_sites_is_within_the_mixture_that_gaussian_shares_are_charged(length):
    """Its rows are clipped to a half each, and point where they like; one row as a whole is not."""
    sites, kind = SITES[0], DiscreteGaussianNoise
    mechanism = shared(sites, length, multiplier=1.5, kind=kind, parts=2)
    witness = over_several_sites(Poisson(size=1).witness(0, 4), 2)
    event = mechanism.events(witness, 1)["sites"]
    assert isinstance(event.release, SeveralSites)
    rows, share = longest_rows(mechanism), mechanism.share().variance
    for first, second in product(rows, rows[::-1]):
        once, without = seen([share] * sites.counted, (0, 1), first, kind=kind)
        assert not exceeds((with_coin(once, second), without), event)
    single = replace(event, release=PoissonSampled(RATE, event.release.of))
    once, without = seen([share] * sites.counted, (0, 1), rows[0], kind=kind)
    assert exceeds((with_coin(once, rows[0]), without), single)


def test_layers_leave_as_much_as_is_claimed_whoever_stays():
    """Base and layers add up: of any honest survivors to v at least, of all to little more."""
    v = 100.0
    for n in range(3, 9):
        for k in range(1, n - 1):
            for minimum in range(k + 1, n + 1):
                sites = SiteNoise(n, minimum, k)
                layers = sites.layers(v, "discrete_gaussian")
                assert layers.most_dropouts(n) == sites.most_dropouts == n - minimum
                assert layers.base(n).variance == pytest.approx(v / sites.shares(True))
                for m in range(minimum, n + 1):
                    staying = layers.keeping(n, n - m, range(m))
                    each = sorted(layers.remaining(n, staying[site]).variance for site in range(m))
                    assert sum(each[: m - k]) >= v * (1 - 1e-9)
                    asked = v * sites.added_by(m, True)
                    assert asked * (1 - 1e-9) <= sum(each) <= asked * (1 + WASTE + 1e-9)


def test_the_events_are_about_adding_or_removing_a_client():
    mechanism = skellam(SITES[1])
    witness = Poisson(size=1).witness(0, 4)
    for event in claimed(mechanism).values():
        assert isinstance(event, Event)
        assert event.relation == ADD_REMOVE
        assert event == sampled_at_sites(witness, event.release.of, event.slack)
