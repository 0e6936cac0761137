"""What aborts and nearly exact noise cost: always counted, and never less than it is."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from lanes import every_case
from scipy import stats

from accounting.accountants import epsilon
from accounting.calibration import noise_multiplier
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, Event, summable
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled
from accounting.slack import with_slack

EVENT = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")


@every_case("slack", [0.0, 1e-80, 1e-12, 1e-9, 1e-8, 1e-7])
@every_case("accountant", ["rdp", "pld"])
def test_the_claim_holds_after_slack_is_paid(slack, accountant):
    rounds, delta = 10, 1e-4
    spending = Counter({replace(EVENT, slack=slack): rounds})
    bare = Counter({EVENT: rounds})
    claim = epsilon(spending, delta, accountant)
    left = delta - (1 + math.exp(claim)) * rounds * slack
    assert left > 0
    assert epsilon(bare, left, accountant) <= claim
    assert claim >= epsilon(bare, delta, accountant)
    if slack == 0.0:
        assert claim == epsilon(bare, delta, accountant)
    elif slack < 1e-11:
        assert claim < epsilon(bare, delta, accountant) * (1 + 1e-3)


def test_slack_that_delta_cannot_hold_leaves_no_guarantee():
    spending = Counter({replace(EVENT, slack=6e-6): 10})
    assert epsilon(spending, 1e-4, "rdp") == math.inf
    assert with_slack(lambda delta: None, 1e-5, 1e-9) is None
    assert with_slack(lambda delta: math.inf, 1e-5, 1e-9) == math.inf


@pytest.mark.parametrize("z", [1.0, 20.0])
def test_it_covers_an_exact_mechanism_that_aborts_for_all_to_see(z):
    """Poisson over N clients, aborting below two: the true hockey-stick divergence, by hand.

    One dimension, clip 1, everybody but the one more at 0. Aborting is one outcome; the others'
    densities are mixtures over how many take part, given that at least two do.
    """
    clients, rate = 6, 0.5
    grid = np.linspace(-12 * z, 13 * z, 200_001)
    step = grid[1] - grid[0]

    def law(extra):
        """P[abort], and the density of the noised sum without it."""
        aborts, density = 0.0, np.zeros_like(grid)
        for others in range(clients + 1):
            weight = stats.binom.pmf(others, clients, rate)
            for joins, chance in ((0, 1 - rate), (1, rate)) if extra else ((0, 1.0),):
                if others + joins < 2:
                    aborts += weight * chance
                else:
                    density += weight * chance * stats.norm.pdf(grid, joins, z)
        return aborts, density

    (a0, p0), (a1, p1) = law(False), law(True)
    event = Event(PoissonSampled(rate, Gaussian(z)), "poisson", slack=max(a0, a1))
    for delta in (0.5, 0.6, 0.7):
        claim = epsilon({event: 1}, delta, "pld")
        for (a, p), (b, q) in (((a0, p0), (a1, p1)), ((a1, p1), (a0, p0))):
            true = max(a - math.exp(claim) * b, 0)
            true += np.maximum(p - math.exp(claim) * q, 0).sum() * step
            assert true <= delta + 1e-9
    if z == 20.0:  # without slack the claim is refuted by the abort alone
        bare = epsilon({replace(event, slack=0.0): 1}, 1e-3, "pld")
        assert a0 - math.exp(bare) * a1 > 1e-2


def test_slack_is_part_of_an_event_and_of_its_record():
    event = replace(EVENT, slack=1e-9)
    assert event != EVENT
    assert Event.from_json(event.to_json()) == event
    assert "slack" not in EVENT.to_json()
    with pytest.raises(Unaccountable, match="slack"):
        replace(EVENT, slack=1.5)


def test_slack_is_kept_where_runs_are_counted_by_participations():
    cyclic = Event(Separated(3, Gaussian(1.0)), "cyclic", "zero-out", slack=1e-9)
    apart_ = summable({cyclic: 10})
    assert sum(event.slack * count for event, count in apart_.items()) >= 10e-9
    assert epsilon({cyclic: 10}, 1e-5, "rdp") <= epsilon(apart_, 1e-5, "rdp")


def test_calibration_finds_noise_that_pays_for_slack_too():
    def event(z):
        return Event(PoissonSampled(0.1, Gaussian(z)), "poisson", ADD_REMOVE, slack=1e-8)

    z = noise_multiplier(event, 50, 2.0, 1e-5)
    bound = guarantee(Counter({event(z): 50}), 1e-5)
    assert 1.99 < bound.epsilon <= 2.0
    assert z > noise_multiplier(lambda z: replace(event(z), slack=0.0), 50, 2.0, 1e-5)
