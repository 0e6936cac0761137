"""The noise on prefix sums, by matrices."""

import numpy as np
import pytest
from lanes import every_case

from privfed.privacy.noise.factorization import (
    entry_counts,
    inverse_sums,
    prefix_noise,
    relative_noise,
    square_root,
)


def matrix(column, rounds):
    return sum(value * np.eye(rounds, k=-lag) for lag, value in enumerate(column))


def test_the_square_root_squares_to_prefix_sums():
    c = matrix(square_root(12), 12)
    np.testing.assert_allclose(c @ c, np.tril(np.ones((12, 12))), atol=1e-12)
    assert square_root(4).tolist() == [1.0, 0.5, 0.375, 0.3125]
    assert square_root(1).tolist() == [1.0]


@every_case("bands", [1, 2, 5, 40, 60])
def test_the_noise_by_matrices(bands):
    coefficients, rounds = square_root(bands), 40
    prefix = np.tril(np.ones((rounds, rounds)))
    left = prefix @ np.linalg.inv(matrix(coefficients, rounds))
    wanted = np.linalg.norm(coefficients) * np.linalg.norm(left) / np.linalg.norm(prefix)
    np.testing.assert_allclose(inverse_sums(coefficients, rounds), left[:, 0], atol=1e-12)
    assert prefix_noise(coefficients, rounds) == pytest.approx(wanted, rel=1e-12)
    doubled = relative_noise(left[:, 0], 2 * np.linalg.norm(coefficients))
    assert doubled == pytest.approx(2 * wanted, rel=1e-12)
    assert entry_counts(3).tolist() == [3.0, 2.0, 1.0]


@every_case(
    "bands, rounds, known",
    [
        (10, 1000, 0.385),
        (50, 1000, 0.210),
        (100, 1000, 0.171),
        (10, 500, 0.390),
        (100, 2000, 0.157),
    ],
)
def test_the_noise_of_the_square_root_is_the_known_one(bands, rounds, known):
    assert prefix_noise(square_root(bands), rounds) == pytest.approx(known, abs=6e-4)


def test_independent_noise_is_the_measure():
    assert prefix_noise(np.ones(1), 77) == pytest.approx(1.0, rel=1e-14)
    assert prefix_noise(square_root(9), 1) == pytest.approx(np.linalg.norm(square_root(9)))


def test_it_is_the_deviation_of_noise_that_is_drawn():
    """Prefix sums of C^-1 Z times |c|, against those of Z: 4,000 draws of 30 rounds."""
    c = square_root(6)
    z = np.random.default_rng(3).normal(size=(30, 4000))
    correlated = np.cumsum(np.linalg.solve(matrix(c, 30), z), axis=0)
    ratio = np.linalg.norm(c) * np.sqrt((correlated**2).mean() / (np.cumsum(z, axis=0) ** 2).mean())
    assert ratio == pytest.approx(prefix_noise(c, 30), rel=0.03)
    assert ratio != pytest.approx(1.1 * prefix_noise(c, 30), rel=0.03)
