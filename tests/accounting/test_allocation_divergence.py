"""Renyi divergence of random allocation: against enumeration, quadrature and closed forms."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from allocation_truth import sums
from lanes import every_case
from scipy.special import logsumexp

from accounting.bounds.allocation_divergence import (
    added_divergences,
    allocation_divergences,
    log_moments,
)
from accounting.bounds.closed import gaussian_epsilon
from accounting.bounds.random_allocation import losses


@every_case("slots", [1, 2, 7, 50, 10**6])
@every_case("z", [0.3, 1.0, 20.0])
def test_second_moments_in_closed_form(slots, z):
    exact = math.log1p(math.expm1(1 / z**2) / slots)
    assert log_moments(slots, z, 8)[2] == pytest.approx(exact, rel=1e-9, abs=1e-15)


@every_case("slots", [1, 2, 3, 4, 5])
@every_case("z", [0.4, 1.3])
def test_moments_are_what_enumeration_gives(slots, z):
    """Of a draws, k_i from slot i: multinomially, and each slot's moment is known."""
    for order in range(6):
        slot_of_each = itertools.product(range(slots), repeat=order)
        counts = (np.bincount(slot, minlength=slots) for slot in map(list, slot_of_each))
        total = sum(math.exp((k * (k - 1)).sum() / (2 * z**2)) for k in counts)
        exact = math.log(total) - order * math.log(slots)
        assert log_moments(slots, z, 5)[order] == pytest.approx(exact, rel=1e-12, abs=1e-14)


@every_case("slots, z", [(2, 0.6), (2, 1.0), (2, 3.0), (3, 1.0)])
def test_no_divergence_exceeds_the_bound(slots, z):
    total, chance = sums(slots, z, 0.16)
    ratio, weights = np.log(total / slots), np.log(chance)
    for order in (1.1, 1.5, 2.0, 2.5, 3.0, 4.0, 4.6):
        removed = logsumexp(weights + order * ratio) / (order - 1)
        withheld = logsumexp(weights + (1 - order) * ratio) / (order - 1)
        claimed = allocation_divergences(slots, z, np.array([order]))[0]
        moment = log_moments(slots, z, 5)
        assert max(removed, withheld) <= claimed * (1 + 1e-9)
        assert withheld <= added_divergences(slots, z, np.array([order]))[0] * (1 + 1e-9)
        if order == int(order):
            assert removed == pytest.approx(moment[int(order)] / (order - 1), rel=1e-6)


def test_the_remove_direction_alone_is_refuted():
    """The bound on the other direction is the larger one at small orders."""
    orders = np.array([2.0, 30.0])
    claims = allocation_divergences(10, 1.0, orders)
    alone = log_moments(10, 1.0, 30)[[2, 30]] / np.array([1.0, 29.0])
    assert claims[0] > 2 * alone[0]
    assert claims[1] == pytest.approx(alone[1], rel=1e-12)
    assert np.all(claims >= added_divergences(10, 1.0, orders))


@every_case("z", [0.5, 2.0, 100.0])
@every_case("slots", [1, 3, 1000])
def test_renyi_lies_between_none_and_the_gaussian(slots, z):
    orders = np.array(dp_accounting.rdp.RdpAccountant().orders)
    claims = allocation_divergences(slots, z, orders)
    gaussian = orders / (2 * z**2)
    assert len(claims) == len(orders)
    assert np.all(claims > 0)
    whole = orders == np.floor(orders)
    assert np.all(claims[whole] <= gaussian[whole] * (1 + 1e-9) + 1e-13)
    if slots == 1:
        assert claims[whole] == pytest.approx(gaussian[whole], rel=1e-12)


def test_renyi_costs_more_than_losses_and_less_than_no_amplification():
    orders = np.array(dp_accounting.rdp.RdpAccountant().orders)
    for slots, z, epochs in ((10, 1.0, 4), (50, 1.0, 12), (10, 3.0, 20)):
        curve = epochs * allocation_divergences(slots, z, orders)
        by_losses = losses(slots, z, 1e-3).self_compose(epochs).get_epsilon_for_delta(1e-5)
        by_renyi = dp_accounting.rdp.compute_epsilon(orders, curve, 1e-5)[0]
        assert by_losses <= by_renyi < gaussian_epsilon(z / math.sqrt(epochs), 1e-5)
