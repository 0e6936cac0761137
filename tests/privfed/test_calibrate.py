"""Any one of noise, rounds, cohort and epsilon from the others; nothing given is ignored."""

import json
import math
from dataclasses import replace

import pytest
from test_cli import run

from privfed.calibrate import Question, alternatives, solve
from privfed.errors import Refused

POISSON = Question("gaussian", "poisson", 1e-5, "tightest", rate=0.02, rounds=200, epsilon=2.0)
FIXED = Question(
    "gaussian", "fixed_size", 1e-5, "tightest", population=5000, cohort=100, rounds=200, epsilon=2.0
)
CYCLIC = Question("banded", "cyclic", 1e-5, "tightest", separation=10, rounds=200, epsilon=2.0)
LOCAL = Question("local_gaussian", "full", 1e-5, "tightest", rounds=5, epsilon=2.0)
CUT = replace(FIXED, sampler="truncated_poisson")


@pytest.mark.parametrize("asked", [POISSON, FIXED, CYCLIC, LOCAL, CUT], ids=lambda q: q.sampler)
def test_each_number_is_found_back_from_the_others(asked):
    whole = solve(asked)
    noise = whole.question.noise_multiplier
    assert whole.solved == "noise_multiplier"
    assert whole.bound.epsilon <= 2.0
    assert whole.bound.epsilon == pytest.approx(2.0, rel=1e-3)
    back = solve(replace(asked, epsilon=None, noise_multiplier=noise))
    assert back.bound.epsilon == whole.bound.epsilon
    rounds = solve(replace(asked, rounds=None, noise_multiplier=noise)).question.rounds
    step = whole.question.witness().separation  # within it, more rounds cost nothing
    assert asked.rounds <= rounds < asked.rounds + max(step, 2)
    more = replace(asked, rounds=rounds + 1, noise_multiplier=noise, epsilon=None)
    assert solve(more).bound.epsilon > 2.0
    if asked.sampler == "full":
        return
    blank = replace(asked, cohort=None, rate=None, separation=None, noise_multiplier=noise)
    found = solve(blank).question
    for name in ("cohort", "rate", "separation"):
        if getattr(asked, name) is not None:
            assert getattr(found, name) == pytest.approx(getattr(asked, name), rel=2e-3)
    assert found.guarantee().epsilon <= 2.0


def test_the_command_answers_for_fixed_size_under_replace_one():
    words = ["--sampler", "fixed_size", "--population", 10_000, "--cohort", 100, "--rounds", 1000]
    result = run("calibrate", *words, "--delta", 1e-5, "--noise-multiplier", 4, "--json")
    found = json.loads(result.stdout)
    assert found["relation"] == "replace-one"
    assert found["epsilon"] == pytest.approx(1.4453, abs=1e-3)
    assert found["noise_multiplier"] == 4
    assert found["accountants"]["pld"] is None


def test_larger_cohorts_may_fit_where_small_truncated_ones_do_not():
    asked = replace(
        *(CUT,), population=2000, cohort=None, rounds=50, noise_multiplier=0.6, epsilon=7.5
    )
    found = solve(asked)
    assert found.question.cohort > 60
    assert found.bound.epsilon <= 7.5
    capped = solve(replace(asked, cap=70, epsilon=12.0))
    assert capped.question.cohort <= 70


@pytest.mark.parametrize("asked", [POISSON, FIXED, CYCLIC], ids=lambda q: q.sampler)
def test_alternatives_change_one_number_each(asked):
    answer = solve(asked)
    found = dict(alternatives(answer))
    assert found["half the rounds"].question.noise_multiplier < answer.question.noise_multiplier
    assert found["2x epsilon"].question.noise_multiplier < answer.question.noise_multiplier
    assert found["a tenth of delta"].question.noise_multiplier > answer.question.noise_multiplier
    if asked.sampler != "cyclic":
        # More noise, but less of it on the mean.
        noisier = found["2x the cohort"].question.noise_multiplier
        assert 1 < noisier / answer.question.noise_multiplier < 2


CAPPED = {"sampler": "truncated_poisson", "rate": None, "population": 100, "cohort": 5}


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"noise_multiplier": 1.0}, "nothing is left"),
        ({"epsilon": None}, "2 are missing"),
        ({"population": 10}, "either it or these"),
        ({"cap": 5}, "--cap: not for gaussian"),
        ({"separation": 5}, "--separation: not for"),
        ({"bands": 5}, "--bands is for"),
        ({"epsilon": None, "noise_multiplier": math.nan}, "expected a number"),
        ({"epsilon": None, "noise_multiplier": 1e12}, "expected a number"),
        ({"rate": None, "population": 10, "noise_multiplier": 0.01}, "more than epsilon"),
        ({"rate": None, "noise_multiplier": 0.0}, "no sampling rate"),
        ({"mechanism": "local_gaussian"}, "neither population nor cohort"),
        ({"epsilon": math.nan}, "positive number"),
        ({"epsilon": None, "noise_multiplier": 1.0, **CAPPED, "accountant": "rdp"}, "no proof"),
        ({"mechanism": "banded"}, "keeps 1 rounds"),
        ({"sampler": "cyclic"}, "--sampling-rate: not for"),
        ({"sampler": "fixed_size", "rate": None, "cohort": 5}, "needs --population"),
        ({"sampler": "full", "rate": None, "cohort": 5}, "--cohort: not for"),
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
    words = ["--sampling-rate", 0.1, "--rounds", 20, "--delta", 1e-4, "--epsilon", 4]
    shown = run("calibrate", *words).stdout
    assert "(solved for)" in shown
    assert "2x the cohort" in shown
    assert "add/remove" in shown
