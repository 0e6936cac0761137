"""Commands import what they need, when they need it."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import trained

from experiments.benchmarks.start_up import REFERENCE, commands, lines
from privfed.config import catalog
from privfed.parts import find
from privfed.registry import BUILT_IN

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


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The packages that are there after each command: of `LIGHT`, in their order."""
    run = tmp_path_factory.mktemp("start_up") / "run"
    trained(run)
    asked = json.dumps([[str(run) if word == "RUN" else word for word in each] for each in LIGHT])
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", ASK, asked], env=here, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(map(" ".join, LIGHT), map(set, json.loads(ran.stdout)), strict=True))


HEAVY = {"torch", "scipy", "dp_accounting", "sklearn", "pyarrow", "pandas", "matplotlib", "opacus"}


def test_help_and_version_import_nothing_heavy(loaded):
    for words in ("--version", "--help", "calibrate --help"):
        assert not loaded[words] & {*HEAVY, "numpy", "pydantic", "rich"}, words


def test_the_list_of_parts_imports_neither_torch_nor_statistics(loaded):
    assert "privfed" in loaded["list"]
    assert not loaded["list"] & {*HEAVY, "mpmath", "cryptography"}


def test_budgets_are_solved_and_audited_without_torch(loaded):
    for words in loaded:
        assert not loaded[words] & (HEAVY - {"scipy", "dp_accounting"}), words
    assert "dp_accounting" in loaded["audit RUN"]


@pytest.mark.parametrize("kind", BUILT_IN)
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
    told = lines({REFERENCE: [2.0, 4.0, 2.0], "privfed list": [0.5, 2.0, 0.5]})
    assert "0.50 s" in told[1]
    assert "0.25 x import torch" in told[1]
