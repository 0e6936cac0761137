"""The coordinator's end over a grid in this process: a run of real sites."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from flower_grid import LoopbackGrid
from flwr.app import Context, RecordDict
from hospitals_here import agents, agreed, agreement, journal, stated

from experiments.federation.hospitals import NAMES
from privfed.deploy.carriers.flower.server_app import main

PASSES = 20.0
"""Seconds of a deadline that passes for one site, and in which the others answer."""


@pytest.fixture
def hospitals(tmp_path):
    return agreed(tmp_path)


def grid(hospitals):
    return LoopbackGrid({n: hospitals.site(name) / "socket" for n, name in enumerate(NAMES, 11)})


def test_a_run_is_trained_and_agrees_with_every_receipt(hospitals):
    """One site's answer is lost in the fourth exchange of round 1: that round opens nothing."""
    hospitals.declare(rounds=3, patients=60, deadline=0.0)
    lost = grid(hospitals)
    lost.fault = lambda node, number, reply: [] if (node, number) == (12, 6) else [reply]
    with agents(hospitals, *NAMES):
        main(lost, Context(1, 1, {}, RecordDict(), stated(hospitals, seconds=PASSES)))
    log = journal(hospitals)
    assert log.done
    assert log.over == [2, 3]
    assert list(log.aborted) == [1]
    held = agreement(hospitals)
    assert held.problems == ()
    assert held.charged == (1, 2, 3)
    assert held.unopened == (1,)
    assert all(list(rounds) == [1, 2, 3] for rounds in held.answered.values())
