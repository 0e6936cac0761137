"""What `run.watch` names is found early, told of the run, and left when it ends."""

import json

import pytest
import watching
from commands import run
from lanes import every_case
from small import SMALL, same_run, small, trained

import privfed
from privfed.core.errors import Refused
from privfed.run.check import check
from privfed.run.train import resume

FLAGS = [word for key in SMALL for word in ("--set", key)]


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(watching.Heard, "told", [])
    return watching.Heard.told


def test_a_class_of_ones_own_is_told_what_observers_are(tmp_path, told):
    trained(tmp_path / "run", 'run.watch=["watching:Heard"]')
    assert told[:3] == ["entered", "run after 0", 1]
    assert told[-1] == "left well"
    assert [each for each in told if isinstance(each, int)] == [*range(1, 8)]
    evaluated = [each for each in told if isinstance(each, dict)]
    assert len(evaluated) == 4
    assert set(evaluated[0]) == {"public/accuracy", "public/loss", "public/epsilon"}


def test_what_is_simulation_only_is_tagged_so(tmp_path, told):
    opted = ("run.randomness=seeded", "run.simulation_metrics=true", "run.checkpoint_every=2")
    trained(tmp_path / "run", 'run.watch=["watching:Heard"]', *opted)
    tags = next(each for each in told if isinstance(each, dict))
    assert "simulation/cohort" in tags
    assert all(tag.startswith(("public/", "simulation/")) for tag in tags)


def test_it_changes_nothing_that_the_run_computes(tmp_path):
    seeded = "run.randomness=seeded"
    trained(tmp_path / "a", seeded)
    trained(tmp_path / "b", seeded, 'run.watch=["csv"]')
    for name in ("checkpoint.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / name).exists()
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (
        tmp_path / "b/metrics.jsonl"
    ).read_bytes()


@every_case(
    ("watch", "message"),
    [
        ('["cvs"]', r"run\.watch is 'cvs'; expected .* tensorboard, wandb \(did you mean 'csv'"),
        ('["csv", "csv"]', "expected each name once"),
        ('["nowhere:Nobody"]', "cannot be imported"),
        ('["watching:told"]', "cannot be imported"),
        ('["small:SMALL"]', "no part; expected .* or a function that returns an observer"),
        (
            '["watching:Deaf"]',
            "Deaf: Deaf has no method choosing, before, after_round, aborted, after",
        ),
        ('["watching:unmade"]', r"unmade failed: KeyError: 'no server'(.|\n)*watching\.py"),
    ],
)
def test_what_cannot_watch_is_refused_before_anything_is_written(watch, message, tmp_path):
    with pytest.raises(Refused, match=message):
        trained(tmp_path / "run", f"run.watch={watch}")
    assert not (tmp_path / "run").exists()


def test_a_check_refuses_names_and_makes_no_observer():
    with pytest.raises(Refused, match=r"run\.watch is 'cvs'"):
        check(small('run.watch=["cvs"]'))
    check(small('run.watch=["watching:unmade"]'))


def test_a_watcher_that_fails_is_shown_by_its_line_and_the_run_goes_on(tmp_path, monkeypatch):
    failing = ("--set", 'run.watch=["watching:Failing", "csv"]')
    stopped = run("train", *FLAGS, *failing, "--out", tmp_path / "run", "--json")
    assert stopped.exit_code == 1
    assert "in your own code" in stopped.stderr
    assert "watching.py" in stopped.stderr
    assert "4711" not in stopped.stderr
    monkeypatch.setattr(watching.Failing, "fails", False)
    ended = run("train", "--resume", tmp_path / "run", "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["charges"] == 7
    rows = (tmp_path / "run/report/metrics.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["round", "2", "4", "6", "7"]


def test_who_reads_a_run_does_not_import_its_watchers(tmp_path, monkeypatch):
    trained(tmp_path / "run", 'run.watch=["watching:Heard"]')
    monkeypatch.delattr(watching, "Heard")
    assert privfed.load(tmp_path / "run").audit()["ledger_ok"]
    with pytest.raises(Refused, match=r"run\.watch is 'watching:Heard', which cannot be imported"):
        resume(tmp_path / "run", lambda config: config.with_run(rounds=8))


def test_python_takes_the_key_too(tmp_path, told):
    privfed.train(out=tmp_path / "run", rounds=2, run={"watch": ["watching:Heard"]})
    assert told[0] == "entered"


def test_an_observer_needs_the_methods_that_it_uses_alone(tmp_path):
    class Ends(privfed.Observer):
        rounds = ()

        def after_round(self, round):
            self.rounds += (round,)

    mine = Ends()
    privfed.train(out=tmp_path / "run", rounds=3, observers=[mine])
    assert mine.rounds == (1, 2, 3)


def test_two_runs_of_one_configuration_are_alike(tmp_path):
    keys = ('run.watch=["csv"]', "run.randomness=seeded")
    trained(tmp_path / "a", *keys)
    trained(tmp_path / "b", *keys)
    same_run(tmp_path / "a", tmp_path / "b")
    rows = [(tmp_path / name / "report/metrics.csv").read_bytes() for name in "ab"]
    assert rows[0] == rows[1]
