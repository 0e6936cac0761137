"""Optimal bands: known figures, the gradient, whole multiples, and that nothing near is better."""

import numpy as np
import pytest
from lanes import every_case

from privfed.privacy.noise.factorization import UNIT, loss, optimal_bands, prefix_noise, square_root

FIGURES = [(10, 500, 0.352), (50, 500, 0.217), (10, 2000, 0.331), (100, 2000, 0.143)]


def noise(bands, rounds):
    return prefix_noise(np.array(optimal_bands(bands, rounds)), rounds)


@every_case("bands, rounds, known", FIGURES)
def test_the_noise_is_the_known_one(bands, rounds, known):
    """FACTS, section 12 B1: equal to an independent solver's; the square root's is further off."""
    assert noise(bands, rounds) == pytest.approx(known, abs=6e-4)
    assert prefix_noise(square_root(bands), rounds) > known + 5e-3


@every_case("bands, rounds", [(2, 5), (5, 30), (30, 30), (12, 200)])
def test_the_gradient_is_that_of_differences(bands, rounds):
    free = square_root(bands)[1:] * np.random.default_rng(bands).uniform(0.8, 1.1, bands - 1)
    value, gradient = loss(free, rounds)
    step = 1e-6
    numeric = [
        (loss(free + step * unit, rounds)[0] - loss(free - step * unit, rounds)[0]) / (2 * step)
        for unit in np.eye(bands - 1)
    ]
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)
    assert np.abs(gradient).max() > 1e-3
    c = np.array([1.0, *free])
    squared = prefix_noise(c, rounds) ** 2 * rounds * (rounds + 1) / 2
    assert value == pytest.approx(np.log(squared), rel=1e-12)


@pytest.mark.parametrize("rounds", [50, 2000])
def test_two_bands_are_the_best_of_a_scan(rounds):
    scanned = [loss(np.array([c]), rounds)[0] for c in np.linspace(0, 0.9999, 1001)]
    solved = loss(np.array(optimal_bands(2, rounds)[1:]), rounds)[0]
    assert solved == pytest.approx(min(scanned), abs=1e-5)
    assert solved <= min(scanned)


def test_nothing_near_is_less_noisy():
    rng = np.random.default_rng(1)
    best = np.array(optimal_bands(8, 300))
    for _ in range(50):
        near = best * np.exp(1e-3 * rng.normal(size=8))
        assert prefix_noise(near / near[0], 300) > noise(8, 300)


@every_case("bands", [1, 2, 3, 7, 20, 64])
@every_case("rounds", [1, 2, 3, 8, 20, 500])
def test_never_noisier_than_the_square_root_and_always_exact_in_integers(bands, rounds):
    coefficients = np.array(optimal_bands(bands, rounds))
    assert len(coefficients) == min(bands, rounds)
    assert coefficients[0] == 1.0
    assert (coefficients >= 0).all()
    assert (coefficients <= 1).all()
    assert (coefficients / UNIT == np.round(coefficients / UNIT)).all()
    assert UNIT == 2.0**-20
    allowed = prefix_noise(square_root(min(bands, rounds)), rounds)
    assert prefix_noise(coefficients, rounds) <= allowed
    if min(bands, rounds) > 1:
        assert prefix_noise(coefficients, rounds) < allowed - 1e-4


def test_more_bands_are_less_noisy_and_bands_beyond_the_rounds_are_dropped():
    values = [noise(bands, 40) for bands in (1, 2, 4, 8, 16, 32, 40)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(1.0)
    assert optimal_bands(90, 40) == optimal_bands(40, 40)
    assert optimal_bands(1, 40) == optimal_bands(7, 1) == (1.0,)


def test_the_same_floats_every_time():
    first = optimal_bands(10, 200)
    optimal_bands.cache_clear()
    assert optimal_bands(10, 200) == first
    assert all(type(each) is float for each in first)


def test_noise_beyond_all_numbers_is_a_large_loss_and_no_warning():
    value, gradient = loss(np.full(9, 0.9999) * np.tile([0, 1, 1], 3), 20_000)
    assert value == 1e6
    assert not gradient.any()


@every_case("bands, rounds", [(0, 5), (5, 0), (-1, -1)])
def test_at_least_one_band_and_round(bands, rounds):
    with pytest.raises(ValueError, match="at least one of each"):
        optimal_bands(bands, rounds)
