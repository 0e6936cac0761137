"""A part is one file: toys of every kind from outside are checked, trained and audited."""

import json

import pytest
from commands import run
from small import SMALL, small

from privfed.auditing.mechanism_audit import audit_mechanism
from privfed.auditing.run_audit import audit
from privfed.config import catalog
from privfed.config.reading import as_written
from privfed.config.sections import SECTIONS
from privfed.core.registry import BUILT_IN, LISTS
from privfed.plan.matrix import AXES, built_in, combination, combinations

OPEN = ("privacy.mechanism=none",)
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
BY_CLIENTS = ("evaluation.by=clients", "evaluation.every=7")
TOYS = {
    "source": ("data.source=toys:Stripes", "data.clients=20"),
    "partition": ("data.partition=toys:InTurn",),
    "shift": ("data.shift=toys:Mirrored",),
    "model": ("model.name=toys:TwoLayers", "model.width=2"),
    "loss": ("model.loss=toys:Brier",),
    "objective": ("client.objective=toys:Halved",),
    "compression": ("compression.name=toys:Evens",),
    "client_mechanism": (
        "client.privacy.mechanism=toys:NoisySteps",
        "data.setting=cross_silo",
        *EVERYBODY,
        *OPEN,
    ),
    "client_schedule": ("client.schedule=toys:Fading",),
    "optimizer": ("server.optimizer=toys:Signs",),
    "server_schedule": ("server.schedule=toys:Fading",),
    "sampler": ("cohort.sampler=toys:Coins",),
    "availability": ("cohort.availability=toys:Alternating",),
    "mechanism": ("privacy.mechanism=toys:Loud",),
    "rule": ("aggregation.rule=toys:Shrunk",),
    "attack": ("attack.name=toys:Doubling", "attack.fraction=0.25"),
    "before": ('aggregation.before=["toys:Untouched"]', *OPEN),
    "protocol": ("secure.protocol=toys:Counted", *EVERYBODY),
    "measure": (*BY_CLIENTS, 'evaluation.measures=["toys:Sureness"]'),
    "watcher": ('run.watch=["toys:Counting"]',),
}
CASES = {
    **TOYS,
    "rule on rows": ("aggregation.rule=toys:FirstRow", *OPEN),
    "objective with a course": ("client.objective=toys:Turns",),
}


def name_of(kind):
    return next(key for key in TOYS[kind] if "toys:" in key).partition("=")[2]


def flags(case):
    """The small run with a toy, as a user types it."""
    noiseless = set(OPEN) <= {*CASES[case]}
    keys = [key for key in SMALL if not (noiseless and "noise_multiplier" in key)]
    return [word for key in (*keys, *CASES[case]) for word in ("--set", key)]


def test_there_is_a_toy_of_every_kind():
    kinds = {kind for section in SECTIONS.values() for kind, _ in section.parts.values()}
    assert TOYS.keys() == BUILT_IN.keys() == kinds | {*LISTS}


@pytest.mark.parametrize("case", CASES)
def test_it_is_checked_trained_reported_and_audited(case, tmp_path):
    checked = run("check", *flags(case), "--json")
    assert checked.exit_code == 0, checked.output
    result = run("train", *flags(case), "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    toy = next(key for key in CASES[case] if "toys:" in key).rpartition("toys:")[2].strip('"]')
    assert f"toys:{toy}" in (tmp_path / "run/config.toml").read_text()
    summary = json.loads((tmp_path / "run/report/summary.json").read_text())
    assert summary["charges"] == 7
    assert summary["epsilon"] == pytest.approx(json.loads(checked.stdout)["epsilon"])
    assert audit(tmp_path / "run").problems == ()


def test_the_plan_names_it():
    shown = " ".join(run("check", *flags("mechanism")).output.split())
    assert "toys:Loud, sensitivity 0.4" in shown


def test_a_mechanism_is_tested_whatever_it_calls_its_noise():
    assert not audit_mechanism(small("privacy.mechanism=toys:Loud"), 400).refuted


@pytest.mark.parametrize("kind", AXES)
def test_the_matrix_proves_it_or_refuses_it_with_a_reason(kind):
    written = as_written(None, SMALL)
    for mechanism in ("gaussian", "none", "skellam", "local_gaussian"):
        one = combination(written, {"mechanism": mechanism, kind: name_of(kind)})
        assert (one.event is None) == bool(one.reasons)
        if kind != "protocol" and mechanism in ("gaussian", "none"):
            assert one.event is not None, one.reasons


@pytest.mark.parametrize("kind", ["sampler", "mechanism", "protocol"])
def test_budgets_are_solved_for_it(kind):
    drawn = ("--population", "1000", "--cohort", "300") if kind == "protocol" else ()
    drawn = drawn or ("--sampling-rate", "0.1")
    budget = ("--rounds", "20", "--delta", "1e-5", "--epsilon", "4")
    solved = run("calibrate", f"--{kind}", name_of(kind), *drawn, *budget, "--json")
    assert solved.exit_code == 0, solved.output
    assert 0.5 < json.loads(solved.stdout)["noise_multiplier"] < 10


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind not in LISTS])
def test_one_registered_line_lists_it(kind, monkeypatch):
    monkeypatch.setitem(BUILT_IN[kind], "toy", name_of(kind))
    assert catalog.catalog()[kind]["toy"].startswith(("A ", "An "))
    if kind in AXES:
        written = as_written(None, SMALL)
        names = [one.choice[kind] for one in combinations(written, built_in(kind))]
        assert names[-1] == "toy"
