"""The shares of distributed noise have their distributions, to the last bit."""

import math

import numpy as np
import pytest
from distributed_noise import fits, gaussian_cdf, skellam_cdf
from scipy import stats

from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.shares import DiscreteGaussianShare, SkellamShare
from privfed.privacy.noise.table_sampler import (
    DistributionTable,
    discrete_gaussian_table,
    skellam_table,
)
from privfed.streams import Keys


@pytest.mark.parametrize("variance", [0.3, 4.0, 1500.0])
def test_skellam_has_its_distribution_and_a_wrong_scale_is_rejected(variance):
    sample, spread = SkellamShare(variance).draw(Keys(None), 200_000), 3 * math.sqrt(variance) + 2
    assert fits(sample, skellam_cdf(variance), -spread, spread) > 1e-6
    assert fits(sample, skellam_cdf(variance * 1.05), -spread, spread) < 1e-6


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("deviation", [2.0, 7.0, 60.0])
def test_discrete_gaussians_have_their_distribution_and_a_wrong_scale_is_rejected(deviation, exact):
    sample = DiscreteGaussianShare(deviation, exact).draw(Keys(None), 150_000)
    assert fits(sample, gaussian_cdf(deviation), -3 * deviation, 3 * deviation) > 1e-6
    assert fits(sample, gaussian_cdf(deviation * 1.03), -3 * deviation, 3 * deviation) < 1e-6


def test_a_table_is_the_distribution_to_192_bits():
    import mpmath

    table = discrete_gaussian_table(3.5)
    with mpmath.workdps(80):
        weights = [
            mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(3.5) ** 2)) for k in range(900)
        ]
        total = weights[0] + 2 * sum(weights[1:])
        for k in (-9, -1, 0, 4):
            below = sum(weights[abs(j)] for j in range(-899, k + 1)) / total
            assert (
                abs(mpmath.mpf(table.exact[k - table.first]) / 2**192 - below)
                < mpmath.mpf(2) ** -150
            )
        bessel = [mpmath.besseli(k, 7) * mpmath.exp(-7) for k in range(200)]
        found = skellam_table(7.0)
        for k in (-5, 0, 3):
            below = sum(bessel[abs(j)] for j in range(-199, k + 1))
            assert (
                abs(mpmath.mpf(found.exact[k - found.first]) / 2**192 - below)
                < mpmath.mpf(2) ** -100
            )
    assert table.total_variation < 1e-45
    assert found.total_variation < 1e-40


def test_further_bits_decide_where_64_tie():
    """An entry that ends in the middle of a 64-bit word takes its half of the tied draws."""
    word = 3 << 62
    exact = [(word << 128) + (1 << 127), 1 << 192]
    words = np.array([word, 2**64 - 1], dtype=np.uint64)
    table = DistributionTable(0, words, exact, 0.0)

    class Tied(Keys):
        def bits(self, count):
            if count == 2:  # the further ones
                return super().bits(count)
            return np.full(count, word, dtype=np.uint64)

        def derived(self, what):
            return Keys(None)

    drawn = table.draw(Tied(None), 4000)
    assert stats.binomtest(int((drawn == 0).sum()), 4000).pvalue > 1e-6
    below = DistributionTable(0, words, exact, 0.0).draw(Keys(None), 40_000)
    assert stats.binomtest(int((below == 0).sum()), 40_000, 0.75).pvalue > 1e-6


def test_exact_draws_refuse_what_they_have_no_proof_for():
    for variance in (0, 2.5, 400**2 + 1):
        with pytest.raises(ValueError, match="whole number"):
            discrete_gaussian(Keys(None), variance, 3)
    with pytest.raises(ValueError, match="coarser grid"):
        skellam_table(5001.0**2)
