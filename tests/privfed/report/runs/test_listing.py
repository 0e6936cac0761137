"""`privfed runs`: what a line says of each run directory, and what it never does."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from small import SMALL, trained

import privfed
from accounting.ledger import Ledger
from privfed.auditing.joint_audit import audit_together
from privfed.auditing.run_audit import audit
from privfed.config.reading import load
from privfed.core.errors import Busy, Refused
from privfed.report.runs.listed import list_runs, run_directories
from privfed.report.runs.run_row import guarantees_of, row_at, row_of
from privfed.run.train import train
from privfed.store.folders import is_held
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord

ROOT = Path(__file__).resolve().parents[4]
SAME = ("data.population=everybody",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("listed") / "runs"
    trained(runs / "a", *SAME)
    trained(runs / "grid" / "cell" / "run", *SAME, "run.rounds=5")
    trained(runs / "seeded", "run.randomness=seeded")
    trained(runs / "private" / "candidate")
    trained(runs / ".hidden" / "run")
    trained(runs / "1" / "2" / "3" / "4")
    (runs / "no run").mkdir()
    (runs / "other").mkdir()
    (runs / "other" / "config.toml").write_text("somebody = 'else'\n")
    return runs


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "a")
    return tmp_path / "a"


def names(runs):
    return {str(Path(row.run).relative_to(runs.folder)) for row in runs.rows}


def test_run_directories_are_listed_three_folders_deep_and_nothing_private(folder):
    listed = list_runs(folder)
    assert names(listed) == {"a", "grid/cell/run", "seeded"}
    assert [*run_directories(folder / "a")] == [folder / "a"]
    assert not list_runs(folder / "no run").rows
    with pytest.raises(Refused, match="is not a folder; name a folder"):
        list_runs(folder / "missing")


def test_a_line_has_what_the_audit_says(folder):
    row, audited = row_at(folder / "a"), audit(folder / "a").to_json()
    for key in ("epsilon", "delta", "unit", "relation", "sampler", "accountant", "ledger_head"):
        assert getattr(row, key) == audited[key], key
    assert (row.state, row.charges, row.rounds) == ("ended", 7, 7)
    summary = json.loads((folder / "a/report/summary.json").read_text())
    assert (row.measure, row.value) == ("accuracy", summary["accuracy"])
    assert row.constant == summary["constant"]["accuracy"]
    assert (row.population, row.mechanism) == ("everybody", "gaussian")
    assert not row.nominal
    assert row.began
    assert row.seconds >= 0


def test_a_simulation_is_nominal(folder):
    row = row_at(folder / "seeded")
    assert row.nominal
    assert "seed" in row.note
    assert "(nominal)" in run("runs", folder).stdout


def test_runs_about_the_same_people_are_named_with_their_joint_audit(folder):
    (group,) = list_runs(folder).same_population
    assert {Path(path).name for path in group.runs} == {"a", "run"}
    assert group.together == (group.runs,)
    assert not group.obstacles
    assert audit_together([Path(path) for path in group.runs]).bound.rounds == 12
    shown = " ".join(run("runs", folder).stdout.split())
    assert f"privfed audit {' '.join(group.runs)}" in shown


def test_why_no_epsilon_covers_runs_about_the_same_people(folder, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "a")
    shutil.copytree(folder / "a", tmp_path / "b")
    trained(tmp_path / "c", *SAME, "privacy.delta=1e-4")
    trained(tmp_path / "d", *SAME, "cohort.sampler=fixed_size")
    (group,) = list_runs(tmp_path).same_population
    differ, copies = group.obstacles
    assert differ == "they differ in adjacency relation, δ"
    assert copies == f"{tmp_path / 'a'}, {tmp_path / 'b'} are copies of one run"
    assert not group.together
    with pytest.raises(Refused):
        audit_together([Path(path) for path in group.runs])


def test_an_edited_ledger_is_a_line_with_its_reason(copy):
    text = (copy / "ledger.jsonl").read_text()
    (copy / "ledger.jsonl").write_text(text.replace('"delta":0.001', '"delta":0.1'))
    row = row_at(copy)
    assert row.state == "broken"
    assert "the ledger was edited" in row.reason
    assert row.epsilon == math.inf
    shown = run("runs", copy.parent)
    assert shown.exit_code == 0
    assert "the ledger was edited" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    "name, content",
    {
        "config.toml": b"\xff",
        "report/summary.json": b"[]",
        "ledger.jsonl": None,
        "checkpoint.safetensors": b"",
    }.items(),
)
def test_no_broken_file_ends_the_listing(copy, name, content):
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    row = row_at(copy)
    assert row.state == ("broken" if name != "checkpoint.safetensors" else "ended")
    assert run("runs", copy.parent, "--json").exit_code == 0


def test_a_configuration_that_was_edited_is_seen(copy):
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("clip = 0.4", "clip = 0.5"))
    assert "not the configuration" in row_at(copy).reason


def test_a_summary_of_fewer_charges_is_not_believed(copy):
    """An interrupted run that went on after it had ended: the ledger says what was spent."""
    ledger = Ledger.recover(copy / "ledger.jsonl")
    ledger.charge(8, ledger.charges[-1].event)
    row = row_at(copy)
    assert row.epsilon > json.loads((copy / "report/summary.json").read_text())["epsilon"]
    assert row.epsilon == audit(copy).guarantee.epsilon
    assert row.charges == 8
    assert row.state == "interrupted"


def test_how_a_run_ended(copy, tmp_path):
    summary = json.loads((copy / "report/summary.json").read_text())
    (copy / "report/summary.json").write_text(json.dumps({**summary, "stopped_at_budget": True}))
    assert row_at(copy).state == "stopped at budget"
    (copy / "report/summary.json").unlink()
    row = row_at(copy)
    assert row.state == "interrupted"
    assert row.epsilon == audit(copy).guarantee.epsilon  # by the metrics of the last round
    assert (row.measure, row.constant) == ("accuracy", None)
    begun = tmp_path / "begun"
    (begun / "releases").mkdir(parents=True)
    shutil.copy(copy / "config.toml", begun)
    row = row_at(begun)
    assert (row.state, row.epsilon, row.population) == ("not begun", None, "everybody")


def test_a_run_that_goes_on_is_seen_and_never_disturbed(copy):
    with RunDirectory.open(copy).locked():
        assert is_held(copy)
        assert row_at(copy).state == "running"
        with pytest.raises(Busy), RunDirectory.open(copy).locked():
            pass
    assert not is_held(copy)
    (copy / ".lock").unlink()
    assert not is_held(copy)
    assert not (copy / ".lock").exists()


def test_nothing_is_promised_without_noise_or_where_the_ledger_says_so(tmp_path, copy):
    keys = [key for key in SMALL if "noise_multiplier" not in key]
    train(load(None, [*keys, "privacy.epsilon=inf"]), tmp_path / "b")
    assert row_at(tmp_path / "b").epsilon == math.inf
    record = RunRecord.read(copy)
    record.ledger._terms = {**record.terms, "guarantee": "void: attackers read raw updates"}
    row = row_of(record)
    assert row.epsilon == math.inf
    assert row.guarantee.startswith("void")
    assert guarantees_of(record.ledger)[0]["epsilon"] == math.inf


ASK = """
import sys
from click.testing import CliRunner
from privfed.cli.main import main
result = CliRunner().invoke(main, ["runs", sys.argv[1]])
assert result.exit_code == 0, result.output
heavy = ("torch", "dp_accounting", "accounting.accountants", "pyarrow", "sklearn", "outside")
print([name for name in heavy if name in sys.modules])
"""


def test_listing_imports_neither_torch_nor_accountants_nor_what_runs_name(copy):
    """Even where a run names a module that lies in the working directory."""
    other = copy.parent / "other"
    (other / "releases").mkdir(parents=True)
    text = (copy / "config.toml").read_text().replace('"fedavgm"', '"outside:Optimizer"')
    (other / "config.toml").write_text(text)
    (copy.parent / "outside.py").write_text("raise SystemExit('imported')\n")
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", ASK, "."]
    ran = subprocess.run(
        words, env=here, cwd=copy.parent, capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "[]", ran.stderr


def test_rows_are_a_table_of_pandas(folder, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(folder.parent)
    listed = privfed.runs()
    frame = pandas.DataFrame(listed.rows).set_index("run")
    assert {*frame.index} == {"runs/a", "runs/grid/cell/run", "runs/seeded"}
    assert (frame.epsilon > 0).all()
    assert json.loads(run("runs", "--json").stdout)["rows"] == listed.rows
    assert "population" in str(listed)
