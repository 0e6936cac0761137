"""Words are read back from sums: what is frequent, nothing that is not there."""

import numpy as np
import pytest

from privfed.analytics.spelling import Spelling

SPELLING = Spelling(buckets=32, letters=12)
COUNTS = {"Berlin": 900, "München": 500, "Paris": 400, "x": 300, "a name that goes on": 350}


def sums(counts, spelling=SPELLING):
    total = np.zeros(spelling.length)
    for word, count in counts.items():
        total[spelling.places(word)] += count
    return total


def test_a_word_adds_to_every_position_once():
    places = SPELLING.places("Berlin")
    assert len({*places.tolist()}) == SPELLING.positions
    assert {*(places // (SPELLING.positions * 16)).tolist()} == {
        places[0] // (SPELLING.positions * 16)
    }
    assert (places >= 0).all()
    assert (places < SPELLING.length).all()


def test_without_noise_all_are_read_as_often_as_they_stand_there():
    read = {word.word: word for word in SPELLING.read(sums(COUNTS), 0.0)}
    assert {*read} == {"Berlin", "München", "Paris", "x", "a name that "}
    assert [word for word in read if read[word].cut] == ["a name that "]
    for word, count in COUNTS.items():
        assert read[word[:12]].count == pytest.approx(count, rel=0.05)
        assert read[word[:12]].low - 1e-6 <= count <= read[word[:12]].high + 1e-6


def test_noise_alone_spells_nothing():
    rng = np.random.default_rng(0)
    assert [SPELLING.read(rng.normal(0, 20, SPELLING.length), 20.0) for _ in range(20)] == [[]] * 20


def test_a_rare_word_beside_frequent_ones_is_not_made_up():
    spelling = Spelling(buckets=1, letters=6)
    read = spelling.read(sums({"often": 1000, "seldom": 3}, spelling), 5.0)
    assert [word.word for word in read] == ["often"]
    assert read[0].low <= 1000 <= read[0].high


def test_words_of_one_bucket_are_read_one_after_the_other():
    spelling = Spelling(buckets=1, letters=6)
    read = {
        word.word: word.count for word in spelling.read(sums({"one": 900, "two": 300}, spelling), 0)
    }
    assert read == {"one": pytest.approx(900, rel=0.02), "two": pytest.approx(300, rel=0.06)}


def test_intervals_of_counts_hold_what_is_there():
    rng, covered = np.random.default_rng(1), dict.fromkeys(COUNTS, 0)
    total, reads = sums(COUNTS), dict.fromkeys(COUNTS, 0)
    for _ in range(200):
        for word in SPELLING.read(total + rng.normal(0, 20, SPELLING.length), 20.0):
            name = next((each for each in COUNTS if each.startswith(word.word)), None)
            assert name is not None
            reads[name] += 1
            covered[name] += word.low <= COUNTS[name] <= word.high
    assert min(reads.values()) > 150
    assert all(covered[word] >= 0.93 * reads[word] for word in COUNTS)
