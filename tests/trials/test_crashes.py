"""A run that dies at any moment goes on: every kind of run, every kind of crash."""

from dataclasses import astuple, replace
from pathlib import Path

import pytest
from lanes import mostly_slow
from small import small, trained
from trials.disk import CRASHES, restore, watching
from trials.kills import EARLIER, KINDS, SIGNALS, survived, went_on_alone
from trials.lives import LIVES, goes_on, recorded, resumed, sample, without_disk

from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.core.errors import PrivfedError
from privfed.run.train import resume

DIES, LOSES_POWER = CRASHES[:2], CRASHES[2:]
DEAR = (
    *("SCAFFOLD's memory, secret", "FedDyn's memory, seeded", "SCAFFOLD without privacy"),
    *("FedAdam, mixed rows, seeded", "correlated noise, seeded", "canaries, seeded"),
    *("DP-SGD in silos, seeded", "plain, seeded"),
)
"""Kinds that share their parts with another one, which the default lane cuts off."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in DEAR else k for k in LIVES]
)
def test_a_run_that_dies_anywhere_goes_on(tmp_path, kind):
    life = recorded(tmp_path / "life", LIVES[kind])
    assert len(life.moments) > 40, "the crashes do not reach into the run"
    for kinds in (DIES, LOSES_POWER):
        for crash in sample(life.crashes(kinds), 2):
            goes_on(life, crash)


@pytest.mark.parametrize(
    "kind", mostly_slow(["plain, secret", "SCAFFOLD's memory, seeded"], "plain, secret")
)
def test_a_resume_that_dies_goes_on_too(tmp_path, kind):
    life = recorded(tmp_path / "life", LIVES[kind])
    for crash in sample(life.crashes(), 4, seed=1):
        again = resumed(life, crash)
        for second in sample(again.crashes(), 2):
            goes_on(again, second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIVES)
def test_every_crash_is_resumed(tmp_path, kind):
    life = recorded(tmp_path / "life", LIVES[kind])
    for crash in life.crashes(CRASHES):
        goes_on(life, crash)


def test_a_budget_that_changes_is_said_before_it_is_spent_wherever_a_resume_dies(tmp_path):
    """Nothing is ever charged beyond the first budget before the ledger states the second."""
    at, root = ("cohort.sampler=full", "cohort.size=0"), tmp_path / "life"
    path, stated = root / "run", 0
    root.mkdir()
    trained(path, *at, "privacy.epsilon=3.0", "run.rounds=3")
    richer = small(*at, "privacy.epsilon=6.0", "run.rounds=4")
    with watching(root) as watcher:
        resume(path, lambda _: richer)
    trees = {
        frozenset(tree.items()): tree
        for moment in watcher.moments
        for tree in (moment.after(kind, None) for kind in ("killed", "torn", "lost"))
    }
    for tree in trees.values():
        restore(root, tree)
        ledger = Ledger.load(path / "ledger.jsonl")
        changes = list(map(astuple, ledger.budgets))
        assert changes or len(ledger.charges) == 3
        assert changes in ([], [(4, 3.0, 6.0)])
        stated += len(changes) == 1 and len(ledger.charges) == 3
        with without_disk():
            outcome = resume(path, lambda _: richer)
        assert list(map(astuple, outcome.plan.budgets)) == [(4, 3.0, 6.0)]
        assert audit(path).problems == ()
    assert stated, "no crash came between the statement and the first round after it"


def _settled_first(loop, now):
    """What clients remember is taken in before the checkpoint that it belongs to."""
    loop.world.states.flush(now.round)
    now.save(loop.directory, loop.setup.network)


def _written_at_once(path, parts):
    """Neither synced, nor renamed when it is."""
    Path.write_bytes(path, b"".join(parts))


@pytest.mark.parametrize(
    "name, faulty, kind",
    [
        ("accounting.durable.write_parts_atomically", _written_at_once, "lost"),
        ("accounting.durable.sync_folder", lambda folder: None, "lost"),
        ("privfed.run.loop.Loop.save", _settled_first, "killed"),
    ],
)
def test_a_write_that_is_not_durable_in_time_is_noticed(tmp_path, monkeypatch, name, faulty, kind):
    """The harness itself: it can fail."""
    monkeypatch.setattr(name, faulty)
    life = recorded(tmp_path / "life", LIVES["SCAFFOLD without privacy"])
    with pytest.raises((AssertionError, PrivfedError, AccountingError, OSError)):
        all_go_on(life, reversed(life.crashes((kind,))))


def all_go_on(life, crashes):
    for crash in crashes:
        goes_on(life, crash)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EARLIER)
def test_processes_that_are_killed_hundreds_of_times_go_on(tmp_path, kind):
    assert survived(tmp_path, EARLIER[kind], 100) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_newer_kinds_of_run_go_on_after_any_signal(tmp_path, kind):
    survived(tmp_path, KINDS[kind], 10, each=SIGNALS)


@pytest.mark.slow
def test_a_process_that_is_signalled_goes_on(tmp_path):
    survived(tmp_path, KINDS["Ditto, secret"], 5, each=SIGNALS)


def test_of_two_processes_on_a_run_one_goes_on(tmp_path):
    went_on_alone(tmp_path / "pairs", 3)


def test_a_run_that_ends_otherwise_after_a_signal_is_noticed(tmp_path):
    kind = KINDS["LoRA, seeded"]
    with pytest.raises(AssertionError):
        survived(tmp_path, replace(kind, go_on=lambda path: ["audit", str(path)]), 5)
