"""Randomness depends on its key alone, and private streams on the operating system alone."""

import os

import numpy as np
import pytest
from helpers import assert_normal
from lanes import every_case
from scipy import stats

from privfed.core.streams import Streams

SEEDED, SECRET = Streams(7, simulated=True), Streams(7)


def test_the_same_key_gives_the_same_draws_and_another_key_others():
    def draw(streams, *key):
        return streams.at(*key).bits(4).tolist()

    assert draw(SEEDED, "init", 3) == draw(Streams(7, simulated=True), "init", 3)
    keys = [("init", 3), ("init", 4), ("shuffle", 3), ("noise", 3), ("noise/0", 3), ("cohort", 3)]
    assert len({tuple(draw(SEEDED, *key)) for key in keys}) == len(keys)
    assert draw(SEEDED, "init", 3) != draw(Streams(8, simulated=True), "init", 3)


def test_no_two_pairs_of_stream_and_seed_collide():
    """A name that ends in a digit is not another stream's round."""
    assert SEEDED.at("noise/1", 2).seed != SEEDED.at("noise", 12).seed
    assert Streams(1, True).at("init", 23).seed != Streams(12, True).at("init", 3).seed


@every_case("stream", ["noise", "noise/0", "noise/client/0", "cohort"])
def test_private_streams_read_the_operating_system_unless_simulated(stream, monkeypatch):
    assert SECRET.at(stream, 1).seed is None
    assert SEEDED.at(stream, 1).seed is not None
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (asked.append(n), real(n))[1])
    first, second = SECRET.at(stream, 1).normal(8), SECRET.at(stream, 1).normal(8)
    assert asked == [64, 64]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("count", [64, 1000])
def test_many_words_expand_a_new_key_for_each_call(count, monkeypatch):
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (asked.append(n), real(n))[1])
    first, second = SECRET.at("noise", 1).bits(count), SECRET.at("noise", 1).bits(count)
    assert asked == [32, 32]
    assert not set(first.tolist()) & set(second.tolist())


def test_expanded_words_are_uniform_and_repeat_no_block():
    words = SECRET.at("noise", 1).bits(1 << 17)
    blocks = words.reshape(-1, 2)
    assert len(np.unique(blocks, axis=0)) == len(blocks)
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    of_bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(0)
    assert (np.abs(of_bits - len(words) / 2) < 6 * np.sqrt(len(words) / 4)).all()


def test_a_private_stream_has_no_seeded_generator():
    with pytest.raises(ValueError, match="private"):
        SECRET.at("noise").generator()


@pytest.mark.parametrize("streams", [SEEDED, SECRET])
def test_normals_are_normal_far_into_the_tails(streams):
    sample = streams.at("noise").normal(400_000)
    assert_normal(sample, 1.0)
    assert np.isfinite(sample).all()
    beyond = int((np.abs(sample) > 4).sum())
    assert stats.binomtest(beyond, len(sample), 2 * stats.norm.sf(4)).pvalue > 1e-6
    with pytest.raises(AssertionError):
        assert_normal(sample * 1.02, 1.0)


@every_case("rate", [0.0, 1e-3, 0.3, 1.0])
def test_coins_have_their_bias(rate):
    draws = SECRET.at("cohort").bernoulli(rate, 100_000)
    assert stats.binomtest(int(draws.sum()), len(draws), rate).pvalue > 1e-6


def test_a_clients_words_do_not_depend_on_who_else_is_asked():
    ids = np.arange(20)
    all_words = SEEDED.at("shuffle", 2, ids).per_client(5, salt=1)
    some = SEEDED.at("shuffle", 2, ids[[3, 11]]).per_client(5, salt=1)
    np.testing.assert_array_equal(some, all_words[[3, 11]])
    longer = SEEDED.at("shuffle", 2, ids).per_client(9, salt=1)
    np.testing.assert_array_equal(longer[:, :5], all_words)
    assert len(np.unique(all_words)) == all_words.size
    assert not np.array_equal(all_words, SEEDED.at("shuffle", 2, ids).per_client(5, salt=2))


def test_words_per_client_are_uniform_along_and_across_clients():
    words = SEEDED.at("shuffle", 1, np.arange(500)).per_client(400)
    units = words / 2.0**64
    assert stats.kstest(units.ravel(), "uniform").pvalue > 1e-6
    for axis in (0, 1):
        means = units.mean(axis=axis)
        assert stats.kstest((means - 0.5) * np.sqrt(12 * units.shape[axis]), "norm").pvalue > 1e-6


@every_case("keys", [SEEDED.at("noise", 1), Streams(7, key=b"k" * 32).at("matrix", 1)])
@every_case("place", [0, 1, 2, 3, 4, 5, 17, 990])
def test_keys_that_begin_later_give_the_same_words_from_there(keys, place):
    words = keys.bits(1001)
    assert np.array_equal(keys.beginning(place).bits(1001 - place), words[place:])
    assert np.array_equal(keys.beginning(place).beginning(1).bits(3), words[place + 1 : place + 4])
    near = np.array([7, 9])
    further = keys.beginning(place).further_at(near)
    assert np.array_equal(further, keys.further_at(near + place))
    assert len({*further.ravel().tolist(), *words.tolist()}) == 4 + len({*words.tolist()})


def test_secret_keys_that_begin_later_draw_afresh():
    keys = SECRET.at("noise", 1).beginning(3)
    assert not np.array_equal(keys.bits(2), keys.bits(2))
    assert not np.array_equal(keys.further_at(np.array([0])), keys.further_at(np.array([0])))
