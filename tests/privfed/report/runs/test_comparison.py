"""`privfed compare`: two runs side by side, what may be compared, and what they spent together."""

import json
import math
import os
from pathlib import Path

import pytest
from commands import run
from small import trained

import privfed
from privfed.auditing.joint_audit import audit_together
from privfed.auditing.run_audit import audit
from privfed.core.errors import Broken, Refused
from privfed.report.runs.compared import compare_runs

SAME = ("data.population=everybody",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("compared")
    trained(runs / "a", *SAME)
    trained(runs / "b", *SAME, "client.lr=0.1", "run.rounds=5")
    trained(runs / "fixed", "cohort.sampler=fixed_size", "privacy.delta=1e-4")
    trained(runs / "many", *SAME, "data.clients=60")
    trained(runs / "canaries", *SAME, "data.clients=60", "audit.canaries=20")
    trained(
        runs / "shared",
        "privacy.mechanism=skellam",
        "secure.protocol=masks",
        "secure.simulate=arithmetic",
        "run.rounds=2",
    )
    return runs


def test_guarantees_are_those_of_the_audit(folder):
    compared = compare_runs(folder / "a", folder / "shared")
    for side in compared.sides:
        audited = audit(Path(side.row.run)).to_json()
        assert [*side.guarantees] == audited["guarantees"]
        assert side.row.epsilon == audited["epsilon"]
    assert len(compared.sides[1].guarantees) == 2
    assert {each["against"] for each in compared.sides[1].guarantees} == {"server", "readers"}


def test_two_runs_over_the_same_people_are_accounted_together(folder):
    compared = compare_runs(folder / "a", folder / "b")
    assert compared.joint["epsilon"] == audit_together([folder / "a", folder / "b"]).bound.epsilon
    assert not compared.incomparable
    assert [each.key for each in compared.settings] == ["run.rounds", "client.lr"]
    shown = " ".join(run("compare", folder / "a", folder / "b").stdout.split())
    assert "comparable: same unit, adjacency relation, δ and party" in shown
    assert "client.lr 0.5 0.1" in shown
    assert "over both: for any one client" in shown


def test_epsilons_that_mean_different_things_are_not_compared(folder):
    compared = compare_runs(folder / "a", folder / "fixed")
    assert compared.incomparable == ("they differ in adjacency relation, δ",)
    assert compared.joint is None
    assert "are not over the same population" in compared.why_no_joint
    (why,) = compare_runs(folder / "a", folder / "shared").incomparable
    assert "the party against whom it holds" in why
    shown = run("compare", folder / "a", folder / "fixed").stdout
    assert "not comparable: they differ in adjacency relation, δ" in shown


def test_measures_and_epsilon_by_round_are_those_of_the_metrics(folder):
    side, _ = compare_runs(folder / "a", folder / "b").sides
    lines = map(json.loads, (folder / "a/metrics.jsonl").read_text().splitlines())
    points = [(line["round"], line["accuracy"], line["loss"], line["epsilon"]) for line in lines]
    assert [(p.round, p.value, p.loss, p.epsilon) for p in side.curve] == points
    assert side.curve[-1].epsilon == side.row.epsilon


def test_nothing_private_is_read(folder, monkeypatch):
    """What canaries saw lies there: the joint ε is left to the audit, which reads it."""
    original, seen = os.open, []
    monkeypatch.setattr(os, "open", lambda p, *a, **k: seen.append(Path(p)) or original(p, *a, **k))
    compared = compare_runs(folder / "many", folder / "canaries")
    assert seen
    assert not [path for path in seen if "private" in path.parts]
    assert compared.joint is None
    assert "privfed audit" in compared.why_no_joint
    assert "coin" not in json.dumps(compared.to_json())


def test_a_run_that_was_charged_nothing_has_no_epsilon_to_compare(folder, tmp_path):
    (tmp_path / "releases").mkdir()
    (tmp_path / "config.toml").write_bytes((folder / "a/config.toml").read_bytes())
    compared = compare_runs(folder / "a", tmp_path)
    assert compared.incomparable == (f"{tmp_path} has no charges yet",)
    assert compared.why_no_joint == "one of the runs released nothing"
    assert run("compare", folder / "a", tmp_path).exit_code == 0


def test_what_is_no_run_is_refused_and_what_is_broken_ends_with_its_code(folder, tmp_path):
    with pytest.raises(Refused, match="is not a run directory"):
        compare_runs(folder / "a", folder)
    (tmp_path / "config.toml").write_bytes((folder / "a/config.toml").read_bytes())
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(Broken, match="is broken"):
        compare_runs(tmp_path, folder / "a")
    result = run("compare", tmp_path, folder / "a", "--json")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["error"]["kind"] == "broken"


def test_in_python_it_is_an_answer(folder, monkeypatch):
    monkeypatch.chdir(folder)
    compared = privfed.compare("a", folder / "b")
    assert [side["run"] for side in compared.runs] == ["a", "b"]
    assert compared["joint"]["epsilon"] < math.inf
    assert json.loads(run("compare", "a", "b", "--json").stdout) == json.loads(
        json.dumps(dict(compared))
    )
    assert "by round" in str(compared)
    with pytest.raises(Refused, match="second is 3; expected a path"):
        privfed.compare("a", 3)
