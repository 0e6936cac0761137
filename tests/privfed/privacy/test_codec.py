"""The modular codec: bounds that hold for every row, means that are right, sums that never wrap."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.privacy.codec import Codec

STREAMS = Streams(4, simulated=True)


def rows(seed, count, codec, norm=1.0):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(count, codec.length))
    return found / np.linalg.norm(found, axis=1, keepdims=True) * codec.clip * norm


@given(
    st.integers(1, 200),
    st.sampled_from([1e-4, 0.01, 0.3, 1.0, 7.0]),
    st.integers(0, 10**6),
    st.sampled_from(["any", "one coordinate", "all alike", "halves"]),
)
@settings(max_examples=150)
def test_no_encoded_row_is_longer_than_the_proven_bound(length, step, seed, shape):
    codec = Codec(clip=1.0, step=step, length=length, bits=62)
    (row,) = rows(seed, 1, codec)
    if shape == "one coordinate":
        row = np.eye(length)[seed % length]
    elif shape == "all alike":
        row = np.full(length, length**-0.5)
    elif shape == "halves":  # where rounding moves most
        row = (np.floor(row / step) + 0.5) * step
        row *= min(1.0, 1.0 / np.linalg.norm(row))
    whole = codec.encode(row, Keys(None))
    assert np.linalg.norm(whole.astype(float)) <= codec.bound
    assert np.abs(whole).max() <= codec.largest
    assert np.abs(codec.decode(whole) - row).max() <= step * (1 + 1e-9)


def test_rounding_is_right_on_average_and_its_error_is_as_stated():
    """The mean of n rows is off by at most about step / (2 sqrt(n)) per coordinate."""
    codec = Codec(clip=1.0, step=0.01, length=50, bits=32)
    sent = rows(0, 400, codec, norm=0.9)
    total = sum(codec.encode(row, Keys(None)) for row in sent)
    error = codec.decode(total) / 400 - sent.mean(0)
    assert np.sqrt((error**2).mean()) <= 0.01 / np.sqrt(6 * 400) * 1.5
    assert abs(error.mean()) < 4 * 0.01 / np.sqrt(6 * 400 * 50)


@given(st.integers(2, 30), st.integers(9, 62), st.integers(0, 10**6))
@settings(max_examples=80)
def test_sums_within_capacity_never_wrap(count, bits, seed):
    try:
        codec = Codec.finest(1.0, math.inf, 20, bits, count, 2.0**30)
    except Refused:
        assert count * Codec(1.0, 1.0, 20, bits).largest >= 2 ** (bits - 1)
        return
    whole = [codec.encode(row, Keys(None)) for row in rows(seed, count, codec)]
    summed = np.zeros(20, dtype=np.uint64)
    for one in whole:
        summed = (summed + codec.wrap(one)) & np.uint64(2**bits - 1)
    assert np.array_equal(codec.unwrap(summed), sum(whole))


@every_case("bits", [8, 16, 32, 40, 64])
def test_every_residue_is_lifted_to_the_nearest_number(bits):
    codec = Codec(clip=1.0, step=1.0, length=5, bits=bits)
    edge = 2 ** (bits - 1)
    numbers = np.array([0, 1, -1, edge - 1, -edge], dtype=np.int64)
    assert np.array_equal(codec.unwrap(codec.wrap(numbers)), numbers)


@every_case("count", [1, 7, 32, 33, 1000])
@every_case("bits", [16, 24, 32])
def test_the_finest_step_is_the_finest_that_cannot_wrap(count, bits):
    codec = Codec.finest(1.0, math.inf, 10, bits, count, 2.0**30)
    assert count * codec.largest < 2 ** (bits - 1)
    finer = Codec(1.0, codec.step / 2, 10, bits)
    assert count * finer.largest >= 2 ** (bits - 1) or finer.bound > 2.0**30


@every_case("number", [np.inf, -np.inf, np.nan, 1e150, 2.0**47])
def test_numbers_beyond_whole_ones_of_64_bits_are_never_encoded(number):
    """A row without a bound or a reach, too: cast, they would be other numbers."""
    codec = Codec(np.inf, 1.0, 2, 62)
    with pytest.raises(ValueError, match=r"norm nan|not within"):
        codec.encode(np.array([0.0, number]), Keys(b"k" * 16))
    assert codec.encode(np.array([0.0, -(2.0**46)]), Keys(b"k" * 16)).tolist() == [0, -(2**46)]


def test_a_capacity_that_would_wrap_is_refused_with_the_bits_that_do():
    with pytest.raises(Refused, match=r"secure.bits is 8, but sums of 1000 rows"):
        Codec.finest(1.0, math.inf, 10, 8, 1000, 2.0**30)


@every_case(
    "row",
    [np.ones(3), np.full(4, np.nan), np.full(4, np.inf), np.full(4, 0.6), np.ones((2, 4)) / 9],
    ids=["short", "nan", "inf", "beyond the clip", "two rows"],
)
def test_what_has_no_bound_is_never_encoded(row):
    with pytest.raises(ValueError, match="the row has"):
        Codec(clip=1.0, step=0.1, length=4, bits=32).encode(row, Keys(None))


def test_a_fraction_finer_than_the_first_bits_of_a_coin_is_kept():
    """3 in 2^17 rounds up: 2^-16 by the first 16 bits, and half as often again where these tie."""
    codec = Codec(clip=1e6, step=1.0, length=1 << 20, bits=62)
    row = np.full(codec.length, 3.0 * 2.0**-17)
    up = sum(int(codec.encode(row, Keys(None)).sum()) for _ in range(40))
    assert abs(up - 960) < 5 * math.sqrt(960)  # without the ties 640, always up at one 1280
    assert codec.encode(-row, Keys(None)).min() >= -1


@every_case("step", [1.0, 0.3, 2.0**-30])
def test_whole_steps_are_sent_as_they_are(step):
    codec = Codec(clip=1e4, step=step, length=20_000, bits=62)
    whole = np.arange(-10_000, 10_000) % 71 - 35
    assert np.array_equal(codec.encode(np.round(whole * step, 40), STREAMS.at("noise", 1)), whole)
    next_to_zero = np.full(codec.length, -1e-30 * step)
    assert not codec.encode(next_to_zero, Keys(None)).any()
