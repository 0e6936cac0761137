"""The study of bounded rows: a short row is accepted, and a long one refused, however one lies."""

import numpy as np
import pytest

from experiments.bounded_rows.cheats import Lie, answers, passes, wrapping_row
from experiments.bounded_rows.costs import costs, row_of
from experiments.bounded_rows.field import (
    MODULUS,
    add,
    combine,
    elements,
    multiply,
    subtract,
    total,
    uniform,
)
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.parties import Client, agreed, expanded
from experiments.bounded_rows.proof import Point, Shares, accepted, answer, prove
from experiments.bounded_rows.signs import signed_sums, signs
from experiments.bounded_rows.soundness import all_tests, few_tests
from experiments.bounded_rows.statement import Weights, bits_of
from experiments.bounded_rows.tables import BOUND, HERE, LENGTHS, tables
from experiments.bounded_rows.transform import between, evaluate, reading
from privfed.errors import Refused

SMALL = Parameters(64, 1_000)
EDGES = [0, 1, 2**32 - 1, 2**32, 2**63, MODULUS - 2**32, MODULUS - 1]


def key(number):
    return number.to_bytes(32, "big")


def numbers(values):
    return [int(value) for value in values]


@pytest.fixture(scope="module")
def pair():
    """Elements with every pair of edges among them, and the same as Python's numbers."""
    left = np.concatenate([np.repeat(EDGES, len(EDGES)).astype(np.uint64), uniform(key(1), 200)])
    right = np.concatenate([np.tile(EDGES, len(EDGES)).astype(np.uint64), uniform(key(2), 200)])
    return left, right


@pytest.mark.parametrize(
    ("ours", "exact"),
    [
        (add, lambda a, b: a + b),
        (subtract, lambda a, b: a - b),
        (multiply, lambda a, b: a * b),
    ],
    ids=["add", "subtract", "multiply"],
)
def test_arithmetic_is_modulo_the_prime(pair, ours, exact):
    left, right = pair
    expected = [exact(a, b) % MODULUS for a, b in zip(numbers(left), numbers(right), strict=True)]
    assert numbers(ours(left, right)) == expected


def test_sums_and_combinations_are_modulo_the_prime(pair):
    left, right = pair
    assert numbers(total(left)) == [sum(numbers(left)) % MODULUS]
    products = (a * b for a, b in zip(numbers(left), numbers(right), strict=True))
    assert numbers(combine(left, right)) == [sum(products) % MODULUS]


def test_a_polynomial_is_read_from_its_values():
    coefficients = uniform(key(3), 16).reshape(8, 2)
    root = pow(7, (MODULUS - 1) // 8, MODULUS)

    def exact(column, point):
        return sum(int(c) * point**k for k, c in enumerate(coefficients[:, column])) % MODULUS

    values = evaluate(coefficients, root)
    beside = between(values)
    double = pow(7, (MODULUS - 1) // 16, MODULUS)
    for column in (0, 1):
        expected = [exact(column, pow(root, k, MODULUS)) for k in range(8)]
        assert numbers(values[:, column]) == expected
        expected = [exact(column, pow(double, 2 * k + 1, MODULUS)) for k in range(8)]
        assert numbers(beside[:, column]) == expected
    read_at = combine(reading(8, 12345), values)
    assert numbers(read_at) == [exact(0, 12345), exact(1, 12345)]


def test_signs_and_their_sums():
    chosen = signs(key(4), 40, 1_001)
    shares = {value: float((chosen == value).mean()) for value in (-1, 0, 1)}
    assert shares == pytest.approx({-1: 0.25, 0: 0.5, 1: 0.25}, abs=0.01)
    row = uniform(key(5), 1_001)
    expected = [sum(int(z) * int(x) for z, x in zip(line, row, strict=True)) for line in chosen]
    assert numbers(signed_sums(chosen, row)) == [each % MODULUS for each in expected]


def played(row):
    """A client's session with both servers, message by message; None where it stays away."""
    client = Client(SMALL, row)
    share = client.share_row()
    chosen = signs(agreed(key(1), key(2), b"signs"), SMALL.tests, SMALL.length)
    bits = client.share_bits(chosen)
    if bits is None:
        return None
    weights = Weights.of(SMALL, agreed(key(1), key(2), b"weights"))
    point = Point.at(SMALL, 987654321)
    first = Shares(share, bits, client.share_proof(weights))
    second = expanded(SMALL, client.seed)
    assert numbers(add(first.row, second.row)) == numbers(elements(row))
    return accepted(
        SMALL,
        answer(SMALL, chosen, weights, point, first, True),
        answer(SMALL, chosen, weights, point, second, False),
    )


def exactly(square):
    """A row of that squared norm, of up to four numbers (Lagrange)."""
    row = np.zeros(SMALL.length, np.int64)
    for place in range(60):
        row[place] = -int(np.sqrt(square))
        square -= int(row[place]) ** 2
    assert square == 0
    return row


@pytest.mark.parametrize(
    ("square", "verdict"),
    [(0, True), (10**6 - 1, True), (10**6, True), (10**6 + 1, None), (10**8, None)],
)
def test_an_honest_client_is_accepted_up_to_the_bound(square, verdict):
    assert played(exactly(square)) is verdict


@pytest.mark.parametrize("square", [10**6, 10**6 + 1, 10**8], ids=["bound", "above", "ten times"])
@pytest.mark.parametrize(
    "lie",
    [Lie(), Lie(bits=True), Lie(balanced=True), Lie(bits=True, balanced=True)],
    ids=["bits cut", "large bits", "balanced", "both"],
)
def test_no_row_beyond_the_bound_is_accepted(lie, square):
    honest = square == 10**6 and not lie.bits
    assert passes(SMALL, elements(exactly(square)), lie, np.random.default_rng(0)) is honest


def test_every_check_is_needed():
    """A lie of each kind, against a verdict without the check that is there for it."""
    source = np.random.default_rng(0)
    wraps, long = wrapping_row(SMALL), elements(exactly(10**8))
    assert not passes(SMALL, wraps, Lie(), np.random.default_rng(0))
    assert passes(Parameters(64, 1_000, tests=0), wraps, Lie(), np.random.default_rng(0))

    none = np.zeros(SMALL.bits, np.uint64)
    no_bit_check = Weights(none, uniform(key(6), SMALL.tests))
    assert accepted(SMALL, *answers(SMALL, long, Lie(bits=True), source, no_bit_check))

    no_sums = Weights(uniform(key(7), SMALL.bits), none[: SMALL.tests])
    assert accepted(SMALL, *answers(SMALL, wraps, Lie(), source, no_sums))

    first, second = answers(SMALL, long, Lie(balanced=True), source)
    assert not add(first.value, second.value).any()  # the form is not looked at
    assert not accepted(SMALL, first, second)


def test_a_row_that_wraps_around_passes_half_of_all_tests():
    for trial in few_tests(64, 30, np.random.default_rng(0)):
        deviation = np.sqrt(trial.bound * (1 - trial.bound) / trial.trials)
        assert abs(trial.accepted / trial.trials - 2.0**-trial.tests) <= 5 * deviation + 1e-9


@pytest.mark.parametrize("changed", ["row", "bits", "proof"])
def test_a_changed_message_is_refused(changed):
    row, chosen = elements(exactly(10**6)), signs(key(8), SMALL.tests, SMALL.length)
    weights, point = Weights.of(SMALL, key(9)), Point.at(SMALL, 3**30)
    bits = bits_of(SMALL, chosen, row)
    proof = prove(SMALL, weights, row, bits, uniform(key(10), SMALL.columns))
    parts = {"row": row, "bits": bits, "proof": proof}
    nothing = Shares(*(np.zeros_like(each) for each in parts.values()))
    other = answer(SMALL, chosen, weights, point, nothing, False)
    assert accepted(SMALL, answer(SMALL, chosen, weights, point, Shares(**parts), True), other)
    parts[changed] = add(parts[changed], np.eye(1, len(parts[changed]), 3, np.uint64)[0])
    changed_answer = answer(SMALL, chosen, weights, point, Shares(**parts), True)
    assert not accepted(SMALL, changed_answer, other)


@pytest.mark.parametrize("hidden", [True, False], ids=["masked", "bare"])
def test_what_a_server_sees_fits_every_row(hidden):
    """The first server's shares and the second's answer are possible, once, with any other row."""
    chosen, weights = signs(key(8), SMALL.tests, SMALL.length), Weights.of(SMALL, key(9))
    point = Point.at(SMALL, 3**30)
    mask = uniform(key(11), SMALL.columns) if hidden else np.zeros(SMALL.columns, np.uint64)
    row, other = elements(exactly(10**6)), elements(exactly(999))
    counts = (SMALL.length, SMALL.bits, SMALL.columns + 2 * SMALL.points)
    mine = Shares(*(uniform(key(12 + k), count) for k, count in enumerate(counts)))

    def seen(secret, masks):
        bits = bits_of(SMALL, chosen, secret)
        proof = prove(SMALL, weights, secret, bits, masks)
        theirs = Shares(
            subtract(secret, mine.row), subtract(bits, mine.bits), subtract(proof, mine.proof)
        )
        return answer(SMALL, chosen, weights, point, theirs, False)

    apart = subtract(seen(row, mask).columns, seen(other, mask).columns)
    inverse = np.array([pow(int(point.columns[0]), -1, MODULUS)], np.uint64)
    fitting = add(mask, multiply(apart, inverse)) if hidden else mask
    views = [seen(row, mask), seen(other, fitting)]
    same = [
        numbers(getattr(views[0], name)) == numbers(getattr(views[1], name))
        for name in ("columns", "form", "value")
    ]
    assert all(same) is hidden


def test_points_where_columns_are_bare_are_refused():
    for point in (0, 1, pow(7, (MODULUS - 1) // (2 * SMALL.points), MODULUS)):
        with pytest.raises(Refused, match="draw again"):
            Point.at(SMALL, point)


@pytest.mark.parametrize(("length", "bound"), [(100_000, 2**20), (2**21 + 1, 10)])
def test_rows_that_the_field_is_too_small_for_are_refused(length, bound):
    with pytest.raises(Refused, match="coarser"):
        Parameters(length, bound)


def test_errors_are_within_what_is_promised():
    for length in LENGTHS:
        parameters = Parameters(length, BOUND)
        assert parameters.soundness < 2.0**-40
        assert parameters.refusal <= 2.0**-40
        assert Parameters(length, BOUND, tests=39).soundness > 2.0**-40


def test_costs_and_trials_are_measured():
    parties = [cost.party for cost in costs(SMALL, 3, np.random.default_rng(0))]
    assert parties.count("client") == 4
    trials = list(all_tests(SMALL, 3, np.random.default_rng(0)))
    assert [trial.accepted for trial in trials] == [0, 0, 0, 0, 3]
    assert np.linalg.norm(row_of(SMALL, np.random.default_rng(0))) <= SMALL.bound


def test_the_page_shows_what_the_tables_say():
    page = (HERE / "README.md").read_text("utf-8")
    for table in tables():
        assert table in page
