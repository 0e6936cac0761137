"""Noise on the grid: the exact rounded Gaussian, from every bit pattern, at the right scale."""

from concurrent.futures import ThreadPoolExecutor
from threading import get_ident

import mpmath
import numpy as np
import pytest
import torch
from helpers import assert_normal
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case, mostly_slow
from scipy import stats

from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.clipping import clip_rows, on_grid
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.mechanisms.banded import Banded
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.privacy.noise import gaussian_on_grid as rounding
from privfed.privacy.noise.gaussian_on_grid import (
    gaussian_on_grid,
    grid_of,
    refuse_inexact,
    rounded_normal,
)
from privfed.privacy.setting import ClientShares, CohortSize, Setting

SEEDED = Streams(7, simulated=True)


def more(count):
    return np.full(count, 2**63, dtype=np.uint64)  # the middle of what 64 bits leave open


def exactly(word, scale):
    """The rounded value at the middle of the word's tail, at 60 digits."""
    with mpmath.workdps(60):
        tail = (mpmath.mpf(word >> 1) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** 64
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        rounded = int(mpmath.floor(mpmath.mpf(scale) * z + mpmath.mpf(0.5)))
    return rounded if word & 1 else -rounded


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
    st.sampled_from([0.3, 1.0, 37.5, 1e6, 2.0**30, 2.0**31.5]),
)
@settings(max_examples=60)
def test_any_bits_give_what_60_digits_give(words, scale):
    drawn_values = rounded_normal(np.array(words, dtype=np.uint64), scale, more)
    assert [int(one) for one in drawn_values] == [exactly(word, scale) for word in words]


@every_case("low", [0, 1, 2, 1000, 2**24 - 1, 2**24, 2**40, 2**62, 2**63 - 1])
@every_case("sign", [0, 1])
def test_tails_and_the_middle_too(low, sign):
    word = low << 1 | sign
    for scale in (1.0, 2.0**20, 2.0**31):
        (found,) = rounded_normal(np.array([word], dtype=np.uint64), scale, more)
        assert int(found) == exactly(word, scale)


def test_ndtri_is_as_right_as_the_proof_needs():
    rng = np.random.default_rng(0)
    tails = np.concatenate([rng.uniform(0, 0.5, 300), 10.0 ** -rng.uniform(0.31, 19, 300)])
    with mpmath.workdps(50):
        for tail in tails.tolist():
            z = -rounding.ndtri(tail)
            true = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(tail))
            assert abs(true - mpmath.mpf(float(z))) <= rounding._ERROR / 20 * (1 + z)


def test_erfinv_is_as_right_as_the_proof_needs():
    """From its least tail on, with the error that 1 - 2 tail has as a float."""
    rng, least = np.random.default_rng(0), float(rounding._CENTRAL) * 2.0**-64
    tails = np.concatenate([rng.uniform(least, 0.5, 300), least * 2.0 ** rng.uniform(0, 3, 300)])
    quantiles = torch.erfinv(1 - 2 * torch.from_numpy(tails)).numpy() * np.sqrt(2)
    with mpmath.workdps(50):
        for tail, z in zip(tails.tolist(), quantiles.tolist(), strict=True):
            true = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(tail))
            assert abs(true - z) <= rounding._ERROR / 4 * (1 + z)


def test_doubt_is_settled_by_further_bits(monkeypatch):
    """Near a boundary the fast path is never believed; both ways agree where it is."""
    words = SEEDED.at("noise").bits(3000)
    fast = rounded_normal(words, 1e4, more)
    for name in ("_TAIL", "_LIKELY"):
        monkeypatch.setattr(rounding, name, np.uint64(2**64 - 1))
    assert (rounded_normal(words, 1e4, more) == fast).all()
    monkeypatch.undo()
    # the word whose tail is a boundary's: z = 0.5 at scale 1
    with mpmath.workdps(50):
        low = int(mpmath.floor(mpmath.erfc(0.5 / mpmath.sqrt(2)) * mpmath.mpf(2) ** 63))
    word = np.array([low << 1 | 1], dtype=np.uint64)
    outcomes = {
        float(rounded_normal(word, 1.0, lambda n, bits=bits: np.full(n, bits, np.uint64))[0])
        for bits in (0, 2**64 - 1)
    }
    assert outcomes == {0.0, 1.0}
    further = SEEDED.at("noise", 9).bits(80)
    together = rounded_normal(np.repeat(word, 40), 1.0, lambda n: further[:n])
    alone = [rounded_normal(word, 1.0, lambda n, k=k: further[2 * k :][:n])[0] for k in range(40)]
    assert together.tolist() == alone
    assert set(alone) == {0.0, 1.0}


@every_case("scale", [0.0, 0.3, 1.0, 37.5, 2.0**30, 2.0**32])
def test_no_doubt_is_overlooked(scale):
    """The bound by which most draws are passed over is above the slack of each of them."""
    words = SEEDED.at("noise", 4).bits(100_000)
    words = np.concatenate([words, words >> np.arange(100_000, dtype=np.uint64) % 64])
    _, unsure = rounding._quickly(words, scale)
    doubtful = rounding._doubtful(words, *rounding._scaled_quantiles(words, scale))
    assert np.array_equal(unsure, np.flatnonzero(doubtful))
    assert scale == 0.0 or len(unsure) > 100
    _, slack = rounding._scaled_quantiles(words[words >> np.uint64(1) >= rounding._LIKELY], 1.0)
    assert rounding._MOST_SLACK / 1.1 < slack.max() < rounding._MOST_SLACK / 1.05


def test_errors_within_their_bounds_change_no_bit(monkeypatch):
    """Both quantiles may be wrong, in opposite directions, by nearly what the proof permits."""
    words, scale = SEEDED.at("noise", 6).bits(200_000), 2.0**31.9
    right = rounded_normal(words, scale, more)
    ndtri, erfinv = rounding.ndtri, torch.erfinv

    def lower(tails, out=None):
        z = ndtri(tails)
        return z + 0.9 * rounding._ERROR * (1 - z)

    def higher(x, out):
        z = erfinv(x) * np.sqrt(2)
        return out.copy_((z + 0.9 * rounding._ERROR * (1 + z)) / np.sqrt(2))

    monkeypatch.setattr(rounding, "ndtri", lower)
    monkeypatch.setattr(rounding.torch, "erfinv", higher)
    assert (rounded_normal(words, scale, more) == right).all()
    monkeypatch.setattr(rounding, "_doubtful", lambda words, *_: np.zeros(len(words), np.bool_))
    assert (rounded_normal(words, scale, more) != right).any()  # errors of this size are seen


def shifted_exactly(word, scale, shift):
    """round(scale Z - shift) at the middle of the word's tail, at 60 digits."""
    with mpmath.workdps(60):
        tail = (mpmath.mpf(word >> 1) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** 64
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail) * (1 if word & 1 else -1)
        return int(mpmath.floor(mpmath.mpf(scale) * z - shift + mpmath.mpf(0.5)))


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**20 - 1)), min_size=1, max_size=20
    ),
    st.sampled_from([0.3, 1.0, 37.5, 1e6, 2.0**30, 2.0**31.5]),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_bits_and_shifts_give_what_60_digits_give(drawn, scale, doubted):
    words = np.array([word for word, _ in drawn], dtype=np.uint64)
    shifts = np.array([part for _, part in drawn]) * 2.0**-20
    before, rounding._TAIL = rounding._TAIL, 2**64 - 1 if doubted else rounding._TAIL
    try:
        rounded = rounded_normal(words, scale, more, shifts)
    finally:
        rounding._TAIL = before
    expected = [
        shifted_exactly(int(word), scale, shift)
        for word, shift in zip(words.tolist(), shifts.tolist(), strict=True)
    ]
    assert [int(number) for number in rounded] == expected


@pytest.mark.parametrize("bits, expected", [(0, 0.0), (2**64 - 1, -1.0)])
def test_doubt_about_a_shift_is_settled_by_further_bits(bits, expected):
    """A word whose tail is the boundary's at z = 0.75 - 1/2, for a shift of 3/4."""
    with mpmath.workdps(50):
        low = int(mpmath.floor(mpmath.erfc(0.25 / mpmath.sqrt(2)) * mpmath.mpf(2) ** 63))
    word = np.array([low << 1 | 1], dtype=np.uint64)
    further = lambda n: np.full(n, bits, np.uint64)  # noqa: E731
    assert rounded_normal(word, 1.0, further, np.array([0.75])).tolist() == [expected]


def test_shifted_noise_has_the_shifted_distribution():
    shifts = np.tile([0.25, 0.75], 100_000)
    drawn_values = rounded_normal(SEEDED.at("noise", 6).bits(200_000), 0.8, more, shifts)
    values = np.arange(-4, 4)
    for shift in (0.25, 0.75):
        part = drawn_values[shifts == shift]
        below, above = values - 0.5 + shift, values + 0.5 + shift
        expected = 1e5 * (stats.norm.cdf(above / 0.8) - stats.norm.cdf(below / 0.8))
        counts = np.array([(part == value).sum() for value in values])
        likely = expected > 5
        chi = ((counts - expected) ** 2 / expected)[likely].sum()
        assert stats.chi2.sf(chi, likely.sum() - 1) > 1e-6
        unshifted = 1e5 * (
            stats.norm.cdf((values + 0.5) / 0.8) - stats.norm.cdf((values - 0.5) / 0.8)
        )
        assert ((counts - unshifted) ** 2 / unshifted)[likely].sum() > 1000


@pytest.mark.parametrize("streams", [SEEDED, Streams(0)], ids=["seeded", "secret"])
@pytest.mark.parametrize("std", mostly_slow([1e-6, 0.37, 5e4], 0.37))
def test_noise_on_the_grid_has_the_right_scale_and_no_other(streams, std):
    noise = gaussian_on_grid(streams.at("noise", 1), std, 200_000)
    grid = grid_of(std)
    assert np.array_equal(np.round(noise / grid) * grid, noise)
    assert_normal(noise, std)
    for wrong in (0.97, 1.03, 0.5):
        with pytest.raises(AssertionError, match=r"scale|KS"):
            assert_normal(wrong * noise, std)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def drawing(monkeypatch):
    """The threads that drew."""
    idents, plain = set(), rounding._quickly
    monkeypatch.setattr(
        rounding, "_quickly", lambda *given: (idents.add(get_ident()), plain(*given))[1]
    )
    return idents


def test_threads_draw_the_same_bits_and_no_number_twice(three_threads, drawing):
    keys, length, beyond = SEEDED.at("noise", 1), 60 * rounding._BLOCK + 5, 77
    together = gaussian_on_grid(keys, 0.37, length)
    assert 1 < len(drawing) <= 3
    with ThreadPoolExecutor(1) as other:  # threads that start later compute with three again
        assert other.submit(torch.get_num_threads).result() == 3
    secret = gaussian_on_grid(Keys(None), 0.37, length)
    assert_normal(secret, 0.37)
    assert len(np.unique(np.abs(secret))) > 0.99 * length  # no block is another's
    torch.set_num_threads(1)
    drawing.clear()
    assert np.array_equal(together, gaussian_on_grid(keys, 0.37, length))
    assert drawing == {get_ident()}
    part = gaussian_on_grid(keys.beginning(beyond), 0.37, length - beyond)
    assert np.array_equal(together[beyond:], part)


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_round_of_central_noise_is_drawn_by_the_threads_there_are(
    three_threads, drawing, in_parts
):
    length = 60 * rounding._BLOCK
    mechanism = CentralGaussian(clip=0.5, noise_multiplier=2.0)
    total, keys = BoundedSum(torch.zeros(length).double(), 0.5, 3), SEEDED.at("noise", 1)
    if in_parts:
        mechanism.noised(total, keys, {}, slice(0, length))
    else:
        mechanism.release(total, 1.0, keys, {})
    assert 1 < len(drawing) <= 3


def test_doubts_of_threads_are_settled_and_change_no_digits_of_others(three_threads, monkeypatch):
    """Whatever is in doubt, and whatever precision somebody else set for mpmath."""
    keys, length = SEEDED.at("noise", 1), 60 * rounding._BLOCK
    expected, settled, plain = gaussian_on_grid(keys, 0.37, length), [], rounding._exactly
    monkeypatch.setattr(
        rounding, "_doubtful", lambda words, *_: np.ones(len(words), dtype=np.bool_)
    )
    monkeypatch.setattr(
        rounding, "_exactly", lambda *given: (settled.append(len(given[0])), plain(*given))[1]
    )
    with mpmath.workdps(2):
        noise = gaussian_on_grid(keys, 0.37, length)
        assert mpmath.mp.dps == 2
    assert sum(settled) > 10
    assert np.array_equal(noise, expected)


def test_small_scales_have_the_discrete_distribution():
    drawn_values = rounded_normal(SEEDED.at("noise", 2).bits(200_000), 0.8, more)
    values = np.arange(-4, 5)
    expected = stats.norm.cdf((values + 0.5) / 0.8) - stats.norm.cdf((values - 0.5) / 0.8)
    counts = np.array([(drawn_values == value).sum() for value in values])
    rest = 200_000 * (1 - expected.sum())
    kept = expected * 200_000 > 5
    chi = ((counts - expected * 200_000) ** 2 / (expected * 200_000))[kept].sum()
    assert rest < 1
    assert stats.chi2.sf(chi, kept.sum() - 1) > 1e-6


def test_the_grid_is_a_power_of_two_far_below_the_noise():
    for std in (1e-9, 0.3, 1.0, 7.7e5):
        grid = grid_of(std)
        assert np.log2(grid) == np.round(np.log2(grid))
        assert 2.0**-31 <= grid / std <= 2.0**-30
    assert grid_of(0.0) is None
    assert (gaussian_on_grid(Keys(None), 0.0, 5) == 0).all()
    with pytest.raises(ValueError, match="scale"):
        rounded_normal(np.zeros(1, np.uint64), 2.0**40, more)


def test_many_numbers_are_rounded_as_few_are():
    words = SEEDED.at("noise", 3).bits(20_000)
    drawn_values = rounded_normal(words, 1e9, more)
    parts = [rounded_normal(part, 1e9, more) for part in np.split(words, [5, 9_000])]
    assert (drawn_values == np.concatenate(parts)).all()


@given(st.integers(0, 2**32), st.floats(1e-5, 1e3), st.floats(1e-3, 100))
@settings(max_examples=60)
def test_rows_on_the_grid_keep_their_bound_and_sum_exactly(seed, clip, z):
    torch.manual_seed(seed)
    rows = torch.randn(50, 20) * clip
    grid = grid_of(z * clip)
    bounded = on_grid(clip_rows(rows, clip), grid)
    assert bounded.bound == clip
    assert (torch.linalg.vector_norm(bounded.rows.double(), dim=1) <= clip).all()
    whole = bounded.rows.double() / grid
    assert torch.equal(whole, whole.round())
    forward = bounded.rows.double().sum(0)
    assert torch.equal(forward, bounded.rows.double().flip(0).cumsum(0)[-1])


def test_a_grid_that_is_no_power_of_two_is_a_bug():
    with pytest.raises(ValueError, match="power of two"):
        on_grid(clip_rows(torch.ones(1, 2), 1.0), 0.3)


def test_no_sign_of_nothing_leaks():
    """-0.0 + -0.0 would be -0.0: whoever saw that, knew the sign of what was hidden."""
    words = SEEDED.at("noise", 3).bits(4000)
    noise = rounded_normal(words, 0.2, more)
    assert (noise == 0).sum() > 1000
    assert not np.signbit(noise[noise == 0]).any()
    part = LocalGaussian(clip=1.0, noise_multiplier=1e6)
    ids = np.arange(2)
    tiny = torch.stack([torch.full((5000,), -1e-12), torch.full((5000,), 1e-12)])
    part = part.model_copy(update={"noise_multiplier": 1e-3})
    sent = part.bound(tiny, None, SEEDED.at("noise/client/0", 1, ids), {}).rows
    assert not torch.signbit(sent[sent == 0]).any()


def test_a_cohort_too_large_for_exact_sums_is_refused():
    refuse_inexact(1.0, 1_000_000)
    refuse_inexact(0.0, 10**9)
    for noise, size in ((1.0, 10**7), (1e-3, 10_000), (1e-40, 1)):
        with pytest.raises(Refused, match="inexact"):
            refuse_inexact(noise, size)


MECHANISMS = {
    "central": (CentralGaussian(clip=0.3, noise_multiplier=0.7), 0.7),
    "adaptive": (CentralGaussian(clip=0.3, noise_multiplier=0.7, adaptive_clip=True), 0.7),
    "banded": (Banded(clip=0.3, noise_multiplier=0.7, bands=2, toeplitz=(1.0, 0.5)), None),
    "local": (LocalGaussian(clip=0.3, noise_multiplier=0.7), 0.7),
}


@every_case("name", MECHANISMS)
def test_what_a_mechanism_sends_lies_on_the_grid_of_its_noise(name):
    """Exactness rests on it: a number between two points of the grid would show through the sum."""
    mechanism, std = MECHANISMS[name]
    mechanism = mechanism.resolved(Setting(cohort=CohortSize(20, 40), noise=ClientShares(1)))
    state = mechanism.init()
    if std is None:
        std = mechanism.std()
    bound = mechanism.encoding(state).bound if name == "adaptive" else 0.3
    grid = grid_of(std * bound)
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 70_001)))
    keys = SEEDED.at("noise/client/0", 1, np.arange(3))
    sent = mechanism.bound(rows, Layout((("delta", 70_001),)), keys, state).rows
    whole = sent / grid
    assert torch.equal(whole, whole.round())
    assert not torch.equal(whole / 2, (whole / 2).round())  # and on no coarser one
