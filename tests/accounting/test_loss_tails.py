"""Tails that are summed once give the library's epsilon at every delta, to the last bit."""

import math

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as library
from lanes import FULL, every_case

from accounting.bounds import loss_tails
from accounting.bounds.loss_tails import LossTails

DELTAS = (*np.logspace(-15, -0.01, 60), 1e-30, 1e-12, 0.5, 0.999)


def sampled(noise, rate, times=1, grid=1e-3):
    once = library.from_gaussian_mechanism(
        standard_deviation=noise, sampling_prob=rate, value_discretization_interval=grid
    )
    return once.self_compose(times) if times > 1 else once


DISTRIBUTIONS = {
    "few": sampled(1.0, 0.1, 30),
    "symmetric": sampled(2.0, 1.0),
    "quiet": sampled(0.05, 0.3, 3, 1e-1),
    "loud": sampled(30.0, 0.01, 1000, 1e-4),
    "two kinds": sampled(1.0, 0.1, 4).compose(sampled(0.8, 0.02, 9)),
    "most is lost": library.from_privacy_parameters(
        library.common.DifferentialPrivacyParameters(1.0, 0.3)
    ),
    "a list of few": library.from_laplace_mechanism(1.0, value_discretization_interval=0.5),
}


@every_case("name", DISTRIBUTIONS)
def test_epsilons_are_the_librarys_to_the_last_bit(name):
    distribution = DISTRIBUTIONS[name]
    tails = LossTails(distribution)
    with np.errstate(all="ignore"):
        for delta in DELTAS:
            assert tails.epsilon(delta) == distribution.get_epsilon_for_delta(delta), delta


def test_the_worse_direction_counts_whichever_it_is():
    distribution = DISTRIBUTIONS["few"]
    removed, added = distribution._pmf_remove, distribution._pmf_add
    assert removed.get_epsilon_for_delta(1e-5) > added.get_epsilon_for_delta(1e-5)
    for pair in ((removed, added), (added, removed)):
        tails = LossTails(library.PrivacyLossDistribution(*pair))
        assert tails.epsilon(1e-5) == removed.get_epsilon_for_delta(1e-5)


@FULL
def test_at_an_epsilon_that_is_a_loss_of_the_table_too(full):
    """There the last bit of a logarithm decides where the tail ends."""
    distribution = DISTRIBUTIONS["few"]
    tails = LossTails(distribution)
    for step in range(1, 400, 1 if full else 9):
        delta = float(distribution.get_delta_for_epsilon(step * 1e-2))
        for near in (np.nextafter(delta, 0), delta, np.nextafter(delta, 1)):
            assert tails.epsilon(near) == distribution.get_epsilon_for_delta(near), step


def test_without_these_sums_the_library_is_asked(monkeypatch):
    monkeypatch.setattr(loss_tails, "_LEAST_LOSS", 2.0)
    distribution = DISTRIBUTIONS["few"]
    tails = LossTails(distribution)
    for delta in DELTAS:
        assert tails.epsilon(delta) == distribution.get_epsilon_for_delta(delta), delta
    assert math.isfinite(tails.epsilon(1e-5))
