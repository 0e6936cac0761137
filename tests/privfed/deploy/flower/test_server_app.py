"""The coordinator's end over a grid in this process: a run of real sites, and how it fails."""

import contextlib

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from flower_grid import LoopbackGrid
from flwr.app import Context, RecordDict
from waiting import LONG

from experiments.federation.agreement import compare
from experiments.federation.hospitals import NAMES, write_tables
from experiments.federation.journal import Journal
from experiments.federation.sites import Hospitals
from privfed.core.errors import Refused
from privfed.deploy.carriers.flower import server_app
from privfed.deploy.carriers.flower.server_app import RunFailed, Settings, main
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.site.agent import serving

STATED = {"run": "/a/run.toml", "federation": "/a/f.toml", "key": "/a/key", "out": "/a/out"}
SECONDS = {"seconds": LONG, "patience": LONG}
PASSES = 20.0
"""Seconds of a deadline that passes for one site, and in which the others answer."""


class Here:
    """Runs privfed's commands in this process, as the loop-back federation does in others."""

    def call(self, command, seconds=60.0):
        from commands import run

        answer = run(*command[3:])
        assert answer.exit_code == 0, answer.output
        return answer.stdout


@pytest.fixture
def hospitals(tmp_path):
    write_tables(tmp_path, patients=60, seed=3)
    hospitals = Hospitals(tmp_path, Here())
    hospitals.agree()
    for name in NAMES:  # the time at which rows leave is for real programs to show
        policy = hospitals.site(name) / "policy.toml"
        policy.write_text(policy.read_text().replace("simulation = false", "simulation = true"))
    return hospitals


def context(hospitals, **stated):
    folder = hospitals.coordinator
    paths = {
        "run": folder / "run.toml",
        "federation": hospitals.federation,
        "key": folder / "key",
        "out": hospitals.run,
    }
    config = {name: str(path) for name, path in paths.items()} | SECONDS | stated
    return Context(1, 1, {}, RecordDict(), config)


def grid(hospitals):
    return LoopbackGrid({n: hospitals.site(name) / "socket" for n, name in enumerate(NAMES, 11)})


def agreement(hospitals):
    sites = {name: hospitals.site(name) for name in NAMES}
    journal = Journal.read(hospitals.log.read_text())
    return compare(hospitals.run / "ledger.jsonl", sites, set(journal.over))


@contextlib.contextmanager
def agents(hospitals, *names):
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(serving(SiteFolder(hospitals.site(name))))
        yield


def test_a_run_is_trained_and_agrees_with_every_receipt(hospitals):
    """One site's answer is lost in the fourth exchange of round 1: that round opens nothing."""
    hospitals.declare(rounds=3, patients=60, deadline=0.0)
    lost = grid(hospitals)
    lost.fault = lambda node, number, reply: [] if (node, number) == (12, 6) else [reply]
    with agents(hospitals, *NAMES):
        main(lost, context(hospitals, seconds=PASSES))
    journal = Journal.read(hospitals.log.read_text())
    assert journal.done
    assert journal.over == [2, 3]
    assert list(journal.aborted) == [1]
    held = agreement(hospitals)
    assert held.problems == ()
    assert held.charged == (1, 2, 3)
    assert held.unopened == (1,)
    assert all(list(rounds) == [1, 2, 3] for rounds in held.answered.values())


def test_too_few_sites_end_a_run_in_one_line_and_it_goes_on_when_they_are_back(hospitals):
    hospitals.declare(rounds=2, patients=60, deadline=0.0)
    with agents(hospitals, *NAMES[:2]):
        with pytest.raises(RunFailed) as failed:
            main(grid(hospitals), context(hospitals, seconds=PASSES, patience=0.1))
        assert str(failed.value) == "privfed stopped; the coordinator's log says why"
        assert failed.value.__cause__ is None
        (error,) = Journal.read(hospitals.log.read_text()).errors
        assert "2 of 3 sites are available" in error
        assert agreement(hospitals).charged == ()
        with agents(hospitals, NAMES[2]):
            main(grid(hospitals), context(hospitals))
    assert Journal.read(hospitals.log.read_text()).over == [1, 2]
    assert agreement(hospitals).problems == ()


def test_what_fails_is_one_line_without_its_text(hospitals, monkeypatch):
    def failing(*_):
        raise ValueError("patient 17 has 3 rows")

    monkeypatch.setattr(server_app, "coordinate", lambda *_, **__: failing())
    with pytest.raises(RunFailed, match="the coordinator's log says why"):
        main(grid(hospitals), context(hospitals))
    text = hospitals.log.read_text()
    assert text.count("\n") == 1
    assert text.endswith("ERROR ValueError\n")


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("path", ["run.toml", "", 7, None])
def test_a_path_that_is_not_absolute_is_refused(name, path):
    with pytest.raises(Refused, match="expected an absolute path"):
        Settings.of(STATED | SECONDS | {name: path})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("seconds", [0, -1.0, "60", True, None])
def test_seconds_are_numbers_above_nothing(name, seconds):
    with pytest.raises(Refused, match="expected seconds above 0"):
        Settings.of(STATED | SECONDS | {name: seconds})
    assert Settings.of(STATED | SECONDS).seconds == LONG
