"""Calibration never exceeds its target, and wastes little."""

import math

import pytest

from accounting.calibration import _least, noise_multiplier
from accounting.errors import Unaccountable
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled


def at(q):
    return lambda z: Event(PoissonSampled(q, Gaussian(z)), "poisson")


@pytest.mark.parametrize("accountant", ["tightest", "rdp", "pld"])
@pytest.mark.parametrize(
    "q, rounds, target, delta",
    [(0.1, 100, 4.0, 1e-4), (0.01, 1000, 1.0, 1e-6), (1.0, 50, 8.0, 1e-5), (0.5, 1, 0.1, 1e-3)],
)
def test_epsilon_is_at_most_the_target_and_close_to_it(q, rounds, target, delta, accountant):
    z = noise_multiplier(at(q), rounds, target, delta, accountant)
    spent = guarantee({at(q)(z): rounds}, delta, accountant).epsilon
    assert 0.999 * target <= spent <= target
    less = guarantee({at(q)(z * 0.999): rounds}, delta, accountant).epsilon
    assert less > target


def test_more_rounds_need_more_noise():
    noise = [noise_multiplier(at(0.1), rounds, 2.0, 1e-5) for rounds in (10, 100, 1000)]
    assert noise == sorted(noise)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_target_that_noise_cannot_meet_is_refused(target):
    with pytest.raises(Unaccountable, match="epsilon"):
        noise_multiplier(at(0.1), 10, target, 1e-5)


def test_a_delta_below_an_accountants_precision_is_named():
    with pytest.raises(Unaccountable, match="use 'rdp'"):
        noise_multiplier(at(0.1), 100, 1.0, 1e-14, "pld")
    assert noise_multiplier(at(0.1), 100, 1.0, 1e-14, "tightest") > 1


def test_an_accountant_without_proof_is_refused():
    def event(z):
        return Event(PoissonSampled(0.1, Gaussian(z)), "poisson", relation="replace-one")

    with pytest.raises(Unaccountable, match="no proof"):
        noise_multiplier(event, 10, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("spent", "least"), [(7.9, 30.0), (7.9999, 3e4), (0.0, 0.375), (8.1, None)]
)
def test_few_accountings_find_the_noise_however_much_was_spent_before(spent, least):
    """Epsilon spent + 3 / z, for a target of 8."""
    asked = []

    def epsilon(z):
        asked.append(z)
        return spent + 3 / z

    found = _least(epsilon, 8.0)
    assert found == pytest.approx(least, rel=3e-5) if least else found is None
    assert len(asked) < 40
