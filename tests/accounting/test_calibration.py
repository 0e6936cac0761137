"""Calibration never exceeds its target, and wastes little."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from lanes import every_case, mostly_slow

from accounting import accountants, calibration
from accounting.bounds.closed import gaussian_epsilon
from accounting.calibration import noise_multiplier
from accounting.central_limit import noise_at, precision, precision_within
from accounting.errors import Unaccountable
from accounting.events import REPLACE_ONE, ZERO_OUT, Event
from accounting.guarantee import guarantee
from accounting.least_noise import bracketed, least_noise
from accounting.noises import DiscreteGaussians, Gaussian, Skellam
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)


def at(q):
    return lambda z: Event(PoissonSampled(q, Gaussian(z)), "poisson")


@pytest.mark.parametrize("accountant", ["tightest", "rdp", "pld"])
@pytest.mark.parametrize(
    "q, rounds, target, delta",
    mostly_slow(
        [(0.1, 100, 4.0, 1e-4), (0.01, 1000, 1.0, 1e-6), (1.0, 50, 8.0, 1e-5), (0.5, 1, 0.1, 1e-3)],
        *[(0.1, 100, 4.0, 1e-4), (1.0, 50, 8.0, 1e-5)],
    ),
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


@every_case("target", [0.0, -1.0, math.inf, math.nan])
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


@every_case(("spent", "least"), [(7.9, 30.0), (7.9999, 3e4), (0.0, 0.375), (8.1, None)])
def test_few_accountings_find_the_noise_however_much_was_spent_before(spent, least):
    """Epsilon spent + 3 / z, for a target of 8."""
    asked = []

    def epsilon(z):
        asked.append(z)
        return spent + 3 / z

    noise_multiplier = bracketed(epsilon, 8.0)
    assert noise_multiplier == pytest.approx(least, rel=3e-5) if least else noise_multiplier is None
    assert len(asked) < 40


def cut(cap):
    return lambda z: Event(TruncatedPoisson(0.03, cap, 1000, Gaussian(z)), "truncated")


KINDS = {
    "a few rounds": (at(0.02), 20, 2.0, 1e-5),
    "the default run": (at(0.3), 120, 4.0, 1e-4),
    "many rounds": (at(0.01), 3000, 8.0, 1e-6),
    "one round": (at(0.5), 1, 0.1, 1e-3),
    "little privacy": (at(0.3), 20, 100.0, 1e-3),
    "everybody": (at(1.0), 50, 8.0, 1e-5),
    "often cut": (cut(35), 200, 3.0, 1e-5),
    "seldom cut": (cut(60), 200, 3.0, 1e-5),
    "fixed size": (
        lambda z: Event(WithoutReplacement(50, 500, Gaussian(z / 2)), "fixed_size", REPLACE_ONE),
        100,
        4.0,
        1e-5,
    ),
    "cyclic": (lambda z: Event(Separated(10, Gaussian(z)), "cyclic", ZERO_OUT), 100, 4.0, 1e-5),
    "buffers": (
        lambda z: Event(BufferedToeplitz((0.9,), (0.1,), 10, Gaussian(z)), "cyclic", ZERO_OUT),
        100,
        4.0,
        1e-5,
    ),
    "allocation": (
        lambda z: Event(RandomAllocation(10, 1, Gaussian(z)), "allocation", ZERO_OUT),
        100,
        4.0,
        1e-5,
    ),
    "several sites": (
        lambda z: Event(SeveralSites(0.1, 3, Gaussian(z)), "poisson"),
        100,
        4.0,
        1e-5,
    ),
    "Skellam": (
        lambda z: Event(PoissonSampled(0.1, Skellam((300 * z) ** 2, 300, 3000)), "poisson"),
        100,
        4.0,
        1e-5,
    ),
    "discrete Gaussians": (
        lambda z: Event(DiscreteGaussians(30 * z, 100, 300, 3000, 100), "full", ZERO_OUT),
        20,
        4.0,
        1e-5,
    ),
    "aborts": (
        lambda z: Event(PoissonSampled(0.1, Gaussian(z)), "poisson", slack=1e-9),
        100,
        4.0,
        1e-5,
    ),
}
"""Events as functions of noise, rounds, epsilon and delta."""


@pytest.fixture
def accountings(monkeypatch):
    """The distinct accountings that calibration asks for: by what, and of which noise."""
    asked = set()

    def counted(spending, delta, accountant):
        bound = accountants.epsilon(spending, delta, accountant)
        if bound is not None:
            asked.add((accountant, frozenset(spending.items())))
        return bound

    monkeypatch.setattr(calibration, "accountant_epsilon", counted)
    return asked


DEAR = ("little privacy", "many rounds", "seldom cut")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in DEAR else k for k in KINDS]
)
def test_few_accountings_find_the_least_noise(kind, accountings):
    """One of them is by the accountant that is less tight, where there are two."""
    event, rounds, target, delta = KINDS[kind]
    z = noise_multiplier(event, rounds, target, delta)
    assert len(accountings) <= 7
    assert guarantee({event(z): rounds}, delta).epsilon <= target
    less = z * (1 - 3e-5)
    assert guarantee({event(less): rounds}, delta).epsilon > target * (1 - 1e-7)


def test_the_default_run_takes_three_accountings_and_a_closed_form_one(accountings):
    event, rounds, target, delta = KINDS["the default run"]
    noise_multiplier(event, rounds, target, delta)
    assert len(accountings) == 4  # one by RDP
    accountings.clear()
    event, rounds, target, delta = KINDS["everybody"]
    noise_multiplier(lambda z: replace(event(z), release=Gaussian(z)), rounds, target, delta)
    assert len(accountings) == 2


def test_noise_after_earlier_runs_takes_as_few(accountings):
    event, rounds, _, delta = KINDS["the default run"]
    prior = {event(3.0): 100}
    z = noise_multiplier(event, rounds, 8.0, delta, prior=prior)
    assert len(accountings) <= 6
    together = Counter(prior) + Counter({event(z): rounds})
    assert 0.9999 * 8.0 < guarantee(together, delta).epsilon <= 8.0


@pytest.mark.parametrize("step", [0.01, 1e-4])
def test_noise_is_within_the_target_where_epsilon_falls_in_steps(step):
    """Then no correction of a guess settles, and the least noise is bracketed."""
    event, rounds, target, delta = KINDS["everybody"]

    def spent(z):
        smooth = accountants.epsilon({event(z): rounds}, delta, "pld")
        return math.ceil(smooth / step - 1e-9) * step

    z = least_noise(spent, target - step / 2, delta, lambda z: {event(z): rounds})
    assert spent(z) <= target - step / 2 < spent(z * (1 - 3e-5))


@pytest.mark.parametrize(
    "wrong", [0.3, *(pytest.param(w, marks=pytest.mark.slow) for w in (1e-3, 30.0, 1e3))]
)
def test_a_wrong_guess_costs_accountings_and_no_privacy(wrong):
    event, rounds, target, delta = KINDS["the default run"]

    def spent(z):
        return accountants.epsilon({event(z): rounds}, delta, "rdp")

    z = least_noise(spent, target, delta, lambda z: {event(z * wrong): rounds})
    assert spent(z) <= target < spent(z * (1 - 3e-5))


def test_noise_beyond_the_largest_is_none():
    event, rounds, _, delta = KINDS["everybody"]
    assert least_noise(lambda z: 9.0, 8.0, delta, lambda z: {event(z): rounds}) is None
    assert least_noise(lambda z: math.inf, 8.0, delta, lambda z: {event(z): rounds}) is None


@every_case(("epsilon", "delta"), [(0.01, 1e-9), (4.0, 1e-5), (50.0, 1e-3)])
def test_the_precision_of_a_gaussian_is_told_by_its_epsilon(epsilon, delta):
    z = precision_within(epsilon, delta) ** -0.5
    assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-6)


def test_precisions_add_up_and_those_of_all_gaussians_are_exact():
    event = KINDS["everybody"][0]
    alone = replace(event(2.0), release=Gaussian(2.0))
    assert precision({alone: 8}) == pytest.approx(2.0)
    assert precision({event(2.0): 8, alone: 8}) == pytest.approx(4.0)
    assert precision({at(0.1)(2.0): 100}) == pytest.approx(math.expm1(0.25))
    assert precision({at(0.1)(0.0): 1}) == math.inf
    assert noise_at(2.0, lambda z: {replace(alone, release=Gaussian(z)): 8}) == pytest.approx(2.0)
    assert noise_at(1e-30, lambda z: {replace(alone, release=Gaussian(z)): 8}) == pytest.approx(1e6)
