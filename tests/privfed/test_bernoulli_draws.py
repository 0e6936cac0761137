"""Every coin is True for exactly the words that its rate allows; draws take the smallest words."""

import re
import sys
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from fixed_draws import SAMPLE, assert_rate, dealt
from helpers import Rounds, set_fields
from lanes import every_case

from attacks.updates.simple import SignFlip
from privfed.auditing.canaries import clients as canaries
from privfed.auditing.canaries.clients import Canaries
from privfed.client.byzantine import Attackers
from privfed.client.dp_sgd import DpSgd
from privfed.core import streams
from privfed.core.streams import Keys, Streams
from privfed.privacy import codec as rounding_module
from privfed.privacy.codec import Codec
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.sampling import samplers
from privfed.sampling.availability import Daily
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import BySize, CappedPoisson, Cyclic, FixedSize, Poisson
from privfed.secure.limits import SENDS, Leaves, leaving

SECRET = Streams(3, key=bytes(32))
IDS = np.arange(4)
SHARES = [(1, 3), (2, 3), (1, 10), (1, 2), (9, 10), (10, 10), (7, 10**6)]
"""Clients wanted, of how many: rates below, at and above what 53 bits can tell."""


def members(sampler, clients, sizes=(1, 1, 1, 1)):
    """Which clients `sampler` draws."""
    cohort = sampler.sample(1, clients, Population.of(np.array(sizes)), SECRET)
    return np.isin(np.arange(len(sizes)), cohort.clients)


def by_event(sampler, clients):
    """The rate that is charged."""
    charged = CentralGaussian(noise_multiplier=1.0).event(sampler.witness(1, clients), 1).release
    assert_rate(lambda: members(sampler, clients), charged.rate)


def poisson(size, clients, folder):
    by_event(Poisson(size=size), clients)


def poisson_at_sites(size, clients, folder):
    """Each site flips coins of its own clients, by their own numbers."""
    sampler, population = Poisson(size=size), Population(np.ones(4), IDS, np.zeros(4, np.int64))

    def entered():
        return np.isin(IDS, sampler.sample(1, clients, population, SECRET).clients)

    assert_rate(entered, sampler.witness(1, clients).rate)


def truncated(size, clients, folder):
    by_event(CappedPoisson(size=size, cap=max(size, 4)), clients)


def by_size(size, clients, folder):
    sizes = (1, 2, 4, 1)
    for place, examples in enumerate(sizes):
        bias = min(size / clients * examples / 2, 1.0)
        assert_rate(lambda at=place: members(BySize(size=size), clients, sizes)[at], bias)


def byzantine(size, clients, folder):
    def byzantine_rows():
        return Attackers(SignFlip(), size / clients, True, False, IDS, SECRET).byzantine(1)

    if size < clients:
        assert_rate(byzantine_rows, size / clients)


def dropout(size, clients, folder):
    keys = Keys(None, IDS.astype(np.uint64))
    assert_rate(lambda: leaving(size / clients, keys, 4) != Leaves.NEVER, size / clients)


def stragglers(size, clients, folder):
    executor = Rounds(folder).world.executor
    set_fields(executor, stragglers=size / clients)
    assert_rate(lambda: executor._epochs(IDS, 1) != executor.trainer.epochs, size / clients)


def availability(size, clients, folder):
    noon = Daily(day=2, least=size / clients, spread=0.0)
    assert_rate(lambda: noon.present(1, IDS, SECRET), noon.chance(1, np.zeros(1))[0])


def examples(size, clients, folder):
    dp = DpSgd(sampling_rate=size / clients, noise_multiplier=0.0)

    def entered():
        seen = np.zeros(4, dtype=bool)

        def gradients(w, drawn):
            seen[drawn] = True
            return torch.zeros(len(drawn), 1)

        dp.gradient(torch.zeros(1), 4, 1, gradients, Keys(None))
        return seen

    assert_rate(entered, size / clients)


def rounding(size, clients, folder):
    """Up with the probability of the fraction: 16 bits decide, and a coin where they tie.

    Each value of the 16 bits is dealt to one number, so that their part of the rate is counted.
    """
    every = 1 << 16
    codec = Codec(np.inf, 1.0, every, 32, 10.0)
    row, words = np.full(every, size / clients), np.arange(every, dtype=np.uint16).view(np.uint64)
    key = np.zeros(2, np.uint64)

    def rounded(word):
        with dealt(key, words, np.array(word, np.uint64)):
            return codec.encode(row, Keys(None))

    if size < clients:
        never = rounded(2**64 - 1)
        tied = np.flatnonzero(rounded(0) != never)
        assert len(tied) == (1 if (row[0] * every) % 1 else 0)
        short = Fraction(size / clients) - Fraction(int(never.sum()), every)
        assert_rate(lambda: coins_of_ties(codec, row, key, words, tied), float(short * every))


def rounding_in_single_precision(size, clients, folder):
    """The same for rows in single precision: each value of 16 bits to one number."""
    every, step = 1 << 16, 2.0**-3
    share = np.float32(size / clients)
    row, words = np.full(every, share * np.float32(step)), np.arange(every, dtype=np.uint16)
    assert rounding_module.fits_single(1.0, step)

    def rounded(word):
        with (
            mock.patch.object(rounding_module, "sixteen_bits", return_value=words),
            dealt(np.array(word, np.uint64)),
        ):
            return rounding_module.rounded_single(row, step, Keys(None))[0] == 1

    if size < clients:
        never = rounded(2**64 - 1)
        tied = np.flatnonzero(rounded(0) != never)
        assert len(tied) == (1 if (float(share) * every) % 1 else 0)
        short = Fraction(float(share)) - Fraction(int(never.sum()), every)
        assert_rate(lambda: ties_by_word(rounded, tied), float(short * every))


def ties_by_word(rounded, tied):
    """How tied numbers fall by the word that is dealt for them now."""
    word = int(Keys(None).bits(1)[0])
    return rounded(word)[tied] if len(tied) else np.zeros(1, bool)


def coins_of_ties(codec, row, key, words, tied):
    """How the tied numbers fall by the word that is dealt for them now."""
    word = Keys(None).bits(1)
    with dealt(key, words, word):
        up = codec.encode(row, Keys(None))[tied] == 1
    return up if len(tied) else np.zeros(1, bool)


DRAWS = [poisson, truncated, by_size, byzantine, dropout, stragglers, availability, examples]
DRAWS += [rounding, rounding_in_single_precision, poisson_at_sites]


@every_case("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_a_coin_is_true_for_as_many_words_as_its_rate_and_no_more(draw, tmp_path):
    at_every_rate(draw, tmp_path)


def at_every_rate(draw, folder):
    for size, clients in SHARES:
        draw(size, clients, folder)


def two_percent_more(words, rate):
    return original_bernoulli(words, np.asarray(rate) * 1.02)


def two_percent_less(words, rate):
    return original_bernoulli(words, np.asarray(rate) * 0.98)


def the_next_float(words, rate):
    return original_bernoulli(words, np.nextafter(rate, 2.0))


def rounded_up(words, rate):
    return (words >> np.uint64(11)) < np.ceil(np.asarray(rate) * 2.0**53).astype(np.uint64)


def one_word_more(words, rate):
    return (words >> np.uint64(11)) <= np.floor(np.asarray(rate) * 2.0**53).astype(np.uint64)


def a_float_compared(words, rate):
    """What a coin of fewer bits is."""
    return (words >> np.uint64(11)).astype(np.float32) * np.float32(2.0**-53) < rate


original_bernoulli = streams.bernoulli
FAULTS = [
    two_percent_more,
    two_percent_less,
    the_next_float,
    rounded_up,
    one_word_more,
    a_float_compared,
]


NO_FAULT = (rounding_in_single_precision, rounded_up)
"""A fraction in single precision has few bits, so that there is nothing to round up."""


@every_case(
    ("draw", "fault"),
    [(draw, fault) for draw in DRAWS for fault in FAULTS if (draw, fault) != NO_FAULT],
    ids=lambda part: part.__name__,
)
def test_a_coin_of_another_rate_is_caught(draw, fault, tmp_path, monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("privfed.") and getattr(module, "bernoulli", None) is original_bernoulli:
            monkeypatch.setattr(module, "bernoulli", fault)
    with pytest.raises(AssertionError):
        at_every_rate(draw, tmp_path)


def test_words_meet_a_rate_in_one_place_only():
    """Every other comparison would need a proof of its own."""
    for path in Path(streams.__file__).parent.rglob("*.py"):
        if path.name != "streams.py":
            text = path.read_text(encoding="utf-8")
            assert "uint64(11)" not in text, (
                f"{path.name} takes words apart; call streams.bernoulli"
            )
            assert not re.search(r"uniforms\((?:[^()]|\([^()]*\))*\)+ *[<>]", text), path.name


def test_a_client_that_drops_out_fails_to_send_in_two_of_three_cases_at_most():
    keys = Keys(None, IDS.astype(np.uint64))

    def lost():
        with dealt(np.stack([np.zeros(4, np.uint64), keys.per_client(1)[:, 0]], axis=1)):
            return ~np.isin(leaving(0.5, keys, 4), SENDS)

    assert_rate(lost, 2 / 3)


# --- draws by the order of words ---


def the_smallest_words_are_drawn():
    ranks = np.argsort(np.argsort(SAMPLE))
    population = Population.of(np.ones(40))
    with dealt(SAMPLE):
        drawn = FixedSize(size=10).sample(1, 40, population, SECRET).clients
    assert drawn.tolist() == np.flatnonzero(ranks < 10).tolist()
    entered = np.where(np.arange(40) % 2, 2**64 - 1, 0).astype(np.uint64)  # every other client
    for cap in (10, 19, 20):
        with dealt(entered, SAMPLE[:20]):
            drawn = CappedPoisson(size=10, cap=cap).sample(1, 40, population, SECRET).clients
        places = np.argsort(np.argsort(SAMPLE[:20]))
        assert drawn.tolist() == (2 * np.flatnonzero(places < cap)).tolist()


def each_word_has_one_slot():
    """Fifty slots: each word is one client's, and meets one round in fifty."""
    sampler, words = Cyclic(separation=50).of(50), [0, 49, 50, 2**64 - 1, *SAMPLE.tolist()]
    words = np.array((words * 2)[:50], dtype=np.uint64)
    for first in (1, 30):
        drawn = np.zeros((50, 50), dtype=int)
        for round in range(first, first + 50):
            with dealt(words[:, None]):
                there = sampler.sample(round, 50, Population.of(np.ones(50)), SECRET).clients
            drawn[round - first, there] = 1
        assert (drawn.sum(0) == 1).all(), "a client meets one round in every separation"
        slots = (first + drawn.argmax(0)) % 50
        assert slots.tolist() == [int(word) % 50 for word in words.tolist()]


def a_canarys_coin_is_fair():
    """Half of all words, exactly: with each word, the one that differs in the coin's bit."""
    with dealt(SAMPLE, 1):
        first = Canaries.drawn(40, 1, SECRET).inclusion
    with dealt(SAMPLE ^ np.uint64(1), 1):
        other = Canaries.drawn(40, 1, SECRET).inclusion
    assert (first != other).all()
    assert 5 < first.sum() < 35


def the_byzantine_are_as_many_as_declared():
    for fraction, count in ((0.25, 10), (0.5, 20), (0.51, 20), (0.52, 21)):
        with dealt(SAMPLE[:, None]):
            args = (SignFlip(), fraction, True, False, np.arange(40), SECRET, 40)
            byzantine_rows = Attackers(*args).byzantine(1)
        assert byzantine_rows.tolist() == (np.argsort(np.argsort(SAMPLE)) < count).tolist()


DRAWS = [
    the_smallest_words_are_drawn,
    each_word_has_one_slot,
    a_canarys_coin_is_fair,
    the_byzantine_are_as_many_as_declared,
]


@every_case("check", DRAWS, ids=lambda check: check.__name__)
def test_draws_are_exact(check):
    check()


def one_more_is_drawn(monkeypatch):
    real = samplers._uniform_subset
    monkeypatch.setattr(
        samplers, "_uniform_subset", lambda who, count, *rest: real(who, count + 1, *rest)
    )


def the_first_are_drawn(monkeypatch):
    monkeypatch.setattr(samplers, "_uniform_subset", lambda clients, count, *rest: clients[:count])


def a_slot_fewer(monkeypatch):
    real = Cyclic.sample

    def sample(self, *args):
        return real(self.model_copy(update={"separation": self.separation - 1}), *args)

    monkeypatch.setattr(Cyclic, "sample", sample)


def canaries_enter_more_often(monkeypatch):
    real = Canaries.drawn.__func__

    def drawn(cls, count, length, keys):
        biased = original_bernoulli(keys.at("canaries/coins").bits(count), 0.51)
        return cls(real(cls, count, length, keys).directions, biased)

    monkeypatch.setattr(canaries.Canaries, "drawn", classmethod(drawn))


def more_are_byzantine(monkeypatch):
    real = Attackers.byzantine

    def byzantine_rows(self, round):
        set_fields(self, fraction=self.fraction * 1.02)
        return real(self, round)

    monkeypatch.setattr(Attackers, "byzantine", byzantine_rows)


@every_case(
    "fault, check",
    [
        (one_more_is_drawn, the_smallest_words_are_drawn),
        (the_first_are_drawn, the_smallest_words_are_drawn),
        (a_slot_fewer, each_word_has_one_slot),
        (canaries_enter_more_often, a_canarys_coin_is_fair),
        (more_are_byzantine, the_byzantine_are_as_many_as_declared),
    ],
    ids=lambda value: value.__name__,
)
def test_a_draw_that_is_not_exact_is_caught(fault, check, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()
