"""The study of bounded rows: a short row is accepted, and a long one refused, however one lies."""

import numpy as np
import pytest
from lanes import every_case

from experiments.bounded_rows.cheats import Cheat, answers, passes, wrapping_row
from experiments.bounded_rows.cohort import Projected, deal, opened, opened_answer
from experiments.bounded_rows.costs import cohort_costs, costs, row_of
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
from experiments.bounded_rows.parties import Challenges, Client, Server, agreed, expanded
from experiments.bounded_rows.proof import Point, Shares, accepted, answer, prove
from experiments.bounded_rows.signs import signed_sums, signs
from experiments.bounded_rows.soundness import all_tests, few_tests
from experiments.bounded_rows.statement import Weights, bits_of
from experiments.bounded_rows.tables import BOUND, HERE, LENGTHS, tables
from experiments.bounded_rows.transform import between, evaluate, reading
from privfed.core.errors import Refused

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


@every_case(
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


@every_case(
    ("square", "verdict"),
    [(0, True), (10**6 - 1, True), (10**6, True), (10**6 + 1, None), (10**8, None)],
)
def test_an_honest_client_is_accepted_up_to_the_bound(square, verdict):
    assert played(exactly(square)) is verdict


@every_case("square", [10**6, 10**6 + 1, 10**8], ids=["bound", "above", "ten times"])
@every_case(
    "cheat",
    [Cheat(), Cheat(bits=True), Cheat(balanced=True), Cheat(bits=True, balanced=True)],
    ids=["bits cut", "large bits", "balanced", "both"],
)
def test_no_row_beyond_the_bound_is_accepted(cheat, square):
    honest = square == 10**6 and not cheat.bits
    assert passes(SMALL, elements(exactly(square)), cheat, np.random.default_rng(0)) is honest


def test_every_check_is_needed():
    """A lie of each kind, against a verdict without the check that is there for it."""
    source = np.random.default_rng(0)
    wraps, long = wrapping_row(SMALL), elements(exactly(10**8))
    assert not passes(SMALL, wraps, Cheat(), np.random.default_rng(0))
    assert passes(Parameters(64, 1_000, tests=0), wraps, Cheat(), np.random.default_rng(0))

    none = np.zeros(SMALL.bits, np.uint64)
    no_bit_check = Weights(none, uniform(key(6), SMALL.tests))
    assert accepted(SMALL, *answers(SMALL, long, Cheat(bits=True), source, no_bit_check))

    no_sums = Weights(uniform(key(7), SMALL.bits), none[: SMALL.tests])
    assert accepted(SMALL, *answers(SMALL, wraps, Cheat(), source, no_sums))

    first, second = answers(SMALL, long, Cheat(balanced=True), source)
    assert not add(first.value, second.value).any()  # the form is not looked at
    assert not accepted(SMALL, first, second)


def test_a_row_that_wraps_around_passes_where_its_second_sign_is_zero():
    """Half of all tests, and so just what the lemma admits."""
    two, verdicts = Parameters(64, 1_000, tests=2), set()
    for seed in range(20):
        chosen = signs(np.random.default_rng(seed).bytes(32), 2, 64)
        passed = passes(two, wrapping_row(two), Cheat(), np.random.default_rng(seed))
        assert passed == (chosen[:, 1] == 0).all()
        verdicts.add(passed)
    assert verdicts == {True, False}
    trials = list(few_tests(64, 2, np.random.default_rng(0)))
    assert [trial.bound for trial in trials] == pytest.approx([2.0**-k for k in range(7)])
    assert trials[0].accepted == 2


@every_case("changed", ["row", "bits", "proof"])
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
    assert len(list(cohort_costs(Projected(64, 1_000), 5, np.random.default_rng(0)))) == 4
    trials = list(all_tests(SMALL, 3, np.random.default_rng(0)))
    assert [trial.accepted for trial in trials] == [0, 0, 0, 0, 3]
    assert np.linalg.norm(row_of(SMALL, np.random.default_rng(0))) <= SMALL.bound


def test_the_page_shows_what_the_tables_say():
    page = (HERE / "README.md").read_text("utf-8")
    for table in tables():
        assert table in page


COHORT = Projected(300, 1_000, projections=200)


def summed_under_masks(sent, drawn):
    """Whether a cohort accepts what each `(row, u)` sends and deals, by all of its checks."""
    places, degree = list(range(1, 8)), 2
    ours = Challenges(COHORT.proved, key(1), key(2))
    point = Point.at(COHORT.proved, 3**30)
    sums = []
    for number, (_, u) in enumerate(sent):
        bits = bits_of(COHORT.proved, ours.signs, u)
        masks = uniform(key(20 + number), COHORT.proved.columns)
        parts = [u, bits, prove(COHORT.proved, ours.weights, u, bits, masks)]
        dealt = [deal(part, 7, degree, key(40 + 3 * number + k)) for k, part in enumerate(parts)]
        answers = [
            answer(COHORT.proved, ours.signs, ours.weights, point, Shares(*each), True)
            for each in zip(*dealt, strict=True)
        ]
        if not accepted(COHORT.proved, *opened_answer(places[:4], answers[:4])):
            return False
        sums.append(dealt[0])
    together = opened(places[:3], total(np.stack(sums).reshape(len(sums), -1)).reshape(7, -1)[:3])
    everything = elements(sum(row for row, _ in sent))
    return numbers(together) == numbers(signed_sums(drawn, everything))


@pytest.fixture(scope="module")
def drawn():
    return signs(key(60), COHORT.projections, COHORT.length)


@every_case(
    ("lengths", "claims", "verdict"),
    [
        ((1, 1, 1), (1, 1, 1), True),
        ((1, 1, 10), (1, 1, 10), False),  # its u is too long
        ((1, 1, 10), (1, 1, 1), False),  # its u is not its row's
        ((1, 11, -10), (1, 1, 0), True),  # two collude: together they are short
        ((1, 11, -1), (1, 1, 0), False),  # and are not
    ],
    ids=["honest", "long", "made up", "moved", "moved and long"],
)
def test_under_masks_liars_are_bounded_together(lengths, claims, verdict, drawn):
    row = row_of(COHORT, np.random.default_rng(1))
    sent = [
        (length * row, signed_sums(drawn, elements(claim * row)))
        for length, claim in zip(lengths, claims, strict=True)
    ]
    assert summed_under_masks(sent, drawn) is verdict


def test_few_shares_say_nothing_and_enough_say_all():
    secret = uniform(key(70), 5)
    shares = deal(secret, 6, 2, key(71))
    for places in ([1, 2, 3], [6, 2, 4], [1, 2, 3, 4, 5, 6]):
        assert numbers(opened(places, shares[[p - 1 for p in places]])) == numbers(secret)
    assert numbers(opened([1, 2], shares[:2])) != numbers(secret)
    coefficients = uniform(key(71), 10).reshape(2, 5)
    first, second = coefficients
    expected = add(secret, add(second, multiply(first, np.array([1], np.uint64))))
    assert numbers(shares[0]) == numbers(expected)


def test_liars_move_the_sum_by_less_than_ten_times_what_they_may():
    assert Projected(100_000, BOUND).factor < 2
    assert Projected(100_000, BOUND, projections=176).factor < 10
    assert Projected(100_000, BOUND, projections=166).factor == np.inf


def test_a_server_answers_what_the_client_named_and_once():
    """Under other signs the equation's value would tell a signed sum of the row."""
    ours = Challenges(SMALL, key(1), key(2))
    other = Challenges(SMALL, key(3), key(2))
    client = Client(SMALL, exactly(10**6))
    shares = Shares(
        client.share_row(), client.share_bits(other.signs), client.share_proof(other.weights)
    )
    point = Point.at(SMALL, 3**30)
    server = Server(ours, point, True)
    with pytest.raises(Refused, match="other challenges"):
        server.answer("client 1", shares, other.name)
    second = Server(ours, point, False).answer("client 1", expanded(SMALL, client.seed), ours.name)
    leaked = numbers(add(server.answer("client 1", shares, ours.name).value, second.value))
    row = elements(exactly(10**6))
    apart = subtract(signed_sums(ours.signs, row), signed_sums(other.signs, row))
    assert leaked == numbers(combine(ours.weights.tests, apart)) != [0]
    with pytest.raises(Refused, match="second answer"):
        server.answer("client 1", shares, ours.name)
