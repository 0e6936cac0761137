"""Which client misbehaved: stated levels hold, and are refuted where none is stated."""

import csv
import json

import numpy as np
import pytest
import torch
from lanes import every_case, mostly_slow
from small import same_run, small, stop_after, trained

from privfed.plan.plan import plan
from privfed.report.page.write import write_run_page
from privfed.round.tally import standings
from privfed.run.misbehaving import (
    LEVEL,
    benjamini_hochberg,
    benjamini_yekutieli,
    conformal,
    misbehaviour_in,
)
from privfed.run.train import resume

WATCHED = (
    "run.simulation_metrics=true", "run.evaluate_every=3", "privacy.mechanism=none",
    "aggregation.rule=median", "cohort.sampler=full", "cohort.size=0", "run.randomness=seeded",
)  # fmt: skip
ATTACKED = ("attack.name=ipm", "attack.fraction=0.25", "data.clients=40")


# how rows stand


def test_standings_by_hand():
    """The second lies against the first two, the fourth repeats the third, the last is broken."""
    rows = [[2.0, 0.0], [-1.0, 0.0], [5.0, 5.0], [5.0, 5.0], [torch.nan, 0.0]]
    counts = standings(torch.tensor(rows), torch.tensor([1.0, 0.0]))
    assert counts["far"].tolist() == [5, 4, 3, 3, 1]
    assert counts["against"].tolist() == [4, 1, 3, 3, 5]
    assert counts["alike"].tolist() == [4, 4, 2, 2, 5]


def test_standings_of_nobody_of_one_and_of_no_direction():
    assert standings(torch.zeros(0, 3), torch.zeros(3))["far"].tolist() == []
    for name, counts in standings(torch.ones(1, 3), torch.zeros(3)).items():
        assert counts.tolist() == [1], name
    assert standings(torch.zeros(4, 3), torch.zeros(3))["against"].tolist() == [4] * 4


# discoveries


@pytest.mark.parametrize("rule", [benjamini_hochberg, benjamini_yekutieli])
def test_discoveries_are_their_definition(rule):
    rng = np.random.default_rng(0)
    for n in (1, 7, 30):
        for _ in range(20):
            p = rng.random(n) ** 3
            level = 0.2 / (
                sum(1 / k for k in range(1, n + 1)) if rule is benjamini_yekutieli else 1
            )
            passing = [k for k in range(1, n + 1) if np.sort(p)[k - 1] <= level * k / n]
            wanted = set(np.argsort(p)[: max(passing, default=0)])
            assert set(np.flatnonzero(rule(p, 0.2))) == wanted
    assert rule(np.zeros(0), 0.1).tolist() == []


def played(values, cohorts):
    """Lines of rounds in which clients of `cohorts` stand out by their `values` `[rounds, n]`."""
    for round, (value, who) in enumerate(zip(values, cohorts, strict=True), start=1):
        counts = [int((value[who] >= value[client]).sum()) for client in who]
        measures = dict.fromkeys(("far", "against", "alike"), counts)
        yield {"round": round, "clients": who.tolist(), **measures}


def simulated_evidence(rng, *, rounds=12, n=60, character=0.0, byzantine=0, push=3.0, cohort=None):
    """Values `[rounds, n]`: noise, what a client always is, and a push by the first ones."""
    values = rng.normal(size=(rounds, n)) + character * rng.normal(size=n)
    values[:, :byzantine] += push
    cohorts = [np.sort(rng.permutation(n)[: cohort or n]) for _ in range(rounds)]
    return misbehaviour_in(played(values, cohorts), n, np.arange(n) < byzantine)


def rate_up_to(level, p_values):
    """How often p is at most `level`, of one client, fixed beforehand, in many populations."""
    return np.mean([p <= level for p in p_values])


def bound(level, trials):
    """What a rate of `level` exceeds in one of 10,000 such experiments."""
    return level + 3.72 * np.sqrt(level * (1 - level) / trials)


@pytest.mark.parametrize("cohort", mostly_slow([None, 20], None))
def test_clients_who_are_alike_are_called_different_no_more_often_than_stated(cohort):
    rng, trials = np.random.default_rng(1), 400
    p_values = [
        simulated_evidence(rng, cohort=cohort).measures["far"].p_differs[0] for _ in range(trials)
    ]
    for level in (0.05, 0.2, 0.5):
        assert rate_up_to(level, p_values) <= bound(level, trials)
    assert rate_up_to(0.5, p_values) > 0.3, "and not for want of power"


def test_rows_that_are_all_the_same_speak_against_nobody():
    """Ties count in full against cohorts, and by half in scores."""
    alike = np.zeros((5, 8))
    tied = misbehaviour_in(played(alike, [np.arange(8)] * 5), 8, None).measures["far"]
    assert tied.p_differs.tolist() == [1.0] * 8
    np.testing.assert_allclose(tied.score, -np.log((8 + 1) / 16))


def test_an_honest_client_unlike_others_is_called_different_far_too_often():
    """What the test against cohorts does not mean: the null is not that a client is honest."""
    rng, trials = np.random.default_rng(2), 200
    p_values = [
        simulated_evidence(rng, character=1.5).measures["far"].p_differs[0] for _ in range(trials)
    ]
    assert rate_up_to(0.05, p_values) > 1.5 * bound(0.05, trials)


@pytest.mark.parametrize("character", mostly_slow([0.0, 1.5, 10.0], 1.5))
def test_against_honest_clients_it_is_named_no_more_often_than_stated(character):
    """However unlike they are, and however much a client's rounds have in common."""
    rng, trials, n = np.random.default_rng(3), 400, 40
    p_values = []
    for _ in range(trials):
        values = rng.normal(size=(6, n)) + character * rng.normal(size=n)
        lines = played(values, [np.arange(n)] * 6)
        suspected = np.arange(n) == 0  # who is as honest as all others
        p_values.append(misbehaviour_in(lines, n, suspected).measures["far"].p_honest[0])
    for level in (0.05, 0.2, 0.5):
        assert rate_up_to(level, p_values) <= bound(level, trials)
    assert rate_up_to(0.5, p_values) > 0.4


def test_a_p_value_that_forgets_the_client_itself_is_refuted():
    """Without the ones that are added, the highest of all has p = 0."""
    rng, trials, n = np.random.default_rng(4), 400, 20
    p_values = []
    for _ in range(trials):
        score = rng.normal(size=n)
        p_values.append(float((score[1:] >= score[0]).sum() / (n - 1)))
    assert rate_up_to(0.0, p_values) > 0.01
    suspected = np.arange(n) == 0
    assert conformal(np.arange(n, 0, -1.0), suspected)[0] == 1 / n


@every_case("character", [0.0, 2.0])
@every_case("push", [0.0, 1.0, 5.0])
def test_of_those_named_no_more_are_honest_than_declared_in_any_run(character, push):
    rng = np.random.default_rng(5)
    for _ in range(40):
        evidence = simulated_evidence(rng, byzantine=20, push=push, character=character)
        named = evidence.measures["far"].named
        honest = int((named & ~evidence.byzantine).sum())
        assert honest <= LEVEL * named.sum()


def test_who_pushes_hard_is_found_and_too_few_cannot_be():
    rng = np.random.default_rng(6)
    many = simulated_evidence(rng, byzantine=20, push=5.0).measures["far"]
    assert many.named[:20].all()
    few = simulated_evidence(rng, byzantine=3, push=50.0)
    assert few.measures["far"].to_json(few.byzantine)["auc"] == 1.0
    assert not few.measures["far"].named.any(), "3 < 60 / (0.1 x 58)"


def test_nobody_hostile_or_all_of_them_leaves_out_what_needs_both():
    rng = np.random.default_rng(7)
    for byzantine in (0, 60):
        evidence = simulated_evidence(rng, byzantine=byzantine)
        assert evidence.byzantine is None
        assert evidence.measures["far"].p_honest is None
        assert "auc" not in evidence.to_json()["far"]
    assert misbehaviour_in([], 5, None) is None


# in runs


def table(path):
    file = path / "report/simulation_only_clients.csv"
    return list(csv.DictReader(file.read_text().splitlines()))


def test_a_simulation_says_who_misbehaved(tmp_path):
    outcome = trained(tmp_path / "run", *WATCHED, *ATTACKED)
    facts = outcome.to_json()["misbehaviour"]
    assert facts["byzantine"] == 10
    assert facts["alike"]["auc"] == 1.0, "they all send one row"
    lines = table(tmp_path / "run")
    assert len(lines) == facts["clients"] == 40
    attackers = json.loads((tmp_path / "run/report/attackers.json").read_text())["clients"]
    assert [int(line["client"]) for line in lines if line["byzantine"] == "yes"] == attackers
    assert {line["rounds"] for line in lines} == {"7"}
    page = write_run_page(tmp_path / "run", None, True).path.read_text("utf-8")
    assert "Suspicious clients" in page
    assert "Suspicious clients, by measure" in page
    assert "stood out" not in write_run_page(tmp_path / "run", None, False).path.read_text("utf-8")


@pytest.mark.parametrize(
    "keys, rounds",
    [(("attack.first_round=3",), "5"), (("attack.first_round=2", "attack.last_round=2"), "1")],
    ids=["later", "once"],
)
def test_evidence_is_of_the_rounds_of_the_attack(tmp_path, keys, rounds):
    """Others, in which the hostile are like everybody, would only hide them."""
    outcome = trained(tmp_path / "run", *WATCHED, *ATTACKED, *keys)
    assert outcome.to_json()["misbehaviour"]["byzantine"] == 10
    assert outcome.to_json()["misbehaviour"]["alike"]["auc"] == 1.0
    assert {line["rounds"] for line in table(tmp_path / "run")} == {rounds}


def test_an_attack_after_the_last_round_is_nobodys(tmp_path):
    outcome = trained(tmp_path / "run", *WATCHED, *ATTACKED, "attack.first_round=9")
    assert outcome.misbehaviour.byzantine is None
    assert {line["rounds"] for line in table(tmp_path / "run")} == {"7"}


@every_case("last", [2, 4, 6])
def test_a_run_that_was_killed_says_the_same(tmp_path, monkeypatch, last):
    trained(tmp_path / "whole", *WATCHED, *ATTACKED)
    with monkeypatch.context() as patch:
        stop_after(last, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", *WATCHED, *ATTACKED)
    log = tmp_path / "cut/report/simulation_only_ranks.jsonl"
    log.write_text(log.read_text() + '{"round": 9, "cli')  # torn
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert table(tmp_path / "whole") == table(tmp_path / "cut")


@every_case(
    "keys",
    [
        ("run.simulation_metrics=false",),
        ("aggregation.rule=mean",),
        ("aggregation.rule=mean", "privacy.mechanism=gaussian"),
    ],
)
def test_without_asking_and_without_rows_there_is_nothing(tmp_path, keys):
    outcome = trained(tmp_path / "run", *WATCHED, *ATTACKED, *keys)
    assert outcome.misbehaviour is None
    assert "misbehaviour" not in outcome.to_json()
    assert not [*(tmp_path / "run/report").glob("simulation_only*")]


def test_attackers_who_change_have_no_truth_by_client(tmp_path):
    keys = ("attack.selection=round",)
    outcome = trained(tmp_path / "run", *WATCHED, *ATTACKED, *keys)
    assert outcome.misbehaviour.byzantine is None
    assert {line["byzantine"] for line in table(tmp_path / "run")} == {""}


def test_a_run_that_watches_says_it_is_a_simulation():
    assert "epsilon does not cover" in plan(small(*WATCHED, "run.randomness=secret")).simulation
