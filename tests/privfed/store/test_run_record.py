"""A run's files, each read once."""

import json
import shutil

import pytest
from small import trained

from accounting import regular
from privfed.core.errors import Broken, Refused
from privfed.report.page.run_facts import run_facts
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "run"
    trained(folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_a_page_reads_each_file_once(finished, monkeypatch):
    opened, really = [], regular.opened

    def counted(path):
        opened.append(path.name)
        return really(path)

    monkeypatch.setattr(regular, "opened", counted)
    record = RunRecord.open(finished)
    facts = run_facts(finished)
    read = [opened.count(name) for name in ("summary.json", "metrics.jsonl", "aborts.jsonl")]
    assert read == [1, 1, 0]
    assert facts.summary["charges"] == 7
    assert RunRecord.open(record) is record


def test_what_a_run_states(finished):
    record = RunRecord.read(finished)
    assert record.charges == record.summary["charges"] == 7
    assert record.summarised
    assert record.digest == record.terms["config"]
    assert record.setting("run", "rounds") == 7
    assert record.setting("run", "nothing") is None
    assert record.last_metrics == record.evaluated[7]
    assert [path.name for path, _ in record.claims] == ["summary.json", "metrics.jsonl"]
    assert not record.culprits
    assert record.clients == []


def test_a_torn_line_is_left_out(copy):
    metrics = RunDirectory.open(copy).metrics.path
    before = RunRecord.read(copy)
    metrics.write_bytes(metrics.read_bytes() + b'{"round": 9, "loss')
    torn = RunRecord.read(copy)
    assert torn.evaluated == before.evaluated
    assert torn.last_metrics == before.last_metrics


@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_a_summary_that_is_no_object_is_named(copy, text):
    (copy / "report" / "summary.json").write_text(text)
    with pytest.raises(Broken, match=r"summary\.json cannot be read"):
        RunRecord.read(copy)


def test_a_run_that_was_edited_or_is_none(copy, tmp_path):
    with pytest.raises(Refused, match="is not a run directory"):
        RunRecord.read(tmp_path)
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("rounds = 7", "rounds = 8"))
    edited = RunRecord.read(copy)  # the rounds may change
    assert edited.setting("run", "rounds") == 8
    config.write_text(config.read_text().replace("clip = 0.4", "clip = 0.5"))
    with pytest.raises(Broken, match="not the configuration"):
        RunRecord.read(copy)
    lines = (copy / "ledger.jsonl").read_text().splitlines(keepends=True)
    charge = json.loads(lines[-1])
    (copy / "ledger.jsonl").write_text("".join(lines[:-1]) + json.dumps({**charge, "round": 99}))
    with pytest.raises(Broken):
        RunRecord.read(copy)
    (copy / "ledger.jsonl").unlink()
    with pytest.raises(Broken, match=r"ledger\.jsonl is missing"):
        RunRecord.read(copy)
