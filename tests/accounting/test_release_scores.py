"""Scores of releases: each sees what it is for, and says nothing where there is nothing."""

import numpy as np
from lanes import every_case

from accounting.empirical.claimed_releases import points_for_releases
from accounting.empirical.release_scores import (
    linear_scores,
    quadratic_scores,
    repetition_scores,
)
from accounting.empirical.two_sample import judge
from accounting.empirical.verdicts import REFUTED_BELOW
from accounting.errors import Unaccountable

SCORES = {
    "means": linear_scores,
    "spreads": quadratic_scores,
    "repetitions": repetition_scores,
}
COUNT = 2000
CLAIM = [(1.0, 1e-3)]


def shifted(rng, member):
    return rng.normal(3.0 * member, 1.0, (COUNT, 3))


def spread(rng, member):
    return rng.normal(0.0, 1.0 + 2.0 * member, (COUNT, 3))


def correlated(rng, member):
    noise = rng.normal(size=(COUNT, 2))
    return np.column_stack([noise[:, 0], noise[:, 0] * member * 0.99 + noise[:, 1] * 0.2])


def repeated(rng, member):
    return rng.permutation(500)[rng.integers(0, 500, COUNT)][:, None] * 1.0 + 0.25 * member


def wide(rng, member):
    return rng.normal(0.3 * member, 1.0, (COUNT, 2001))


def needle(rng, member):
    released = rng.normal(size=(400, 4000))
    released[:, 7] += 3.0 * member
    return released


def aborted(rng, member):
    released = rng.normal(size=(COUNT, 2))
    released[rng.random(COUNT) < 0.5 * member, 0] = np.nan
    return released


def wholly_repeated(rng, member):
    """Every number is common, and together they tell."""
    seeds = rng.integers(0, 50, COUNT)
    return np.column_stack([seeds, (seeds + member * 25) % 50]) * 1.0


def verdict(score, releases, seed=1, claims=CLAIM):
    rng = np.random.default_rng(seed)
    without, with_member = (releases(rng, member) for member in (False, True))
    return judge(*SCORES[score](without, with_member), 1e-3, 0.95, claims)


@every_case(
    ("score", "releases"),
    [
        ("means", shifted),
        ("means", wide),
        ("means", needle),
        ("means", aborted),
        ("spreads", shifted),
        ("spreads", spread),
        ("spreads", correlated),
        ("spreads", wide),
        ("repetitions", repeated),
        ("repetitions", wholly_repeated),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_score_sees_what_it_is_for(score, releases):
    assert verdict(score, releases).p_value < REFUTED_BELOW


@every_case(
    ("score", "releases"),
    [("means", repeated), ("spreads", repeated), ("repetitions", shifted)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_and_leaves_the_others_theirs(score, releases):
    assert verdict(score, releases).p_value > 0.01


@every_case("score", SCORES)
@every_case("form", [(), (1,), (2, 3), (40,)], ids=str)
def test_nothing_is_seen_where_there_is_nothing(score, form):
    rng = np.random.default_rng(2)
    sides = [np.round(rng.normal(size=(600, *form)), 1) for _ in range(2)]
    result = judge(*SCORES[score](*sides), 1e-3, 0.95, [(0.0, 1e-9)])
    assert result.p_value > 1e-3


@every_case("score", SCORES)
def test_releases_that_never_vary(score):
    same = judge(*SCORES[score](np.zeros((40, 2)), np.zeros((40, 2))), 0.01, 0.95, CLAIM)
    assert same.p_value == 1.0
    other = judge(*SCORES[score](np.zeros((80, 2)), np.ones((80, 2))), 0.01, 0.95, CLAIM)
    assert other.p_value < REFUTED_BELOW


@every_case("score", SCORES)
def test_bounds_exceed_the_truth_no_more_often_than_they_say(score):
    """Randomised response of three bits in four: epsilon is log 3, and every set may reach it."""
    rng, above = np.random.default_rng(3), 0
    for _ in range(100):
        bits = [(rng.random((300, 1)) < share) * 1.0 for share in (0.25, 0.75)]
        above += judge(*SCORES[score](*bits), 0.0, 0.9, CLAIM).epsilon_lower > np.log(3)
    assert above <= 18  # of 100, of which 10 are expected at most


@every_case("count", [80, 81, 82, 83])
@every_case("score", SCORES)
def test_the_second_half_chooses_nothing(score, count):
    """Each of its releases may be another, and the scores of all others are what they were."""
    rng, half = np.random.default_rng(4), count // 2
    without, with_member = np.round(rng.normal(size=(2, count, 3)), 0)
    before = SCORES[score](without, with_member)
    for place in range(half, count):
        changed = with_member.copy()
        changed[place] = with_member[0]
        after = SCORES[score](without, changed)
        np.testing.assert_allclose(before[1][:half], after[1][:half], rtol=1e-9)
        np.testing.assert_allclose(before[0], after[0], rtol=1e-9)


@every_case("size", [1e-300, 1e-200, 1e200, 1e305], ids=str)
@every_case("score", ["means", "spreads"])
def test_numbers_of_any_size_are_told_apart(score, size):
    assert verdict(score, lambda rng, member: size * shifted(rng, member)).p_value < REFUTED_BELOW


def test_a_value_that_only_the_second_half_has_may_be_of_any_size():
    rng = np.random.default_rng(5)
    without, with_member = rng.normal(size=(2, 200, 2)) * 1e-200
    with_member[150:] = 1e300
    for scores in SCORES.values():
        assert all(np.isfinite(each).all() for each in scores(without, with_member))


def infinite(rng, member):
    """Every release is aborted, and the sign is what tells."""
    return np.where(rng.random((COUNT, 1)) < 0.1 + 0.8 * member, np.inf, -np.inf)


def test_infinities_of_two_signs_are_two_values():
    assert verdict("means", infinite).p_value < REFUTED_BELOW


def test_points_of_a_profile_leave_out_what_it_does_not_claim():
    def profile(delta):
        if delta < 1e-4:
            raise Unaccountable("no bound")
        return np.inf if delta < 0.05 else 1.0

    assert {epsilon for epsilon, _ in points_for_releases(profile, 0.07)} == {1.0}
    assert next(at for _, at in points_for_releases(profile, 0.07)) == 0.07
