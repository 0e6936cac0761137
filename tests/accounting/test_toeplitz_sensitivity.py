"""Sensitivity of overlapping Toeplitz columns: against all patterns of participation, by force."""

import itertools
import math

import numpy as np
import pytest
from lanes import every_case

from accounting.bounds.toeplitz_sensitivity import (
    buffered_column,
    buffered_sensitivity,
    column_norm,
    powers,
    refuse_unproven,
    sum_of_shifts,
)
from accounting.errors import Unaccountable

TWO = ((0.97, 0.4), (0.3, 0.2))


def matrix(column):
    """The lower-triangular Toeplitz matrix `[T, T]` of `column` `[T]`."""
    rounds = len(column)
    return sum(value * np.eye(rounds, k=-lag) for lag, value in enumerate(column))


def patterns(rounds, separation):
    """Every set of rounds that keeps the separation, the empty one left out."""
    for count in range(1, -(-rounds // separation) + 1):
        for chosen in itertools.combinations(range(rounds), count):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield list(chosen)


def largest_move(column, separation, signed=False):
    """The largest norm of C x over all patterns, with entries 1, or of either sign."""
    c = matrix(column)
    largest = 0.0
    for chosen in patterns(len(column), separation):
        for signs in itertools.product((1.0, -1.0) if signed else (1.0,), repeat=len(chosen)):
            largest = max(largest, float(np.linalg.norm(c[:, chosen] @ np.array(signs))))
    return largest


def random_buffers(rng, count):
    outputs = rng.dirichlet(np.ones(count)) * rng.uniform(0.05, 0.99)
    return tuple(rng.uniform(0, 0.999, count).tolist()), tuple(outputs.tolist())


@every_case("separation", [1, 2, 3, 5, 9, 20])
@every_case("count", [1, 2, 4])
def test_the_largest_move_over_all_patterns_is_the_stated_one(separation, count):
    rng = np.random.default_rng(10 * separation + count)
    for _ in range(3):
        decays, outputs = random_buffers(rng, count)
        stated = buffered_sensitivity(decays, outputs, separation, 9)
        column = buffered_column(decays, outputs, 9)
        assert largest_move(column, separation) == pytest.approx(stated, rel=1e-12)


@every_case("separation", [1, 2, 4])
def test_no_signs_or_vectors_move_it_further(separation):
    """Signs by force; vectors of norm at most 1 at random, also such as follow what C x was."""
    rng = np.random.default_rng(separation)
    decays, outputs = random_buffers(rng, 2)
    column = buffered_column(decays, outputs, 8)
    stated = buffered_sensitivity(decays, outputs, separation, 8)
    assert largest_move(column, separation, signed=True) == pytest.approx(stated, rel=1e-12)
    c, moved = matrix(column), []
    for chosen in patterns(8, separation):
        x = np.zeros((8, 3))
        x[chosen] = rng.normal(size=(len(chosen), 3))
        x[chosen] *= rng.uniform(0.5, 1, (len(chosen), 1)) / np.linalg.norm(
            x[chosen], axis=1, keepdims=True
        )
        greedy = np.zeros((8, 3))
        for round in chosen:
            past = (c @ greedy).T @ c[:, round]
            size = np.linalg.norm(past)
            greedy[round] = past / size if size > 0 else np.eye(3)[0]
        moved += [np.linalg.norm(c @ x), np.linalg.norm(c @ greedy)]
    assert max(moved) <= stated * (1 + 1e-12)
    assert max(moved) > 0.99 * stated


def test_fewer_rounds_never_have_a_larger_sensitivity():
    for separation in (1, 3, 7, 100):
        values = [buffered_sensitivity(*TWO, separation, rounds) for rounds in range(1, 60)]
        assert values == sorted(values)
        assert values[0] == 1.0


def test_columns_overlap_so_that_it_is_more_than_root_k_column_norms():
    """T = 9, b = 3: columns 1, 4 and 7, summed by hand."""
    c = buffered_column(*TWO, 9)
    summed = np.array(
        [c[r] + (c[r - 3] if r >= 3 else 0) + (c[r - 6] if r >= 6 else 0) for r in range(9)]
    )
    sensitivity = buffered_sensitivity(*TWO, 3, 9)
    assert sensitivity == pytest.approx(np.linalg.norm(summed), rel=1e-14)
    assert sensitivity > 1.2 * math.sqrt(3) * np.linalg.norm(c)
    np.testing.assert_allclose(sum_of_shifts(c, 3), summed, rtol=1e-14)


def test_the_condition_matters_and_suffices():
    """All columns (1, a, b, c) of few values at separation 2: only increasing ones break it."""
    values, broken, decreasing = (-0.5, 0.0, 0.5, 1.0), set(), set()
    for rest in itertools.product(values, repeat=3):
        column = (1.0, *rest)
        if min(column) >= 0 and list(column) == sorted(column, reverse=True):
            decreasing.add(column)
        stated = np.linalg.norm(sum_of_shifts(np.array(column), 2))
        if largest_move(column, 2, signed=True) > stated * (1 + 1e-9):
            broken.add(column)
    assert len(decreasing) == 10
    assert not broken & decreasing
    assert {column for column in broken if min(column) >= 0} == {
        (1.0, 0.0, 0.0, 0.5),
        (1.0, 0.0, 0.0, 1.0),  # columns 1 and 4 overlap, and columns 1 and 3 do not
        (1.0, 0.0, 0.5, 1.0),
        (1.0, 0.5, 0.0, 0.5),
        (1.0, 0.5, 0.0, 1.0),
    }
    assert len(broken) == 29  # of 64: the others have negative terms, where a sign helps


def test_columns_one_and_four_by_hand():
    stated = np.linalg.norm(sum_of_shifts(np.array([1.0, 0.0, 0.0, 1.0]), 2))
    assert stated == pytest.approx(math.sqrt(3))
    assert largest_move((1.0, 0.0, 0.0, 1.0), 2) == pytest.approx(math.sqrt(5))


@every_case("decays, outputs", [TWO, ((0.9,), (1.0,)), ((0.0, 0.0), (0.5, 0.5))])
def test_the_column_and_its_norm_over_infinitely_many_rounds(decays, outputs):
    column = buffered_column(decays, outputs, 3000)
    recursion, state = [1.0], np.ones(len(decays))
    for _ in range(2999):
        recursion.append(float(np.array(outputs) @ state))
        state *= decays
    np.testing.assert_allclose(column, recursion, rtol=1e-12, atol=1e-300)
    assert (np.diff(column) <= 0).all()
    assert column_norm(decays, outputs) == pytest.approx(np.linalg.norm(column), rel=1e-12)
    assert buffered_sensitivity(decays, outputs, 50, 50) <= column_norm(decays, outputs) + 1e-15


def test_the_norm_keeps_its_digits_where_a_decay_is_close_to_one():
    near = 2.0**-40
    wanted = math.sqrt(1 + 0.25 / (near * (2 - near)))
    assert column_norm((1 - near,), (0.5,)) == pytest.approx(wanted, rel=1e-14)


def test_powers_are_those_of_the_base():
    for base, count in ((0.999, 1000), (0.3, 7), (0.0, 5), (-0.4, 10), (0.5, 1), (0.5, 0)):
        np.testing.assert_allclose(
            powers(base, count), [base**exponent for exponent in range(count)], rtol=1e-13
        )


@every_case("separation", [1, 1000, 10**6, 10**9])
def test_a_million_rounds(separation):
    """With b = 1 by the sums of a geometric series, with a single participation by its norm."""
    sensitivity = buffered_sensitivity((0.99,), (0.5,), separation, 10**6)
    if separation == 1:
        sums = 1 + 0.5 * (1 - 0.99 ** np.arange(10**6)) / 0.01
        assert sensitivity == pytest.approx(np.linalg.norm(sums), rel=1e-9)
    elif separation >= 10**6:
        assert sensitivity == pytest.approx(column_norm((0.99,), (0.5,)), rel=1e-12)
    else:
        assert 1.0 < sensitivity / (math.sqrt(1000) * column_norm((0.99,), (0.5,))) < 1.001


UNPROVEN = [
    pytest.param((), (), "0 decays", id="none"),
    pytest.param((0.5,), (0.1, 0.1), "1 decays and 2 outputs", id="unequal"),
    pytest.param((1.0,), (0.1,), "decay of a buffer is 1.0", id="decay-one"),
    pytest.param((-0.1,), (0.1,), "decay", id="decay-negative"),
    pytest.param((math.nan,), (0.1,), "decay", id="decay-nan"),
    pytest.param((0.5,), (-1e-9,), "output of a buffer", id="output-negative"),
    pytest.param((0.5,), (math.inf,), "output", id="output-infinite"),
    pytest.param((0.5,), (math.nan,), "output", id="output-nan"),
    pytest.param((0.5, 0.5), (0.6, 0.5), "sum to 1.1", id="sum"),
    pytest.param((0.5, 0.5), (1.0, 1e-300), "a sum above 1", id="sum-by-a-hair"),
]


@every_case("decays, outputs, reason", UNPROVEN)
def test_without_proof_it_is_refused(decays, outputs, reason):
    for question in (
        lambda: refuse_unproven(decays, outputs),
        lambda: buffered_sensitivity(decays, outputs, 2, 9),
        lambda: column_norm(decays, outputs),
    ):
        with pytest.raises(Unaccountable, match=reason):
            question()


@every_case("separation, rounds", [(0, 5), (2, 0), (1.5, 5), (2, 4.5), (-1, 5)])
def test_rounds_and_separation_are_whole_and_positive(separation, rounds):
    with pytest.raises(Unaccountable, match="an integer of at least 1"):
        buffered_sensitivity(*TWO, separation, rounds)


def test_the_edges_of_the_proof_are_inside_it():
    refuse_unproven((0.0, 1 - 2.0**-53), (0.0, 1.0))
    assert buffered_sensitivity((0.0,), (0.0,), 1, 9) == 3.0
    assert column_norm((0.7,), (0.0,)) == 1.0
