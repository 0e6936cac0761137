"""Releases that become durable beside other work: nothing follows from them before they are."""

import threading

import pytest
from helpers import Memory, Rounds
from small import trained

from accounting.ledger import Ledger
from privfed.local.objectives.feddane import FedDane
from privfed.local.objectives.sgd import Sgd
from privfed.models.network import Network
from privfed.round.round import run_round
from privfed.round.writing import AtOnce, InBackground
from privfed.store.releases import Releases
from privfed.store.round_logs import MetricsLog


def test_writes_come_one_after_the_other_and_are_through_when_settled():
    written, gate = [], threading.Event()

    def slow():
        gate.wait(10)
        written.append("first")

    with InBackground() as writing:
        writing.begin(slow)
        assert not written
        threading.Timer(0.01, gate.set).start()
        writing.begin(lambda: written.append("second"))
        writing.settle()
        assert written == ["first", "second"]
        writing.begin(lambda: written.append("third"))
    assert written[2:] == ["third"]


@pytest.mark.parametrize("later", [lambda w: w.settle(), lambda w: w.begin(lambda: None)])
def test_what_a_write_raises_is_raised_by_whoever_comes_next(later):
    def fails():
        raise OSError("no space")

    with InBackground() as writing:
        writing.begin(fails)
        with pytest.raises(OSError, match="no space"):
            later(writing)
        writing.settle()  # once
    with pytest.raises(OSError, match="no space"):
        AtOnce().begin(fails)


class Crash(Exception):
    pass


class Waits(Memory):
    """A store that writes when it may."""

    def __init__(self, events):
        super().__init__()
        self.events, self.gate = events, threading.Event()

    def write(self, charge, released, state):
        self.gate.wait(10)
        super().write(charge, released, state)
        self.events.append(f"durable {charge.round}/{len(released)}")


@pytest.mark.parametrize(
    "objective, exchanges", [(Sgd(), 1), (FedDane(), 2)], ids=["sgd", "feddane"]
)
def test_nobody_is_asked_and_nothing_charged_before_the_last_release_is_durable(
    objective, exchanges, tmp_path, monkeypatch
):
    events = []
    rounds = Rounds(tmp_path, objective=objective)
    store, charge, executor = Waits(events), Ledger.charge, rounds.world.executor
    asked = type(executor).chunks

    def charged(self, round, event):
        events.append(f"charge {round}")
        return charge(self, round, event)

    def chunks(self, exchange, cohort):
        events.append("ask")
        yield from asked(self, exchange, cohort)

    monkeypatch.setattr(Ledger, "charge", charged)
    monkeypatch.setattr(type(executor), "chunks", chunks)
    object.__setattr__(rounds.world, "store", store)
    with InBackground() as writing:
        object.__setattr__(rounds.world, "writing", writing)
        threading.Timer(0.05, store.gate.set).start()
        state = run_round(1, rounds.algorithm, rounds.state, rounds.world)
        run_round(2, rounds.algorithm, state, rounds.world)
    expected = []
    for round in (1, 2):
        expected.append(f"charge {round}")
        for number in range(exchanges):
            expected += ["ask", f"durable {round}/{number + 1}"]
    assert events == expected


def test_a_run_evaluates_while_it_writes_and_shows_when_it_has_written(tmp_path, monkeypatch):
    events, measuring = [], threading.Event()
    write, evaluate, append = Releases.write, Network.evaluate, MetricsLog.append

    def written(self, charge, released, state):
        assert measuring.wait(10), "the evaluation waits for the write"
        measuring.clear()
        write(self, charge, released, state)
        events.append("durable")

    def evaluated(self, *args):
        measuring.set()
        return evaluate(self, *args)

    def shown(self, line):
        events.append("shown")
        return append(self, line)

    monkeypatch.setattr(Releases, "write", written)
    monkeypatch.setattr(Network, "evaluate", evaluated)
    monkeypatch.setattr(MetricsLog, "append", shown)
    trained(tmp_path / "run", "run.rounds=3", "run.evaluate_every=1")
    assert events == ["durable", "shown"] * 3


def test_a_write_that_fails_shows_nothing_and_charges_no_further_round(tmp_path, monkeypatch):
    def failing(self, charge, released, state):
        raise Crash

    monkeypatch.setattr(Releases, "write", failing)
    with pytest.raises(Crash):
        trained(tmp_path / "run", "run.rounds=3", "run.evaluate_every=1")
    assert len(Ledger.load(tmp_path / "run/ledger.jsonl").charges) == 1
    assert not (tmp_path / "run/metrics.jsonl").exists()
