"""Releases that become durable beside other work: nothing follows from them before they are."""

import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from helpers import Memory, Rounds, set_fields
from small import small, trained
from waiting import LONG

from accounting.ledger import Ledger
from privfed.client.objective import Sgd
from privfed.client.objectives.feddane import FedDane
from privfed.core.errors import Refused
from privfed.models.network import Network
from privfed.round.round import run_round
from privfed.round.world import Immediate, InBackground
from privfed.run.train import train
from privfed.server.fedopt import FedAvg
from privfed.store.round_logs import MetricsLog, Releases


def test_writes_come_one_after_the_other_and_are_through_when_settled():
    written, gate = [], threading.Event()

    def slow():
        gate.wait(LONG)
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
        Immediate().begin(fails)


class Crash(Exception):
    pass


class Quiet:
    def before(self, *_) -> None: ...
    def after_round(self, round) -> None: ...
    def choosing(self, *_) -> None: ...
    def aborted(self, *_) -> None: ...
    def after(self, record) -> None: ...


class Waits(Memory):
    """A store that writes when it may."""

    def __init__(self, events):
        super().__init__()
        self.events, self.gate = events, threading.Event()

    def write(self, charge, released, state):
        self.gate.wait(LONG)
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
    exchanges_before = type(executor).chunks

    def charged(self, round, event):
        events.append(f"charge {round}")
        return charge(self, round, event)

    def chunks(self, exchange, cohort):
        events.append("ask")
        yield from exchanges_before(self, exchange, cohort)

    monkeypatch.setattr(Ledger, "charge", charged)
    monkeypatch.setattr(type(executor), "chunks", chunks)
    set_fields(rounds.world, store=store)
    with InBackground() as writing:
        set_fields(rounds.world, writing=writing)
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
        assert measuring.wait(LONG), "the evaluation waits for the write"
        measuring.clear()
        time.sleep(0.05)  # so that who does not wait for this shows too early
        write(self, charge, released, state)
        events.append("durable")

    def evaluated(self, *args):
        measures = evaluate(self, *args)
        measuring.set()
        return measures

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


def test_who_watches_hears_of_a_round_once_it_is_durable(tmp_path, monkeypatch):
    """Also of one in which nothing is evaluated."""
    events, write = [], Releases.write

    def slow(self, charge, released, state):
        time.sleep(0.05)
        write(self, charge, released, state)
        events.append(f"durable {charge.round}")

    class Watching(Quiet):
        def after_round(self, round):
            events.append(f"heard {round}")

    monkeypatch.setattr(Releases, "write", slow)
    train(small("run.rounds=3", "run.evaluate_every=3"), tmp_path / "run", [Watching()])
    assert events == [f"{what} {round}" for round in (1, 2, 3) for what in ("durable", "heard")]


def test_what_is_written_is_what_was_released_whatever_is_computed_with_it(tmp_path):
    """A server that scales the release in place, while it is being written."""

    class InPlace(FedAvg):
        def step(self, params, delta, state):
            after = super().step(params, delta.clone(), state)
            delta.mul_(0.0)
            return after

    rounds = Rounds(tmp_path, server=InPlace())
    store = Waits([])
    with InBackground() as writing:
        world = replace(rounds.world, store=store, writing=writing)
        after = run_round(1, rounds.algorithm, rounds.state, world)
        store.gate.set()
    moved = after.params - rounds.state.params
    torch.testing.assert_close(store.releases[1][0], moved, rtol=1e-4, atol=1e-6)
    assert bool(moved.any())


@pytest.mark.parametrize("settling", [True, False], ids=["while it settles", "while it leaves"])
def test_leaving_waits_for_the_write_however_often_it_is_interrupted(settling):
    written, gate, main = [], threading.Event(), threading.main_thread().ident

    def slow():
        gate.wait(LONG)
        time.sleep(0.05)
        written.append("all")

    def interrupts():
        for _ in range(3):
            time.sleep(0.1)
            signal.pthread_kill(main, signal.SIGINT)
        gate.set()

    def interrupted(number, frame):
        raise KeyboardInterrupt

    def leave():
        with InBackground() as writing:
            writing.begin(slow)
            threading.Thread(target=interrupts).start()
            if settling:
                writing.settle()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            leave()
    finally:
        signal.signal(signal.SIGINT, before)
    assert written == ["all"]


def test_a_write_that_failed_is_heard_of_whatever_else_went_wrong():
    def fails():
        raise OSError("no space")

    def leave():
        with InBackground() as writing:
            writing.begin(fails)
            raise KeyboardInterrupt

    with pytest.raises(OSError, match="no space"):
        leave()


def test_that_a_model_diverged_is_said_once_its_release_is_durable(tmp_path, monkeypatch):
    def failing(self, charge, released, state):
        raise Crash

    def endless(self, params, delta, state):
        return params * torch.inf, state

    monkeypatch.setattr(FedAvg, "step", endless)
    with pytest.raises(Refused, match="no longer finite"):
        trained(tmp_path / "diverged", "run.rounds=1", "server.optimizer=fedavg")
    monkeypatch.setattr(Releases, "write", failing)
    with pytest.raises(Crash):
        trained(tmp_path / "full", "run.rounds=1", "server.optimizer=fedavg")
