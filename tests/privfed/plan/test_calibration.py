"""Any one of noise, rounds, cohort and epsilon from the others; nothing given is ignored."""

import json
import math
from dataclasses import replace

import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case, mostly_slow

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan.calibration.as_run import guarantee_of
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.calibration.solving import alternatives, solve
from privfed.plan.plan import plan

POISSON = CalibrationQuestion(
    "gaussian", "poisson", 1e-5, "tightest", sampling_rate=0.02, rounds=200, epsilon=2.0
)
FIXED = CalibrationQuestion(
    "gaussian", "fixed_size", 1e-5, "tightest", population=5000, cohort=100, rounds=200, epsilon=2.0
)
CYCLIC = CalibrationQuestion(
    "banded", "cyclic", 1e-5, "tightest", separation=10, rounds=200, epsilon=2.0
)
LOCAL = CalibrationQuestion("local_gaussian", "full", 1e-5, "tightest", rounds=5, epsilon=2.0)
CUT = replace(FIXED, sampler="truncated_poisson")


FEWER_CUT = replace(CUT, population=500, cohort=100, rounds=10)


@pytest.mark.parametrize(
    "asked",
    mostly_slow(
        [POISSON, FIXED, CYCLIC, LOCAL, FEWER_CUT, CUT],
        *(FIXED, CYCLIC, LOCAL, FEWER_CUT),
        names=["poisson", "fixed size", "cyclic", "full", "truncated", "truncated, many"],
    ),
)
def test_each_number_is_found_back_from_the_others(asked):
    whole = solve(asked)
    noise = whole.question.noise_multiplier
    assert whole.solved == "noise_multiplier"
    assert whole.bound.epsilon <= 2.0
    assert whole.bound.epsilon == pytest.approx(2.0, rel=1e-3)
    back = solve(replace(asked, epsilon=None, noise_multiplier=noise))
    assert back.bound.epsilon == whole.bound.epsilon
    rounds = solve(replace(asked, rounds=None, noise_multiplier=noise)).question.rounds
    step = whole.cost.witness.separation  # within it, more rounds cost nothing
    assert asked.rounds <= rounds < asked.rounds + max(step, 2)
    more = replace(asked, rounds=rounds + 1, noise_multiplier=noise, epsilon=None)
    assert solve(more).bound.epsilon > 2.0
    if asked.sampler == "full":
        return
    blank = replace(asked, cohort=None, sampling_rate=None, separation=None, noise_multiplier=noise)
    solved = solve(blank).question
    for name in ("cohort", "sampling_rate", "separation"):
        if getattr(asked, name) is not None:
            assert getattr(solved, name) == pytest.approx(getattr(asked, name), rel=2e-3)
    assert guarantee_of(solved).epsilon <= 2.0


def test_the_command_answers_for_fixed_size_under_replace_one():
    words = ["--sampler", "fixed_size", "--population", 10_000, "--cohort", 100, "--rounds", 1000]
    result = run("calibrate", *words, "--delta", 1e-5, "--noise-multiplier", 4, "--json")
    printed = json.loads(result.stdout)
    assert printed["relation"] == "replace-one"
    assert printed["epsilon"] == pytest.approx(1.4453, abs=1e-3)
    assert printed["noise_multiplier"] == 4
    assert printed["accountants"]["pld"] is None


@pytest.mark.slow
def test_larger_cohorts_may_fit_where_small_truncated_ones_do_not():
    asked = replace(
        *(CUT,), population=2000, cohort=None, rounds=50, noise_multiplier=1.0, epsilon=2.5
    )
    assert solve(replace(asked, cohort=20, epsilon=None)).bound.epsilon > 2.5
    answer = solve(asked)
    assert answer.question.cohort > 60
    assert answer.bound.epsilon <= 2.5


@pytest.mark.slow
def test_a_cap_bounds_the_cohort_that_is_found():
    asked = replace(CUT, population=2000, cohort=None, rounds=50, noise_multiplier=1.0)
    assert solve(replace(asked, cap=70, epsilon=12.0)).question.cohort <= 70


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(replace(POISSON, accountant="rdp"), marks=pytest.mark.slow),
        pytest.param(FIXED, marks=pytest.mark.slow),
        CYCLIC,
    ],
    ids=["poisson", "fixed size", "cyclic"],
)
def test_alternatives_change_one_number_each(asked):
    answer = solve(asked)
    others = dict(alternatives(answer))
    assert others["half the rounds"].question.noise_multiplier < answer.question.noise_multiplier
    assert others["2x epsilon"].question.noise_multiplier < answer.question.noise_multiplier
    assert others["a tenth of delta"].question.noise_multiplier > answer.question.noise_multiplier
    if asked.sampler != "cyclic":
        # More noise, but less of it on the mean.
        noisier = others["2x the cohort"].question.noise_multiplier
        assert 1 < noisier / answer.question.noise_multiplier < 2


CAPPED = {"sampler": "truncated_poisson", "sampling_rate": None, "population": 100, "cohort": 5}


@every_case(
    "wrong, reason",
    [
        ({"noise_multiplier": 1.0}, "nothing is left"),
        ({"epsilon": None}, "2 are missing"),
        ({"population": 10}, "either the rate or the other two"),
        ({"cap": 5}, "cap is given, but has no effect for gaussian"),
        ({"separation": 5}, "separation is given, but has no effect for"),
        ({"bands": 5}, "only with mechanism banded"),
        ({"epsilon": None, "noise_multiplier": math.nan}, "expected a number"),
        ({"epsilon": None, "noise_multiplier": 1e12}, "expected a number"),
        ({"sampling_rate": None, "population": 10, "noise_multiplier": 0.01}, "spends more"),
        ({"sampling_rate": None, "noise_multiplier": 0.0}, "every sampling rate"),
        ({"mechanism": "local_gaussian"}, "neither population nor cohort"),
        ({"epsilon": math.nan}, "positive number"),
        ({"epsilon": None, "noise_multiplier": 1.0, **CAPPED, "accountant": "rdp"}, "no proof"),
        ({"mechanism": "banded"}, "separation of only 1 rounds"),
        ({"sampler": "cyclic"}, "sampling_rate is given, but has no effect for"),
        ({"sampler": "fixed_size", "sampling_rate": None, "cohort": 5}, "population .*is missing"),
        (
            {"sampler": "full", "sampling_rate": None, "cohort": 5},
            "cohort is given, but has no effect for",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, reason):
    with pytest.raises(Refused, match=reason):
        solve(replace(POISSON, **wrong))


def test_a_separation_that_no_number_of_rounds_needs_is_refused():
    asked = replace(CYCLIC, separation=None, noise_multiplier=0.5, epsilon=0.1)
    with pytest.raises(Refused, match="even one round per client"):
        solve(asked)


def test_the_table_names_what_was_solved():
    words = ["--sampling-rate", 0.1, "--rounds", 20, "--delta", 1e-4]
    words += ["--noise-multiplier", 2, "--accountant", "rdp"]
    shown = run("calibrate", *words).stdout
    assert "(solved for)" in shown
    assert "2x the cohort" in shown
    assert "add/remove" in shown


SETTINGS = {
    "sampler": st.sampled_from(["poisson", "truncated_poisson", "full", "fixed_size", "cyclic"]),
    "known": st.sampled_from([{"epsilon": 3.0}, {"noise_multiplier": 1.5}]),
    "mechanism": st.sampled_from(["gaussian", "skellam", "discrete_gaussian"]),
    "protocol": st.sampled_from([None, "masks", "bfv"]),
    "sizing": st.sampled_from([None, "minimum", "layers"]),
    "against": st.sampled_from([None, "server", "readers"]),
    "colluders": st.sampled_from([None, 0.0, 0.2]),
    "byzantine": st.sampled_from([None, 3]),
    "dropout": st.sampled_from([None, 0.03, 0.5]),
    "threshold": st.sampled_from([None, 0.7]),
    "cohort": st.integers(40, 120),
    "rounds": st.integers(1, 40),
}


@settings(max_examples=8)
@given(st.fixed_dictionaries(SETTINGS))
def test_calibrate_and_check_solve_for_the_same_noise(given):
    """Whatever of it is counted: honest shares, dropouts, aborts, the grid of few bits."""
    asked = question(**given)
    keys = as_keys(asked)
    try:
        ours = solve(asked)
    except Refused:
        with pytest.raises(Refused):
            plan(load(None, keys), length=50)
        return
    theirs = plan(load(None, keys), length=50)
    assert ours.question.noise_multiplier == theirs.noise_multiplier
    assert ours.bound == theirs.guarantee


def question(sampler, mechanism, protocol, sizing, against, cohort, known, **numbers):
    """Where a number is not asked for, it is left out."""
    shared = mechanism != "gaussian"
    secured = shared or protocol is not None
    sums = ("colluders", "dropout", "threshold")
    numbers = {name: value for name, value in numbers.items() if secured or name not in sums}
    if protocol == "bfv":
        numbers["threshold"] = None
    return CalibrationQuestion(
        *(mechanism, sampler, 1e-4, "tightest"),
        population=400 if secured or sampler != "cyclic" else None,
        cohort=cohort if sampler not in ("full", "cyclic") else None,
        separation=4 if sampler == "cyclic" else None,
        protocol=protocol,
        sizing=sizing if mechanism == "skellam" else None,
        against=against if shared else None,
        dimension=50 if shared else None,
        bits=20 if secured else None,
        **known,
        **numbers,
    )


def as_keys(asked):
    """What the same run would have in its file."""
    keys = {
        "privacy.mechanism": asked.mechanism,
        "cohort.sampler": asked.sampler,
        "privacy.delta": asked.delta,
        "privacy.epsilon": asked.epsilon,
        "privacy.noise_multiplier": asked.noise_multiplier,
        "run.rounds": asked.rounds,
        "data.clients": asked.population or asked.separation,
        "cohort.size": asked.cohort or 0,
        "cohort.separation": asked.separation,
        "cohort.dropout": asked.dropout,
        "aggregation.byzantine": asked.byzantine,
        "privacy.sizing": asked.sizing,
        "privacy.against": asked.against,
        "secure.protocol": asked.protocol or ("masks" if asked.shares_noise else None),
        "secure.bits": asked.bits,
        "secure.colluders": asked.colluders,
        "secure.threshold": asked.threshold,
    }
    return [f"{key}={value}" for key, value in keys.items() if value is not None]


def test_calibrate_counts_what_check_counts():
    """The honest share of noise against the server, and aborts where a draw is a secret."""
    shared = CalibrationQuestion(
        *("skellam", "poisson", 1e-4, "tightest"),
        population=500,
        cohort=150,
        bits=20,
        dimension=50,
        rounds=4,
        noise_multiplier=5.0,
    )
    nobody, some = solve(replace(shared, colluders=0.0)), solve(shared)
    assert some.bound.epsilon > 1.05 * nobody.bound.epsilon
    assert some.to_json()["honest"] < 0.9
    masked = CalibrationQuestion(
        *("gaussian", "poisson", 1e-4, "tightest"),
        population=500,
        cohort=150,
        protocol="masks",
        rounds=40,
        noise_multiplier=3.0,
    )
    lossy, whole = solve(replace(masked, dropout=0.2)), solve(masked)
    assert lossy.bound.epsilon > whole.bound.epsilon
    assert lossy.to_json()["aborts"] > whole.to_json()["aborts"] > 0.0


@pytest.mark.parametrize(
    "asked, reason",
    [
        (
            {"mechanism": "skellam", "dimension": 50, "bits": 20, "sampler": "cyclic"}
            | {"population": 400, "separation": 4, "minimum": 70, "dropout": 0.6, "epsilon": 3.0},
            "would abort in",
        ),
        (
            {"mechanism": "gaussian", "sampler": "poisson", "protocol": "masks", "epsilon": 4.0}
            | {"population": 40, "cohort": 6},
            "nothing remains for the noise",
        ),
    ],
)
def test_calibrate_refuses_what_check_refuses(asked, reason):
    with pytest.raises(Refused, match=reason):
        solve(CalibrationQuestion(delta=1e-4, accountant="tightest", rounds=40, **asked))


def test_rounds_that_were_solved_for_are_accepted_by_check_and_no_more():
    """What aborts cost is weighed alike, whichever number is left out."""
    asked = CalibrationQuestion(
        *("gaussian", "poisson", 1e-4, "tightest"),
        population=500,
        cohort=150,
        protocol="masks",
        noise_multiplier=1.2,
        epsilon=8.0,
    )
    rounds = solve(asked).question.rounds
    keys = as_keys(replace(asked, epsilon=None, rounds=rounds))
    assert plan(load(None, keys)).guarantee.epsilon <= 8.0
    keys = as_keys(replace(asked, epsilon=None, rounds=rounds + 1))
    assert plan(load(None, keys)).guarantee.epsilon > 8.0


def test_a_rate_is_the_same_rule_as_clients_of_that_quotient():
    """Also of a user's own sampler, whose rule says more than what it inherits."""
    by_rate = CalibrationQuestion(
        "gaussian", "custom_parts:Twice", 1e-5, "tightest", sampling_rate=0.1, rounds=40
    )
    counted = replace(by_rate, sampling_rate=None, population=1000, cohort=100)
    for asked in (by_rate, counted):
        assert solve(replace(asked, noise_multiplier=2.0)).to_json()["sampling_rate"] == 0.2
    bounds = [solve(replace(asked, noise_multiplier=2.0)).bound for asked in (by_rate, counted)]
    assert bounds[0].epsilon == bounds[1].epsilon


def test_noise_that_pairs_share_needs_its_population_and_follows_from_no_draw():
    shared = replace(LOCAL, mechanism="pairwise_gaussian")
    with pytest.raises(Refused, match=r"population, the number of .*, is missing"):
        solve(shared)
    answers = [solve(replace(shared, population=n)) for n in (10, 100)]
    expected = solve(LOCAL).question.noise_multiplier
    for answer in answers:
        assert answer.question.noise_multiplier == pytest.approx(expected)
