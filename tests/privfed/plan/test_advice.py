"""Advice: every number is that of a run's plan, promises count, and flags are not ignored."""

import json
import math

import pytest
from click.testing import CliRunner
from lanes import every_case
from small import SMALL

from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan.calibration.advice import relative
from privfed.plan.calibration.advice_question import (
    AdviceQuestion,
    advice_on_run,
    advise,
    parse_assumptions,
)
from privfed.plan.plan import plan
from privfed.privacy.noise_on_model import noise_on_model

ALL = ("secret", "attendance", "separation")


def asked(epsilon=4.0, period=50, rounds=500, promises=ALL, **more):
    return advise(AdviceQuestion(epsilon, 1e-5, rounds, period=period, promises=promises, **more))


@pytest.fixture(scope="module")
def at_four():
    return asked(population=1000)


def evaluation_cost(advice, sampler, mechanism):
    """The noise on the model, over that of independent noise that nothing amplifies."""
    return relative(advice.of(sampler, mechanism), advice.of("cyclic", "gaussian"))


def test_the_known_figures(at_four):
    """FACTS, section 12: 500 rounds, a client once in 50 of them."""
    assert evaluation_cost(at_four, "cyclic", "banded") == pytest.approx(0.217, abs=1e-3)
    assert evaluation_cost(at_four, "cyclic", "blt") == pytest.approx(0.230, abs=1e-3)
    assert evaluation_cost(at_four, "allocation", "banded") == pytest.approx(0.172, abs=1e-3)
    assert evaluation_cost(at_four, "allocation", "gaussian") == pytest.approx(0.239, abs=1e-3)


@pytest.mark.slow
def test_the_known_figures_of_a_small_budget():
    at_one = asked(1.0)
    assert evaluation_cost(at_one, "allocation", "banded") == pytest.approx(0.149, abs=1e-3)
    assert at_one.ranked[0].keys["cohort.groups"] == at_one.ranked[0].keys["privacy.bands"] == 2


def test_the_least_noise_is_first_and_what_is_not_comparable_apart(at_four):
    noises = [each.noise_on_model for each in at_four.ranked]
    assert noises == sorted(noises)
    assert at_four.ranked[0].sampler == "allocation"
    assert [each.relation for each in at_four.apart] == ["replace-one"]
    assert at_four.reference.sampler == "poisson"
    assert relative(at_four.apart[0], at_four.reference) is None


@every_case(
    ("sampler", "mechanism"),
    [("poisson", "gaussian"), ("cyclic", "blt"), ("allocation", "banded")],
)
def test_each_number_is_that_of_the_plan_of_such_a_run(at_four, sampler, mechanism):
    advised = at_four.of(sampler, mechanism)
    words = [f"{key}={json.dumps(value)}" for key, value in advised.keys.items()]
    budget = ("privacy.epsilon=4.0", "privacy.delta=1e-5", "run.rounds=500", "data.clients=1000")
    planned = plan(load(None, [*budget, *words]))
    assert planned.noise_multiplier == pytest.approx(advised.noise_multiplier, rel=1e-4)
    noise = noise_on_model(planned.mechanism, 500, planned.config.sampler.size)
    assert noise == pytest.approx(advised.noise_on_model, rel=1e-4)
    assert planned.event.relation == advised.relation


def test_independent_noise_adds_up_over_rounds(at_four):
    alone = at_four.of("poisson", "gaussian")
    assert alone.noise_on_model == pytest.approx(alone.noise_multiplier * math.sqrt(501 / 2))


def test_what_was_not_promised_has_no_number():
    fixed = asked(promises=("separation",))
    assert {each.sampler for each in fixed.ranked} == {"cyclic"}
    assert {each.lacks for each in fixed.unavailable} == {("secret", "attendance")}
    assert fixed.reference.mechanism == "gaussian"
    nothing = asked(promises=())
    assert not nothing.ranked
    assert all(each.lacks for each in nothing.unavailable)


def test_cohorts_that_do_not_divide_the_clients_leave_draws_by_turns_out():
    uneven = advise(AdviceQuestion(2.0, 1e-5, 20, population=1000, cohort=300))
    assert {each.sampler for each in uneven.ranked} == {"poisson"}
    assert "333.3" in uneven.unavailable[0].reason


RUN = [word for word in SMALL if "noise_multiplier" not in word]


def test_a_run_is_advised_beside_its_own_noise_and_its_own_refusals():
    planned = plan(load(None, [*RUN, "privacy.epsilon=2.0"]))
    advice = advice_on_run(planned)
    assert advice.yours.noise_multiplier == planned.noise_multiplier
    assert ("poisson", "gaussian") not in {(a.sampler, a.mechanism) for a in advice.ranked}
    assert advice.beyond(advice.of("allocation", "gaussian")) == ("separation",)
    several = plan(load(None, [*RUN, "privacy.epsilon=2.0", "client.objective=feddane"]))
    refused = {each.mechanism: each.reason for each in advice_on_run(several).unavailable}
    assert "exchanges" in refused["banded"]
    assert "exchanges" in refused["blt"]


@every_case(
    ("words", "why"),
    [
        (("privacy.mechanism=none",), "server adds none"),
        (("privacy.noise_multiplier=2.0",), "no budget"),
        (("privacy.mechanism=local_gaussian", "privacy.epsilon=2.0"), "server adds"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, why):
    with pytest.raises(Refused, match=why):
        advice_on_run(plan(load(None, [*RUN, *words])))


def run(*words):
    return CliRunner().invoke(main, [*words])


SETTING = ("--rounds", "60", "--delta", "1e-4")


def test_the_command_prints_least_noise_first_and_says_what_it_rests_on():
    words = ("calibrate", "--advise", "--epsilon", "2", "--slots", "6", *SETTING)
    shown = run(*words).output
    assert shown.index("allocation, banded") < shown.index("cyclic, gaussian")
    assert "secret: no reader of the releases" in shown
    assert "rows instead of the" in shown
    facts = json.loads(run(*words, "--json").output)
    assert facts["alternatives"][0]["relative"] < 1
    assert "banded" in {each["mechanism"] for each in facts["alternatives"]}
    given = run(*words, "--promises", "separation", "--json").output
    assert {each["sampler"] for each in json.loads(given)["alternatives"]} == {"cyclic"}


@every_case(
    ("words", "why"),
    [
        (("--epsilon", "2"), "the same expected cohort"),
        (("--slots", "6"), "give --epsilon"),
        (("--epsilon", "2", "--slots", "6", "--separation", "6"), "give one"),
        (
            ("--epsilon", "2", "--slots", "6", "--population", "20"),
            "a multiple of 6, the number of rounds",
        ),
        (("--epsilon", "2", "--slots", "6", "--bands", "3"), "--bands"),
        (("--epsilon", "2", "--slots", "6", "--noise-multiplier", "3"), "--noise-multiplier"),
        (("--epsilon", "2", "--slots", "6", "--mechanism", "blt"), "--mechanism"),
        (("--epsilon", "2", "--slots", "6", "--promises", "secrets"), "did you mean 'secret'"),
        (("--epsilon", "2", "--population", "5", "--cohort", "9"), "at most the --population"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_flags_that_cannot_be_meant_are_refused(words, why):
    result = run("calibrate", "--advise", *SETTING, *words)
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_check_advises_on_request_and_says_so():
    words = [part for word in [*RUN, "privacy.epsilon=2.0"] for part in ("--set", word)]
    assert "check --advise" in run("check", *words).output
    advised = run("check", *words, "--advise")
    assert "yours: poisson" in advised.output
    facts = json.loads(run("check", *words, "--advise", "--json").output)
    assert facts["advice"]["yours"]["noise_multiplier"] == facts["noise_multiplier"]
    fixed = run("check", *words, "--set", "privacy.mechanism=none", "--advise")
    assert fixed.exit_code == 2


def test_promises_are_a_list_of_words():
    assert parse_assumptions("secret, separation") == ("secret", "separation")
    assert parse_assumptions("nothing") == ()
