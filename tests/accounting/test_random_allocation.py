"""Random allocation: the bound against quadrature, simulation and enumeration, both directions."""

import functools
import itertools
import math

import numpy as np
import pytest
from allocation_truth import (
    ADDED,
    REMOVED,
    points,
    sampled_delta,
    true_delta,
    true_epsilon,
    true_pair_delta,
)
from lanes import every_case, mostly_slow

from accounting.bounds import random_allocation
from accounting.bounds.closed import gaussian_epsilon, log_delta
from accounting.bounds.random_allocation import largest_loss, loss_std, losses
from accounting.bounds.spread import added, lognormal, regridded

GRID = 1e-3
DELTAS = (1e-2, 1e-5, 1e-10)


def side(distribution, direction):
    return distribution._pmf_remove if direction == REMOVED else distribution._pmf_add


def bound(slots, z, direction, at, epochs=1, grid=GRID):
    distribution = losses(slots, z, grid)
    composed = distribution.self_compose(epochs) if epochs > 1 else distribution
    return side(composed, direction).get_delta_for_epsilon(at)


def spent(slots, z, epochs=1, delta=1e-5, grid=GRID):
    distribution = losses(slots, z, grid)
    composed = distribution.self_compose(epochs) if epochs > 1 else distribution
    return composed.get_epsilon_for_delta(delta)


def test_the_quadrature_gives_closed_forms():
    for z, at in itertools.product((0.3, 1.0, 5.0), (0.0, 0.5, 3.0)):
        exact = math.exp(log_delta(at, z))
        assert true_delta(1, z, REMOVED, at) == pytest.approx(exact, rel=1e-9, abs=1e-16)
        assert true_delta(1, z, ADDED, at) == pytest.approx(exact, rel=1e-9, abs=1e-16)
        values, weights = points(z, np.array(math.exp(at)))
        assert weights.sum() == pytest.approx(1.0, rel=1e-8)
        assert weights @ values == pytest.approx(1.0, rel=1e-8)
        assert weights @ np.maximum(values - math.exp(at), 0) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("direction", [REMOVED, ADDED])
@pytest.mark.parametrize(
    ("slots", "z"),
    mostly_slow(
        [(slots, z) for slots in (2, 3) for z in (0.3, 0.7, 1.0, 2.0, 5.0)],
        *((2, 0.3), (2, 2.0), (3, 2.0)),
    ),
)
def test_the_bound_is_the_truth_and_a_little_more(slots, z, direction):
    for delta in DELTAS:
        at = true_epsilon(slots, z, direction, delta)
        assert 1 - 1e-7 <= bound(slots, z, direction, at) / delta <= 1.006


@pytest.mark.parametrize("seed", mostly_slow(range(6), 0, 1, 2))
def test_it_is_never_below_the_truth_at_random_settings(seed):
    draws = np.random.default_rng(seed)
    slots, z = int(draws.integers(2, 4)), float(np.exp(draws.uniform(math.log(0.3), math.log(5))))
    grid = float(draws.choice([1e-3, 0.0037, 0.02]))
    for direction in (REMOVED, ADDED):
        for at in draws.uniform(-2, 6, 8) / z:
            true = true_delta(slots, z, direction, float(at))
            assert bound(slots, z, direction, float(at), grid=grid) >= true * (1 - 1e-7) - 1e-15


@every_case("direction", [REMOVED, ADDED])
@every_case("z, at", [(0.6, 3.0), (0.6, 9.0), (1.0, 1.0), (1.0, 5.0), (3.0, 1.0)])
def test_two_epochs_are_the_truth_and_a_little_more(z, at, direction):
    true = true_pair_delta(z, direction, at)
    assert true * (1 - 1e-6) <= bound(2, z, direction, at, epochs=2) <= true * 1.004


SIMULATED = [
    (10, 1.0, REMOVED, 2.0, (3, 4, 5), (0, 0.2)),
    (10, 0.5, REMOVED, 5.0, (1, 2, 3), (0,)),
    (50, 1.0, REMOVED, 1.0, (2.5, 4, 5), (0, 0.15)),
    (30, 0.7, REMOVED, 2.5, (2.5, 3.5), (0, 0.1)),
    (10, 1.0, ADDED, 1.0, (-0.8, -0.3), (-0.9, -0.6)),
    (50, 1.0, ADDED, 0.5, (-0.6, -0.2), (-0.5, -0.35)),
]


@every_case("slots, z, direction, at, first, others", SIMULATED)
def test_simulation_agrees(slots, z, direction, at, first, others):
    mean, error = sampled_delta(slots, z, direction, at, first, others)
    assert error < 0.02 * mean
    claimed = bound(slots, z, direction, at)
    assert mean - 4 * error <= claimed <= 1.02 * (mean + 4 * error)


# --- known values and properties -------------------------------------------------------------


@every_case("z", [0.2, 0.5, 1.0, 4.0])
def test_one_slot_is_the_gaussian(z):
    exact = gaussian_epsilon(z, 1e-5)
    assert exact <= spent(1, z) <= exact + 2e-3


@every_case(
    "slots, z, epochs, expected",
    [(10, 1.0, 4, 3.85), (30, 1.0, 4, 2.17), (50, 1.0, 12, 2.78), (10, 0.5, 1, 7.70)],
)
def test_known_values(slots, z, epochs, expected):
    assert spent(slots, z, epochs) == pytest.approx(expected, abs=0.02)
    assert spent(slots, z, epochs) < gaussian_epsilon(z / math.sqrt(epochs), 1e-5)


@pytest.mark.parametrize("slots, z", [(2, 0.5), (10, 1.0), (50, 3.0)])
@pytest.mark.parametrize("delta", mostly_slow([1e-3, 1e-6, 1e-9], 1e-9))
def test_halving_the_grid_never_raises_epsilon(slots, z, delta):
    by_grid = [spent(slots, z, 2, delta, grid) for grid in (0.08, 0.04, 0.02, 0.01)]
    assert all(finer <= coarser + 1e-6 for coarser, finer in itertools.pairwise(by_grid))
    assert by_grid[-1] > 0


@pytest.mark.slow
def test_a_finer_fineness_changes_little(monkeypatch):
    coarse = [spent(slots, z, 4) for slots, z in ((10, 1.0), (50, 0.4), (7, 3.0))]
    monkeypatch.setattr(random_allocation, "_FINENESS", 100)
    fine = [spent(slots, z, 4) for slots, z in ((10, 1.0), (50, 0.4), (7, 3.0))]
    assert all(0 <= c - f <= 1e-3 for c, f in zip(coarse, fine, strict=True))


def test_more_noise_and_more_slots_cost_less():
    by_noise = [spent(10, z) for z in (0.3, 0.5, 0.8, 1.2, 2.0, 5.0, 20.0)]
    by_slots = [spent(slots, 1.0) for slots in (1, 2, 3, 5, 10, 33, 100, 1000)]
    for values in (by_noise, by_slots):
        assert all(more > less for more, less in itertools.pairwise(values))


@every_case("slots, z", [(2, 0.035), (10**6, 0.04), (1000, 2.0), (3, 1000.0)])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning:dp_accounting.*")
def test_extremes_are_finite_and_bounded_by_the_gaussian(slots, z):
    grid = max(largest_loss(slots, z) / 2e4, loss_std(slots, z) / 10)
    exact = gaussian_epsilon(z, 1e-6)
    assert 0 < spent(slots, z, delta=1e-6, grid=grid) <= exact + grid
    distribution = losses(slots, z, grid)
    for direction in (REMOVED, ADDED):
        assert side(distribution, direction).size < 100_000
        assert side(distribution, direction)._infinity_mass < 1e-12


def test_largest_loss_is_where_the_distribution_ends():
    for slots, z in ((2, 0.5), (10, 1.0), (50, 4.0)):
        distribution = losses(slots, z, GRID)
        ends = [
            abs(place) * GRID
            for part in (distribution._pmf_remove, distribution._pmf_add)
            for place in (part._lower_loss, part._lower_loss + part.size - 1)
        ]
        assert largest_loss(slots, z) == pytest.approx(max(ends), rel=0.05)
        assert loss_std(slots, z) == pytest.approx(
            min(1.0, math.sqrt(math.expm1(1 / z**2) / slots))
        )


# --- rows of any client ----------------------------------------------------------------------


@functools.cache
def plane(z):
    axis = np.linspace(-9 * z, 9 * z, 1201)
    density = np.exp(-(axis**2) / (2 * z**2))
    return axis, np.multiply.outer(density / density.sum(), density / density.sum())


@every_case("row", ["short", "none", "turned", "adaptive"])
def test_no_client_of_two_slots_exceeds_it(row):
    z = 0.8
    axis, chance = plane(z)
    first, second = axis[:, None], axis[None, :]
    x1 = 0.5 if row == "short" else 1.0
    rules = {
        "short": 0.3,
        "none": 0.0,
        "turned": -1.0,
        "adaptive": np.where(first > 0.3, 1.0, -0.4),
    }
    x2 = rules[row]
    l1 = (first * x1 - x1**2 / 2) / z**2
    l2 = (second * x2 - x2**2 / 2) / z**2
    ratio = (np.exp(l1) + np.exp(l2)) / 2
    for at in (0.1, 0.5, 1.5, 3.0):
        removed = float((chance * np.maximum(ratio - math.exp(at), 0)).sum())
        withheld = float((chance * np.maximum(1 - math.exp(at) * ratio, 0)).sum())
        assert removed <= bound(2, z, REMOVED, at) * (1 + 1e-3)
        assert withheld <= bound(2, z, ADDED, at) * (1 + 1e-3)
        if row == "turned":
            assert removed == pytest.approx(bound(2, z, REMOVED, at), rel=3e-3)


# --- what is wrong is below the truth --------------------------------------------------------


def test_replacing_a_row_is_not_covered():
    """Rows 1 and -1 at the same secret slot: at epsilon 1 delta is over twice what is claimed."""
    z = 1.0
    axis, chance = plane(z)
    plus, minus = (
        np.add.outer(np.exp((sign * axis - 0.5) / z**2), np.exp((sign * axis - 0.5) / z**2)) / 2
        for sign in (1, -1)
    )
    true = float((chance * np.maximum(plus - math.e * minus, 0)).sum())
    assert true > 2 * bound(2, z, REMOVED, 1.0)


def test_two_releases_of_a_cohort_are_no_two_allocations():
    """They share the slot: 2.83 claimed, 4.29 true."""
    assert spent(10, 1.0, epochs=2) == pytest.approx(2.83, abs=0.02)
    assert spent(10, 1.0 / math.sqrt(2)) == pytest.approx(4.29, abs=0.02)


def test_a_slot_drawn_once_for_all_epochs_is_charged_as_one():
    """At z / sqrt(k); fresh slots are worth far more: 7.70 against 3.85 at four epochs."""
    assert spent(10, 0.5) == pytest.approx(7.70, abs=0.02)
    assert spent(10, 1.0, epochs=4) < 0.55 * spent(10, 0.5)


def test_masses_moved_without_their_mean_are_refuted():
    """To the lower point of the grid, or to the upper: one direction each is below the truth."""
    z, grid = 1.0, 0.25
    ratio = functools.reduce(lambda x, y: added(x, y, grid / 8), [half(z, grid / 8)] * 2)
    places = ratio.step * (ratio.first + np.arange(len(ratio.masses)))

    def delta(points, direction, at=0.5):
        if direction == REMOVED:
            return float(ratio.masses @ np.maximum(np.exp(points) - math.exp(at), 0))
        return float(ratio.masses @ np.maximum(1 - np.exp(at + points), 0))

    true = {direction: true_delta(2, z, direction, 0.5) for direction in (REMOVED, ADDED)}
    assert delta(np.floor(places / grid) * grid, REMOVED) < true[REMOVED]
    assert delta(np.ceil(places / grid) * grid, ADDED) < true[ADDED]
    spread = regridded(ratio, grid)
    above = np.maximum(np.exp(spread.logarithms) - math.exp(0.5), 0)
    below = np.maximum(1 - np.exp(0.5 + spread.logarithms), 0)
    assert true[REMOVED] < spread.masses @ above < true[REMOVED] * 1.1
    assert true[ADDED] < spread.masses @ below < true[ADDED] * 1.1


def half(z, step):
    return lognormal(-0.5 / z**2 - math.log(2), 1 / z, step)


def test_a_wrong_share_of_slots_or_a_forgotten_direction_is_refuted():
    """One slot more than there are, and Q's masses where P's belong."""
    at = true_epsilon(3, 1.0, REMOVED, 1e-5)
    assert bound(4, 1.0, REMOVED, at) < 0.9e-5
    assert bound(3, 1.0, ADDED, at) < 0.5e-5
    at = true_epsilon(3, 1.0, ADDED, 1e-5)
    assert bound(4, 1.0, ADDED, at) < 0.9e-5
