"""Sampling of examples (ELS) against sampling of clients (ULS): `calibrate --examples --batch`."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

import privfed
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import SeveralSites
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.plan.calibration.example_sampling import _groups, compare_sampling
from privfed.plan.calibration.question import CalibrationQuestion

ASKED = {"epsilon": 1, "delta": 1e-5, "rounds": 200, "population": 1000, "examples": 6, "batch": 60}


@pytest.fixture(scope="module")
def aligned():
    return compare_sampling(CalibrationQuestion.of(ASKED))


@pytest.fixture(scope="module")
def diverse():
    return compare_sampling(CalibrationQuestion.of({**ASKED, "gradient_ratio": 0.0}))


def test_each_row_spends_the_budget_and_no_more(aligned):
    assert [each.examples for each in aligned.els] == [1, 2, 4, 6]
    for each in aligned.els[1:]:
        assert each.rate == 60 / (1000 * each.examples)
        event = Event(
            SeveralSites(each.rate, each.examples, Gaussian(each.noise_multiplier)), "poisson"
        )
        assert 0.999 < guarantee({event: 200}, 1e-5).epsilon <= 1.0
        assert each.noise == pytest.approx(each.noise_multiplier / 60)


def test_uls_is_what_calibrate_solves_for_a_cohort_of_clients(aligned):
    for each in aligned.uls[:2]:
        cohort = privfed.calibrate(
            epsilon=1, delta=1e-5, rounds=200, population=1000, cohort=60 // each.examples
        )
        assert each.noise_multiplier == pytest.approx(cohort.noise_multiplier, rel=1e-5)


def test_with_one_example_both_are_the_same_mechanism(aligned):
    assert aligned.els[0].noise == pytest.approx(aligned.uls[0].noise, rel=1e-5)
    assert aligned.better == "equal"
    assert aligned.best_els.examples == aligned.best_uls.examples == 1


def test_parallel_gradients_favour_sampling_of_examples_at_equal_groups(aligned):
    both = list(zip(aligned.els, aligned.uls, strict=False))[1:]
    assert both
    assert all(els.noise < uls.noise for els, uls in both)


def test_gradients_that_average_out_favour_sampling_of_clients(aligned, diverse):
    assert diverse.better == "uls"
    assert diverse.best_uls.examples > 1
    assert diverse.uls[1].noise == pytest.approx(aligned.uls[1].noise / math.sqrt(2))


def test_at_the_break_even_ratio_both_have_the_same_noise(aligned):
    at = compare_sampling(replace(aligned.question, gradient_ratio=aligned.break_even))
    assert min(each.noise for each in at.uls[1:]) == pytest.approx(at.best_els.noise, rel=1e-4)


def test_a_batch_beyond_the_clients_makes_examples_the_better_unit():
    """Three examples per two clients: ULS has both of a client's or none, ELS often one."""
    answer = compare_sampling(CalibrationQuestion.of({**ASKED, "examples": 2, "batch": 1500}))
    assert [each.examples for each in answer.els] == [2]
    assert answer.better == "els"


def test_groups_hold_no_more_examples_than_there_are():
    assert _groups(1000, 60, 1) == [1]
    assert _groups(1000, 60, 10) == [1, 2, 4, 8, 10]
    assert _groups(1000, 4500, 10) == [5, 8, 10]
    assert _groups(1000, 10_000, 10) == [10]


def test_the_command_prints_the_table_and_the_same_facts(aligned):
    flags = [part for name, value in ASKED.items() for part in (f"--{name}", str(value))]
    shown = CliRunner().invoke(main, ["calibrate", *flags])
    assert shown.exit_code == 0, shown.output
    assert "less noise: equal" in shown.output
    assert "privfed samples clients (ULS)" in shown.output
    facts = json.loads(CliRunner().invoke(main, ["calibrate", *flags, "--json"]).output)
    assert facts == json.loads(json.dumps(aligned.to_json()))
    assert facts["relation"] == "add/remove"
    assert facts["unit"] == "client"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch": None}, "batch is missing"),
        ({"examples": None}, "examples is missing"),
        ({"epsilon": None}, "epsilon is missing"),
        ({"cohort": 10}, "cohort is given"),
        ({"sampler": "full"}, "sampler is given"),
        ({"examples": 1025}, "expected 1 to 1024"),
        ({"batch": 6001}, "batch is 6001; expected 1 to 6000"),
        ({"gradient_ratio": 1.5}, "gradient_ratio is 1.5"),
        ({"epsilon": 1e-9, "delta": 1e-13}, "epsilon is 1e-09"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    with pytest.raises(Refused, match=message):
        privfed.calibrate(**{**ASKED, **change})


def test_advice_does_not_ignore_the_flags():
    flags = [part for name, value in ASKED.items() for part in (f"--{name}", str(value))]
    refused = CliRunner().invoke(main, ["calibrate", "--advise", *flags])
    assert refused.exit_code == 2
    assert "--examples, --batch is given" in " ".join(refused.output.split())
