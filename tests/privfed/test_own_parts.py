"""A part is one file: toys of every kind from outside are checked, trained and audited."""

import inspect
import json
import sys
from typing import Any

import pytest
import torch
from commands import run
from lanes import every_case
from small import SMALL, small
from toys import Brier, Evens

from defenses.by_sums.mean import Mean
from defenses.history import HistoryRule
from defenses.on_rows.krum import Krum
from defenses.on_rows.median import Median
from defenses.types import RowRule, SumRule
from defenses.weighing import DrawnWeights, WeightRule
from privfed.auditing.mechanism_audit import audit_mechanism
from privfed.auditing.run_audit import audit
from privfed.client.objective import Sgd
from privfed.config import catalog
from privfed.config.reading import as_written, load
from privfed.config.sections import SECTIONS
from privfed.core import answers, parts
from privfed.core.errors import Refused
from privfed.core.registry import BUILT_IN, CONTRACTS, LISTS
from privfed.plan.matrix import AXES, built_in, combination, combinations
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.run.train import train
from privfed.sampling.samplers import Poisson

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
    assert not audit_mechanism(small("privacy.mechanism=toys:Loud"), 100).refuted


@every_case("kind", AXES)
def test_the_matrix_proves_it_or_refuses_it_with_a_reason(kind):
    written = as_written(None, SMALL)
    for mechanism in ("gaussian", "none", "skellam", "local_gaussian"):
        one = combination(written, {"mechanism": mechanism, kind: name_of(kind)})
        assert (one.event is None) == bool(one.reasons)
        if kind != "protocol" and mechanism in ("gaussian", "none"):
            assert one.event is not None, one.reasons


@every_case("kind", ["sampler", "mechanism", "protocol"])
def test_budgets_are_solved_for_it(kind):
    drawn = ("--population", "1000", "--cohort", "300") if kind == "protocol" else ()
    drawn = drawn or ("--sampling-rate", "0.1")
    budget = ("--rounds", "20", "--delta", "1e-5", "--epsilon", "4")
    solved = run("calibrate", f"--{kind}", name_of(kind), *drawn, *budget, "--json")
    assert solved.exit_code == 0, solved.output
    assert 0.5 < json.loads(solved.stdout)["noise_multiplier"] < 10


@every_case("kind", [kind for kind in BUILT_IN if kind not in LISTS])
def test_one_registered_line_lists_it(kind, monkeypatch):
    monkeypatch.setitem(BUILT_IN[kind], "toy", name_of(kind))
    assert catalog.catalog()[kind]["toy"].startswith(("A ", "An "))
    if kind in AXES:
        written = as_written(None, SMALL)
        names = [one.choice[kind] for one in combinations(written, built_in(kind))]
        assert names[-1] == "toy"


class AnyRow(RowRule):
    def __call__(self, rows, byzantine):
        return rows[0]


THREE = torch.zeros(3)
BASES = {
    "client.objective": (Sgd, ()),
    "privacy.mechanism": (CentralGaussian, ()),
    "aggregation.rule": (Mean, ()),
    "aggregation.rule of rows": (AnyRow, OPEN),
    "aggregation.rule of weights": (Krum, (*OPEN, *EVERYBODY)),  # three weights are too few
    "aggregation.rule of columns": (Median, OPEN),
    "compression.name": (Evens, ()),
    "cohort.sampler": (Poisson, ()),
    "model.loss": (Brier, ()),
}
HOOKS = {
    "client.objective": (
        *(
            "layout",
            "init",
            "prelude",
            "initial_client_state",
            "origin",
            "carry",
            "along",
            "direction",
        ),
        *("message", "admitted", "conclude", "state_length"),
    ),
    "privacy.mechanism": ("event", "init", "encoding", "width", "resolved", "bound", "release"),
    "aggregation.rule": ("terms", "step", "center_after", "memory", "memory_after", "within"),
    "aggregation.rule of rows": (
        "__call__",
        "needs",
        "most",
        "unfit_reason",
        "memory",
        "memory_after",
    ),
    "aggregation.rule of weights": ("mix",),
    "aggregation.rule of columns": ("columns",),
    "compression.name": ("encode", "decode", "length"),
    "cohort.sampler": ("sample", "witness"),
    "model.loss": ("losses", "scores", "measures", "width"),
}
SHAPED = {
    "client.objective": {
        **dict.fromkeys(("origin", "direction", "admitted"), THREE),
        "along": (THREE, None),
        "message": (THREE, None),
        "conclude": (THREE, {}),
    },
    "privacy.mechanism": {"bound": BoundedRows(THREE[None], 0.4), "release": (THREE, {})},
    "aggregation.rule": dict.fromkeys(("terms", "step", "center_after"), THREE),
    "aggregation.rule of rows": {"__call__": THREE},
    "aggregation.rule of weights": {"mix": THREE[None]},
    "aggregation.rule of columns": {"columns": THREE[None]},
    "compression.name": {"encode": (THREE, None), "decode": (THREE, {})},
}
WRONG = [
    *(
        (key, hook, "text")
        for key, hooks in HOOKS.items()
        for hook in hooks
        if hook != "unfit_reason"
    ),
    *((key, hook, None) for key, hooks in HOOKS.items() for hook in hooks if hook != "carry"),
    *((key, hook, value) for key, hooks in SHAPED.items() for hook, value in hooks.items()),
]


@pytest.mark.parametrize(
    ("key", "hook", "returned"),
    [
        pytest.param(
            *(key, hook, value),
            id=f"{key}-{hook}-{type(value).__name__}",
            marks=pytest.mark.slow if value is None else (),
        )
        for key, hook, value in WRONG
    ],
)
def test_what_a_hook_may_not_return_is_refused_by_its_part_and_name(
    key, hook, returned, tmp_path, monkeypatch
):
    """Nothing, another type, too few values, and tensors of another shape."""
    base, more = BASES[key]
    answers = {hook: lambda self, *given, **named: returned, "__module__": __name__}
    part = type("Mine", (base,), answers | ({"keeps": 1} if hook == "initial_client_state" else {}))
    monkeypatch.setattr(sys.modules[__name__], "Mine", part, raising=False)
    more = (*more, "data.setting=cross_silo") if hook == "initial_client_state" else more
    kept = [
        each
        for each in SMALL
        if "noise_multiplier" not in each or not more or hook == "initial_client_state"
    ]
    everybody = ("cohort.size=12", "run.rounds=1")  # a round without anybody calls few hooks
    config = [*kept, f"{key.partition(' ')[0]}={__name__}:Mine", *everybody, *more]
    with pytest.raises(
        Refused, match=rf"Mine\.{hook} returns .* is expected; return what \S+ says"
    ):
        train(load(None, config), tmp_path / "run")


@every_case("kind", CONTRACTS)
def test_every_hook_of_a_contract_says_what_it_returns(kind):
    """By an annotation that can be read, and in words: answers are held against both."""
    contract = answers.contract_of(kind)
    for name in answers.declared(contract):
        if hook := answers._promised(kind, contract, name):
            assert answers._contracted(hook)[0] is not Any, name
            assert inspect.getdoc(hook), name


@every_case("kind", CONTRACTS)
def test_whatever_is_extended_says_what_its_hooks_return(kind):
    """A part from outside may extend any class of privfed's; no annotation may stop its run."""
    for name in BUILT_IN[kind]:
        part = parts.find(kind, name, kind)
        for hook in {each for base in part.__mro__ for each in vars(base)}:
            if promised := answers._promised(kind, part, hook):
                answers._contracted(promised)


def test_shapes_are_those_of_hooks():
    for kind, hook in answers._SHAPES:
        rules = (answers.contract_of(kind), HistoryRule, SumRule, WeightRule, DrawnWeights)
        assert any(hasattr(each, hook) for each in rules), (kind, hook)
