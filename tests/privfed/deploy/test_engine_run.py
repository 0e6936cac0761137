"""The coordinator inside an engine's program: its settings, its log, and how it fails."""

import time
from dataclasses import dataclass

import pytest
from hospitals_here import agents, agreed, agreement, journal, stated
from waiting import LONG

from experiments.federation.hospitals import NAMES
from privfed.core.errors import Refused
from privfed.deploy.carriers import engine_run
from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.carriers.engine_run import RunFailed, Settings, train_over
from privfed.deploy.carriers.local_socket import ask

STATED = {"run": "/a/run.toml", "federation": "/a/f.toml", "key": "/a/key", "out": "/a/out"}
SECONDS = {"seconds": LONG, "patience": LONG}
PASSES = 20.0
"""Seconds of a deadline that passes for one site, and in which the others answer."""


@dataclass
class SocketMail:
    """An engine whose nodes are the hospitals' names, and lead to their sockets."""

    hospitals: object

    def nodes(self):
        return {*NAMES}

    def ask(self, node, data, deadline):
        try:
            return ask(self.hospitals.site(node) / "socket", data, deadline - time.monotonic())
        except OSError:
            return UNREACHABLE


@pytest.fixture
def hospitals(tmp_path):
    return agreed(tmp_path)


@pytest.mark.slow
def test_a_run_over_nodes_agrees_with_every_receipt(hospitals):
    hospitals.declare(rounds=1, patients=60, deadline=0.0)
    with agents(hospitals, *NAMES):
        train_over(SocketMail(hospitals), stated(hospitals))
    assert journal(hospitals).done
    assert agreement(hospitals).problems == ()
    assert agreement(hospitals).charged == (1,)


@pytest.mark.slow
def test_too_few_sites_end_a_run_in_one_line_and_it_goes_on_when_they_are_back(hospitals):
    hospitals.declare(rounds=2, patients=60, deadline=0.0)
    mail = SocketMail(hospitals)
    with agents(hospitals, *NAMES[:2]):
        with pytest.raises(RunFailed) as failed:
            train_over(mail, stated(hospitals, seconds=PASSES, patience=0.1))
        assert str(failed.value) == "privfed stopped; the coordinator's log says why"
        assert failed.value.__cause__ is None
        (error,) = journal(hospitals).errors
        assert "2 of 3 sites are available" in error
        assert agreement(hospitals).charged == ()
        with agents(hospitals, NAMES[2]):
            train_over(mail, stated(hospitals))
    assert journal(hospitals).over == [1, 2]
    assert agreement(hospitals).problems == ()


def test_what_fails_is_one_line_without_its_text(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise ValueError("patient 17 has 3 rows")

    monkeypatch.setattr(engine_run, "coordinate", failing)
    out = tmp_path / "runs" / "a"
    with pytest.raises(RunFailed, match="the coordinator's log says why"):
        train_over(None, STATED | SECONDS | {"out": str(out)})
    text = out.with_name("a.log").read_text()
    assert text.count("\n") == 1
    assert text.endswith("ERROR ValueError\n")


def test_an_invalid_configuration_is_the_reason_of_the_failure():
    with pytest.raises(RunFailed, match=r"run is .run\.toml. in the engine's configuration"):
        train_over(None, STATED | SECONDS | {"run": "run.toml"})


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("path", ["run.toml", "", 7, None])
def test_a_path_that_is_not_absolute_is_refused(name, path):
    with pytest.raises(Refused, match="state an absolute path"):
        Settings.of(STATED | SECONDS | {name: path})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("seconds", [0, -1.0, "60", True, None])
def test_seconds_are_numbers_above_nothing(name, seconds):
    with pytest.raises(Refused, match="must be a number above 0; state seconds"):
        Settings.of(STATED | SECONDS | {name: seconds})
    assert Settings.of(STATED | SECONDS).seconds == LONG
