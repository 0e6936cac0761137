"""How commands fail: one object with --json, an exit code, and whose fault it was."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from lanes import every_case
from small import trained

from accounting.errors import LedgerBroken
from privfed.cli.answering import answers_errors
from privfed.cli.main import main
from privfed.core.errors import Broken, Busy, RankLost, Refused, unreadable
from privfed.core.failures import KINDS
from privfed.grid.results import DONE, FAILED, REFUSED

ROOT = Path(__file__).resolve().parents[3]
MLP = ("--set", "model.name=mlp")


def told(*words):
    """The one object of a command that failed, its code, and what else it said."""
    result = CliRunner().invoke(main, [str(word) for word in (*words, "--json")])
    (line,) = result.stdout.splitlines()
    printed = json.loads(line)
    assert printed["exit"] == result.exit_code
    assert set(printed["error"]) == {"kind", "message", "key"}
    assert printed["error"]["kind"] in KINDS
    return printed, result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("failures") / "run"
    trained(path)
    return path


@every_case(
    "words, kind, key",
    [
        (["train", "--set", "client.lr=x"], "refused", "client.lr"),
        (["check", *MLP, "--set", "model.hidden=[0]"], "refused", "model.hidden.0"),
        (["check", "--set", "server.optimizer=fedavgmm"], "refused", "server.optimizer"),
        (["check", "--set", "server.momentm=1"], "refused", "server.momentm"),
        (["check", "--set", "client.privacy.mechanism=x"], "refused", "client.privacy.mechanism"),
        (["check", "--set", "data.source=text", "--set", "data.path=x"], "refused", "data.clients"),
        (["check", "none.toml"], "refused", None),
        (["audit", "none"], "refused", None),
        (["audit"], "refused", None),
        (["calibrate", "--delta", "1e-5", "--epsilon", "1"], "refused", None),
        (["calibrate", "--delta", "2"], "usage", None),
        (["calibrate"], "usage", None),
        (["train", "--bogus"], "usage", None),
        (["evaluate"], "usage", None),
        (["attack", "nobody"], "usage", None),
        (["nothing"], "usage", None),
        (["experiment", "none.toml"], "refused", None),
        (["attack", "inversion", "none.toml"], "refused", None),
    ],
)
def test_json_has_one_object_of_what_was_wrong(words, kind, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, result = told(*words)
    assert (found["error"]["kind"], found["error"]["key"], found["exit"]) == (kind, key, 2)
    first = found["error"]["message"].splitlines()[0]
    assert first in " ".join(result.stderr.split()) or first in result.stderr


ENDS = {
    "busy": (Busy("later"), 2),
    "refused": (Refused("no", key="client.lr"), 2),
    "broken": (Broken("edited"), 5),
    "lost": (RankLost("rank 1 has died"), 2),
    "system": (PermissionError(13, "x", "runs/a"), 2),
    "memory": (MemoryError(), 2),
    "interrupted": (KeyboardInterrupt(), 130),
    "bug": (ZeroDivisionError("odd"), 1),
}


@every_case("kind", ENDS)
def test_every_end_has_its_kind_and_code(kind):
    error, code = ENDS[kind]

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    @answers_errors
    def command(as_json):
        raise error

    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(command, ["--json"])
    signal.signal(signal.SIGTERM, before)
    found = json.loads(result.stdout)
    assert (found["error"]["kind"], found["exit"], result.exit_code) == (kind, code, code)
    assert found["error"]["key"] == getattr(error, "key", None)
    quiet = CliRunner().invoke(command, [])
    signal.signal(signal.SIGTERM, before)
    assert (quiet.exit_code, quiet.stdout) == (code, "")
    assert quiet.stderr.startswith("privfed: ")


def test_a_signal_that_arrives_twice_interrupts_once():
    """Slurm signals every process of a job, and torchrun forwards the signal to its own."""
    reported = []

    @click.command()
    @answers_errors
    def command():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)
            reported.append("all of it")
            raise

    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):  # each command has its own first signal
        assert CliRunner().invoke(command, []).exit_code == 130
    signal.signal(signal.SIGTERM, before)
    assert reported == ["all of it"] * 2


def test_a_broken_ledger_keeps_what_json_said_of_it(finished, tmp_path):

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join([lines[0], *lines[2:]]))
    for words in (["audit", run], ["train", "--resume", run], ["audit", run, run]):
        found = told(*words)[0]
        assert (found["exit"], found["error"]["kind"]) == (5, "broken")
        if words != ["audit", run, run]:
            assert (found["epsilon"], found["ledger_ok"]) == ("inf", False)
            assert found["error"]["message"] == "\n".join(found["problems"])


@every_case(
    "failed, tuned, code, kind",
    [
        (2, True, 1, "failed"),
        (0, True, 2, "refused"),
        (2, False, 1, "failed"),
        (0, False, 2, "refused"),
    ],
)
def test_an_experiment_that_failed_says_so_beside_its_counts(
    tmp_path, monkeypatch, failed, tuned, code, kind
):
    (tmp_path / "grid.toml").write_text('seeds = [0]\n[grid]\n"client.lr" = [0.1]\n')
    counts = {DONE: 0, FAILED: failed, REFUSED: 1}

    def experiment(files, *_):
        ended = files if tuned else None
        return SimpleNamespace(files=ended, counts=counts, to_json=lambda: {"cells": counts})

    monkeypatch.setattr("privfed.grid.engine.run_grid", experiment)
    monkeypatch.setattr("privfed.report.grid.experiment_table", str)
    found, result = told("experiment", tmp_path / "grid.toml")
    assert (found["exit"], found["error"]["kind"], found["cells"]) == (code, kind, counts)
    assert found["error"]["message"] in result.stderr


def test_a_place_that_cannot_be_read_is_bad_input_and_no_tampering(finished, tmp_path, monkeypatch):
    """A file in its place, a link to nowhere, no permission; an edited one is another matter."""

    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "file/below"):
        for command in (["audit"], ["evaluate"], ["train", "--resume"]):
            assert told(*command, tmp_path / name)[0]["exit"] == 2, (command, name)
    for name in ("ledger.jsonl", "checkpoint.safetensors", "report/summary.json"):
        run = tmp_path / name.replace("/", "-")
        shutil.copytree(finished, run)
        (run / name).unlink()
        (run / name).mkdir()  # that was seen, and it is an edit
        assert told("audit", run)[0]["exit"] == 5, name

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied", str(finished / "ledger.jsonl"))

    monkeypatch.setattr("accounting.chain.read", denied)
    found, _ = told("audit", finished)
    assert (found["exit"], found["error"]["kind"]) == (2, "system")
    assert "Permission denied" in found["error"]["message"]


def test_only_what_the_system_does_not_give_is_bad_input():
    assert isinstance(unreadable("x", PermissionError(13, "no")), Refused)
    assert isinstance(unreadable("x", IsADirectoryError(21, "no")), Broken)
    assert isinstance(unreadable("x", FileNotFoundError(2, "no")), Broken)
    assert isinstance(unreadable("x", ValueError("no")), Broken)
    assert isinstance(unreadable("x", OSError("a library's own")), Broken)


def test_a_ledger_that_is_broken_is_no_bug(capsys):
    def command():
        raise LedgerBroken("cut")

    with pytest.raises(SystemExit) as ended:
        answers_errors(command)()
    assert ended.value.code == 5
    assert "cut" in capsys.readouterr().err


TABLES = [("list", "--json"), ("runs", ".", "--json")]


@pytest.mark.parametrize(
    "words", [("--help",), *(pytest.param(words, marks=pytest.mark.slow) for words in TABLES)]
)
def test_an_output_that_takes_nothing_is_one_sentence(words, tmp_path):
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "privfed", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,  # in which there are no runs
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (2, "privfed: No space left on device\n")
