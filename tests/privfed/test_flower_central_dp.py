"""Flower's accounted central DP under its own claim: refuted where cohorts are drawn, else not."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from accounting.accountants import epsilon
from accounting.events import Event
from accounting.noises import Gaussian
from privfed.auditing.function_audit import FunctionClaim, audit_function
from privfed.auditing.released_function import ReleasedFunction

FOLDER = Path(__file__).parents[2] / "experiments/audits_elsewhere"


def lines(name):
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_says_what_its_files_say():
    page = (FOLDER / "README.md").read_text("utf-8")
    for line in lines("flower_central_dp.csv"):
        shown = f"| `{line['scene']}` | {line['clients']} | {line['relation']} |"
        assert shown in page
        bound, p_value = float(line["epsilon_lower_bound"]), float(line["p_value"])
        true = "∞" if line["epsilon_true"] == "inf" else f"{float(line['epsilon_true']):.2f}"
        assert f"| {true} | {bound:.2f} | {p_value:.1g} |" in page
        assert (line["refuted"] == "True") is (p_value < 1e-6)
    for line in lines("flower_one_run.csv"):
        claimed, bound, most = (
            float(line[key]) for key in ("epsilon_claimed", "epsilon_lower_bound", "epsilon_most")
        )
        assert f"| {line['canaries']} | {claimed:.2f} | {bound:.2f} | {most:.2f} |" in page


@pytest.fixture(scope="module")
def flower():
    pytest.importorskip("flwr", minversion="1.42", reason="Flower 1.42 is not installed")
    from experiments.audits_elsewhere import flower_central_dp

    return flower_central_dp


def audited(flower, name, releases):
    scene = getattr(flower, name)
    claim = FunctionClaim.of_profile(scene.profile, flower.DELTA)
    return audit_function(ReleasedFunction.of(scene, name), claim, releases)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "releases", "refuted"),
    [
        ("one_more", 3000, True),
        ("sends_no_number", 300, True),
        ("everybody_takes_part", 1000, False),
        ("its_place_stays", 1000, False),
    ],
)
def test_a_fixed_cohort_breaks_the_claim_where_the_target_takes_a_place(
    flower, scene, releases, refuted
):
    assert audited(flower, scene, releases).refuted is refuted


@pytest.mark.slow
def test_the_claim_is_that_of_gaussian_noise_on_everybody(flower):
    noise = Event(Gaussian(flower.NOISE_MULTIPLIER), "full")
    ours = epsilon({noise: 1}, flower.DELTA, "rdp")
    assert flower.twice_as_many.profile(flower.DELTA) == pytest.approx(ours, rel=1e-2)


@pytest.mark.slow
def test_a_row_of_zeros_ends_the_round(flower):
    idle = flower.CentralDp(flower.COHORT, leaves=False, row=0.0)
    with pytest.raises(ZeroDivisionError):
        idle(True, np.random.default_rng(1))


@pytest.mark.slow
def test_one_run_shows_less_than_is_claimed(flower):
    from experiments.audits_elsewhere.flower_one_run import OneRun, play

    verdict = play(OneRun(1, 20, 20, 60, 500), np.random.default_rng(1))
    assert verdict.epsilon_lower <= verdict.epsilon_most < verdict.epsilon < math.inf
    assert verdict.p_value > 1e-3
