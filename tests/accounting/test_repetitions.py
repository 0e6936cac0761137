"""The secret number of candidates: its law, and draws from it, judged by chi-square both ways."""

import math
import random

import numpy as np
import pytest
from lanes import every_case
from scipy.stats import chi2

from accounting.choosing.repetitions import BITS, Repetitions
from accounting.errors import Unaccountable

LAWS = [(1.0, 24.0), (0.0, 8.0), (0.5, 5.0), (2.0, 3.0)]


def masses(law, most=4000):
    """P[K = 1], P[K = 2], … from the definition alone, in proportion and then normalised."""
    k = np.arange(1, most + 1)
    if law.shape == 0:
        logs = k * math.log1p(-law.gamma) - np.log(k)
    else:
        factors = np.log((np.arange(most) + law.shape) / (np.arange(most) + 1.0))
        logs = k * math.log1p(-law.gamma) + np.cumsum(factors)
    return np.exp(logs) / np.exp(logs).sum()


def drawn(law, count, seed=1):
    source = random.Random(seed)
    return np.array([law.number(source.getrandbits(BITS)) for _ in range(count)])


def misfit(numbers, probabilities):
    """The p-value of a chi-square test of `numbers` against P[1], P[2], …, the tail as one cell."""
    cells = int(np.argmax(probabilities[: len(probabilities)].cumsum() > 0.97))
    observed = np.array([np.sum(numbers == k) for k in range(1, cells + 1)])
    observed = np.append(observed, len(numbers) - observed.sum())
    expected = np.append(probabilities[:cells], 1 - probabilities[:cells].sum()) * len(numbers)
    return chi2.sf(((observed - expected) ** 2 / expected).sum(), cells)


@every_case("shape, mean", LAWS)
def test_the_law_has_the_mean_and_the_generating_function_that_it_states(shape, mean):
    law = Repetitions.with_mean(shape, mean)
    probabilities = masses(law)
    k = np.arange(1, len(probabilities) + 1)
    assert law.mean == pytest.approx(mean, rel=1e-9)
    assert law.mean == pytest.approx((probabilities * k).sum(), rel=1e-9)
    assert law.mean >= mean * (1 - 1e-12)
    for x in (0.0, 0.3, 0.875, 1.0):
        assert law.generating(x) == pytest.approx((probabilities * x**k).sum(), rel=1e-9, abs=1e-12)


@every_case("shape, mean", LAWS)
def test_numbers_follow_the_law_and_no_other(shape, mean):
    law = Repetitions.with_mean(shape, mean)
    numbers = drawn(law, 3000)
    assert misfit(numbers, masses(law)) > 1e-4
    assert misfit(numbers, masses(Repetitions.with_mean(shape, 1.6 * mean))) < 1e-6
    assert misfit(numbers + 1, masses(law)) < 1e-6


def test_the_ends_of_the_bits_are_the_ends_of_the_law():
    law = Repetitions.with_mean(1.0, 24.0)
    assert law.number(0) == 1
    first = masses(law)[0]
    assert law.number(int(first * 2**BITS * (1 - 1e-9))) == 1
    assert law.number(int(first * 2**BITS * (1 + 1e-9))) == 2
    assert law.number(2**BITS - 1) > 1000
    assert {Repetitions(1.0, 1.0).number(bits) for bits in (0, 2**BITS - 1)} == {1}


@every_case("shape, mean", [(50.0, 3000.0), (100.0, 10_000.0), (30.0, 10_000.0)])
def test_a_law_whose_first_masses_vanish_is_drawn_from_around_its_mode(shape, mean):
    law = Repetitions.with_mean(shape, mean)
    below = masses(law, 50_000).cumsum()
    assert below[0] < 1e-60
    for share in (0.001, 0.5, 0.999):
        assert law.number(int(share * 2**BITS)) == 1 + np.searchsorted(below, share)


@every_case(
    "make",
    [
        lambda: Repetitions(-0.1, 0.5),
        lambda: Repetitions(1.0, 0.0),
        lambda: Repetitions(1.0, 1.5),
        lambda: Repetitions.with_mean(1.0, 0.9),
        lambda: Repetitions.with_mean(1.0, math.inf),
    ],
    ids=["shape", "gamma 0", "gamma above 1", "mean below 1", "infinite mean"],
)
def test_what_is_no_law_is_refused(make):
    with pytest.raises(Unaccountable):
        make()
