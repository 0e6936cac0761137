"""Commands import what they need, when they need it."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lanes import every_case
from small import trained
from waiting import LONG

from experiments.benchmarks.start_up import (
    FIRST_ROUND,
    REFERENCE,
    Taken,
    beyond,
    commands,
    lines,
)
from privfed.config import catalog
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[3]
ASK = """
import json, sys
from click.testing import CliRunner
from privfed.cli.main import main

loaded = []
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    loaded.append(sorted({name.split(".")[0] for name in sys.modules}))
print(json.dumps(loaded))
"""
TO_FIRST_ROUND = """
import json, os, sys
from click.testing import CliRunner

from accounting.bounds import pld
from accounting.ledger import Ledger
from privfed.cli.main import main
from privfed.client.trainer import LocalTrainer

charge, train, trained = Ledger.charge, LocalTrainer.train, []

def counted(self, ids, *rest, **named):
    trained.append(len(ids))
    return train(self, ids, *rest, **named)

def reported_at_the_charge(*arguments):
    charge(*arguments)
    loaded = sorted({name.split(".")[0] for name in sys.modules})
    distributions = pld._distribution.cache_info().misses
    facts = {"loaded": loaded, "distributions": distributions, "trained": trained}
    print(json.dumps(facts), file=sys.__stdout__, flush=True)
    os._exit(0)

LocalTrainer.train, Ledger.charge = counted, reported_at_the_charge
print(CliRunner().invoke(main, ["train", "--out", sys.argv[1]]).output)
"""
PLAN = """
import json, sys
from click.testing import CliRunner
from privfed.cli.main import main

assert CliRunner().invoke(main, ["check"]).exit_code == 0
loaded = sorted(sys.modules)
import dp_accounting, scipy.signal, scipy.stats

same = dp_accounting.pld.privacy_loss_mechanism.stats.norm(scale=2.0).cdf(1.0)
full = issubclass(scipy.stats.norm.__class__, scipy.stats.rv_continuous)
facts = {"loaded": loaded, "full": full, "cdf": same, "its": scipy.stats.norm.cdf(0.5)}
print(json.dumps(facts))
"""
ANSWERS = ("--rounds", "20", "--delta", "1e-5", "--epsilon", "2", "--json")
RIGHT = "experiments.audits_elsewhere.wrong_mechanisms:clips_each_row"
LIGHT = [
    ["--version"],
    ["--help"],
    ["calibrate", "--help"],
    ["list"],
    ["calibrate", "--sampling-rate", "0.1", *ANSWERS],
    ["calibrate", "--population", "1000", "--cohort", "100", *ANSWERS],
    ["audit", "RUN"],
    ["audit", "--function", RIGHT, "--claimed-epsilon", "9", "--delta", "0.1", "--releases", "40"],
]
"""Each may load more than those before it, as they run in one process."""


def asked(script, *arguments):
    """What a Python of its own prints, as JSON."""
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=here,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The packages that are there after each command: of `LIGHT`, in their order."""
    run = tmp_path_factory.mktemp("start_up") / "run"
    trained(run)
    commands = [[str(run) if word == "RUN" else word for word in each] for each in LIGHT]
    answers = asked(ASK, json.dumps(commands))
    return dict(zip(map(" ".join, LIGHT), map(set, answers), strict=True))


HEAVY = {"torch", "scipy", "dp_accounting", "sklearn", "pyarrow", "pandas", "matplotlib", "opacus"}


def test_help_and_version_import_nothing_heavy(loaded):
    for words in ("--version", "--help", "calibrate --help"):
        assert not loaded[words] & {*HEAVY, "numpy", "pydantic", "rich", "filelock"}, words


def test_the_list_of_parts_imports_neither_torch_nor_statistics(loaded):
    assert "privfed" in loaded["list"]
    assert not loaded["list"] & {*HEAVY, "mpmath", "cryptography"}


def test_budgets_are_solved_and_audited_without_torch(loaded):
    for words in loaded:
        assert not loaded[words] & (HEAVY - {"scipy", "dp_accounting"}), words
        assert "mpmath" not in loaded[words], words
    assert "dp_accounting" in loaded["audit RUN"]


@pytest.fixture(scope="module")
def at_first_round(tmp_path_factory):
    """What the default run has loaded and computed as its first round is charged."""
    return asked(TO_FIRST_ROUND, str(tmp_path_factory.mktemp("first_round") / "run"))


@pytest.mark.slow
def test_the_default_run_imports_no_more_than_it_needs_before_its_first_round(at_first_round):
    loaded = set(at_first_round["loaded"])
    assert loaded >= {"torch", "dp_accounting"}
    needless = {*HEAVY, "mpmath", "joblib", "cryptography", "flwr"} - {
        "torch",
        "scipy",
        "dp_accounting",
    }
    assert not loaded & needless


@pytest.mark.slow
def test_the_default_run_computes_no_more_than_it_needs_before_its_first_round(at_first_round):
    """Three privacy loss distributions; and made-up clients train for the forecast of time only."""
    assert at_first_round["distributions"] == 3
    assert at_first_round["trained"] == [128, 128]


def test_a_plan_imports_neither_distributions_nor_filters_and_they_stay_whole():
    facts = asked(PLAN)
    assert "dp_accounting.pld.privacy_loss_mechanism" in facts["loaded"]
    assert not {"scipy.stats", "scipy.signal"} & set(facts["loaded"])
    assert facts["full"]
    assert facts["cdf"] == facts["its"]


@every_case("kind", BUILT_IN)
def test_the_list_says_what_the_parts_themselves_say(kind):
    """It reads their source, so that a part has to document itself and not by inheritance."""
    told = catalog.catalog()[kind]
    for name in BUILT_IN[kind]:
        documented = inspect.getdoc(find(kind, name, kind))
        assert documented
        first = " ".join(documented.split("\n\n")[0].split())
        assert told[name]
        assert first.startswith(told[name].partition(" (sends")[0]), name


def test_start_up_is_told_as_a_ratio():
    assert set(commands(Path("runs/a"))) > {REFERENCE, "privfed list"}
    turns = {
        REFERENCE: [Taken(2.0, 1.0), Taken(4.0, 1.0), Taken(2.0, 1.5)],
        "privfed list": [Taken(0.5, 0.4), Taken(2.0, 0.3), Taken(0.5, 0.5)],
        FIRST_ROUND: [Taken(3.0, 2.0), Taken(7.0, 2.0), Taken(3.5, 3.0)],
    }
    printed = lines(turns)
    assert "0.50 s" in printed[1]
    assert "0.40 CPU s" in printed[1]
    assert "0.25 x import torch" in printed[1]
    assert "beyond import torch: 1.50 s (aim: 1.5); 1.00 CPU s" in beyond(turns)
