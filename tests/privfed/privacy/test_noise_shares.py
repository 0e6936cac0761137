"""The shares of distributed noise have their distributions, to the last bit."""

import bisect
import math
from fractions import Fraction

import numpy as np
import pytest
from distributed_noise import fits, gaussian_cdf, skellam_cdf
from lanes import every_case
from scipy import stats

from privfed.core.streams import Keys
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.shares import WASTE, DiscreteGaussianShare, Layers, SkellamShare
from privfed.privacy.noise.table_sampler import (
    DistributionTable,
    FreshUniforms,
    discrete_gaussian_table,
    skellam_table,
)


def test_layers_add_up_to_the_variance_as_fractions():
    layers = Layers(7.3, 0.3, kind="discrete_gaussian")
    for clients in range(2, 30):
        base = layers.base(clients).variance
        for gone in range(layers.most_dropouts(clients) + 1):
            kept = layers.keeping(clients, gone, range(clients - gone)).values()
            total = sum(
                base + sum(layers.layer(clients, i).variance for i in range(1, count + 1))
                for count in kept
            )
            assert total == Fraction(7.3)


@every_case("variance", [0.3, 4.0, 1500.0])
def test_skellam_has_its_distribution_and_a_wrong_scale_is_rejected(variance):
    sample, spread = SkellamShare(variance).draw(Keys(None), 200_000), 3 * math.sqrt(variance) + 2
    assert fits(sample, skellam_cdf(variance), -spread, spread) > 1e-6
    assert fits(sample, skellam_cdf(variance * 1.05), -spread, spread) < 1e-6


@every_case("exact", [False, True])
@every_case("std", [2.0, 7.0, 60.0])
def test_discrete_gaussians_have_their_distribution_and_a_wrong_scale_is_rejected(std, exact):
    sample = DiscreteGaussianShare(std**2, exact).draw(Keys(None), 150_000)
    assert fits(sample, gaussian_cdf(std), -3 * std, 3 * std) > 1e-6
    assert fits(sample, gaussian_cdf(std * 1.03), -3 * std, 3 * std) < 1e-6


def test_a_table_is_the_distribution_to_192_bits():
    import mpmath

    table = discrete_gaussian_table(3.5**2)
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


class Fixed:
    """Numbers with given leading bits, and further ones of the system's."""

    def __init__(self, bits, rest=None):
        self.bits, self.given, self.asked = np.array(bits, dtype=np.uint32), rest, []

    def leading(self, count):
        part, self.bits = self.bits[:count], self.bits[count:]
        return part

    def rest(self, place):
        self.asked.append(place)
        return FreshUniforms(Keys(None)).rest(place) if self.given is None else self.given


def drawn(table, source, count):
    return np.concatenate([block.copy() for _, block in table.blocks(source, count)])


def test_further_bits_decide_where_the_leading_tie():
    """An entry that ends in the middle of a leading word takes its half of the tied draws."""
    word = 3 << 30
    table = DistributionTable(0, [(word << 160) + (1 << 159), 1 << 192], 0.0)
    tied = drawn(table, Fixed([word] * 4000), 4000)
    assert stats.binomtest(int((tied == 0).sum()), 4000).pvalue > 1e-6
    below = table.draw(Keys(None), 40_000)
    assert stats.binomtest(int((below == 0).sum()), 40_000, 0.75).pvalue > 1e-6


@every_case(
    "made, variance",
    [
        *((skellam_table, variance) for variance in (0.3, 900.0, 900.0**2, 5000.0**2)),
        *((discrete_gaussian_table, variance) for variance in (9.0, 16384.0**2)),
    ],
)
def test_each_draw_is_where_its_number_falls_among_all_192_bits(made, variance):
    """At every value of the distribution, beside it, and anywhere: by the guide and without."""
    table = made(variance)
    edges = np.unique(table.words)[:: max(1, len(table.words) // 6000)].astype(np.int64)
    near = np.concatenate([edges - 1, edges, edges + 1, [0, 2**32 - 1]]).clip(0, 2**32 - 1)
    anywhere = Keys(b"16 bytes of seed").bits(20_000) >> np.uint64(32)
    bits = np.concatenate([near, anywhere.astype(np.int64)])
    for rest in (0, 2**160 - 1):
        wanted = [
            bisect.bisect_right(table.exact, (bit << 160) + rest) + table.first
            for bit in bits.tolist()
        ]
        guided, short = Fixed(bits, rest), Fixed(bits, rest)
        assert drawn(table, guided, len(bits)).tolist() == wanted
        few = [drawn(table, short, min(5000, len(bits) - at)) for at in range(0, len(bits), 5000)]
        assert np.concatenate(few).tolist() == wanted
        tied = np.flatnonzero(np.isin(bits, table.words))
        assert guided.asked == tied.tolist()


def test_seeded_draws_are_those_of_their_64_bit_words():
    table, keys = skellam_table(50.0), Keys(b"16 bytes of seed")
    leading = np.array([below >> 128 for below in table.exact[:-1]], dtype=np.uint64)
    wanted = np.searchsorted(leading, keys.bits(50_000), side="right") + table.first
    assert np.array_equal(table.draw(keys, 50_000), wanted)


def test_exact_draws_refuse_what_they_have_no_proof_for():
    for variance in (0, 2.5, 400**2 + 1):
        with pytest.raises(ValueError, match="an integer"):
            discrete_gaussian(Keys(None), variance, 3)
    with pytest.raises(ValueError, match="coarser grid"):
        skellam_table(20001.0**2)


def kept(layers, clients, gone):
    """The variance that survivors without the colluders keep at least, over what is asked for."""
    survivors = range(gone, clients)
    base = layers.base(clients).variance
    each = [0.0, *(layers.layer(clients, i + 1).variance for i in range(layers.count(clients)))]
    own = [
        base + sum(each[: kept + 1]) for kept in layers.keeping(clients, gone, survivors).values()
    ]
    return sum(sorted(own)[: len(own) - layers.colluders]) / layers.variance


LAYERS = [Layers(100.0, 0.3), Layers(100.0, 0.3, waste=WASTE), Layers(100.0, 0.4, 2, WASTE)]


def leave_the_whole_variance(layers, clients):
    for gone in range(layers.most_dropouts(clients) + 1):
        left = kept(layers, clients, gone)
        assert left >= 1 - 1e-12
        if not layers.waste:
            assert left == pytest.approx(1.0, rel=1e-12)
        one = layers.remaining(clients, layers.layers_kept(clients, gone)).variance
        parts = layers.base(clients).variance + sum(
            layers.layer(clients, i + 1).variance for i in range(layers.layers_kept(clients, gone))
        )
        assert parts == pytest.approx(one, rel=1e-12)


@every_case("layers", LAYERS)
@every_case("clients", [5, 12, 40])
def test_layers_leave_the_whole_variance_whoever_is_gone(layers, clients):
    """Never less, and with a waste of 0 and no colluders exactly as much."""
    leave_the_whole_variance(layers, clients)


def base_three_percent_low(monkeypatch):
    real = Layers.base
    monkeypatch.setattr(Layers, "base", lambda self, n: SkellamShare(0.97 * real(self, n).variance))


def one_more_comes_off(monkeypatch):
    real = Layers.fewer
    monkeypatch.setattr(
        Layers, "fewer", lambda self, n, gone: real(self, n, gone) + (0 < gone < n - 1)
    )


def a_layer_short(monkeypatch):
    real = Layers.layers_kept
    monkeypatch.setattr(
        Layers, "layers_kept", lambda self, n, gone: max(real(self, n, gone) - 1, 0)
    )


@every_case("fault", [base_three_percent_low, one_more_comes_off, a_layer_short])
def test_layers_that_leave_less_are_noticed(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        leave_the_whole_variance(LAYERS[0], 12)
