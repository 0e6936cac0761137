"""Runs that die at any moment, resume, and are checked against privfed's guarantees.

A `Life` is one kind of run. `recorded` runs it once and records the state after every possible
crash. `goes_on` resumes from such a state and raises `AssertionError` if a guarantee is violated:

- a crash is always resumable, and an audit finds no problem before and after;
- every sampled round was charged before; no round is sampled twice; only a round in flight may be
  lost;
- the model consists of what was released;
- a seeded run ends bit for bit as it would have without the crash.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from small import about, model, small
from trials.disk import CRASHES, Moment, Tree, restore, watching

from accounting.guarantee import spent
from accounting.ledger import Ledger
from privfed.auditing.canaries.log import CanaryLog
from privfed.auditing.run_audit import audit
from privfed.round import round as rounds
from privfed.run.outcome import Outcome
from privfed.run.train import resume, train
from privfed.store.round_logs import Releases
from privfed.store.run_directory import RunDirectory

SEEDED = ("run.randomness=seeded",)
SILO = ("data.setting=cross_silo", "run.rounds=5", "run.checkpoint_every=2")
BANDED = (
    *("privacy.mechanism=banded", "privacy.bands=2"),
    *("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0"),
)
MASKS = ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0", "run.rounds=4")
CANARIES = ("data.clients=24", "audit.canaries=20")
DP_SGD = (
    *("client.privacy.mechanism=dp_sgd", "client.privacy.noise_multiplier=1.0"),
    *("client.privacy.sampling_rate=0.5", "client.privacy.clip=1.0"),
    *("data.clients=4", "cohort.size=2", "privacy.mechanism=none"),
)
AVERAGED = ("server.optimizer=fedavg", "server.lr=1.0")

LIVES = {
    "plain, secret": AVERAGED,
    "plain, seeded": SEEDED,
    "SCAFFOLD's memory, secret": ("client.objective=scaffold", *SILO),
    "SCAFFOLD's memory, seeded": ("client.objective=scaffold", *SILO, *SEEDED),
    "FedDyn's memory, seeded": ("client.objective=feddyn", *SILO, *SEEDED),
    "SCAFFOLD without privacy": ("client.objective=scaffold", "privacy.mechanism=none", *SILO),
    "two exchanges, secret": ("client.objective=feddane",),
    "adaptive clip, seeded": ("privacy.adaptive_clip=true", "privacy.count_noise=3.0", *SEEDED),
    "FedAdam, mixed rows, seeded": (
        *("server.optimizer=fedadam", "privacy.mechanism=local_gaussian"),
        *("aggregation.rule=median", *SEEDED),
    ),
    "correlated noise, secret": BANDED,
    "correlated noise, seeded": (*BANDED, *SEEDED),
    "canaries, secret": (*CANARIES, *AVERAGED),
    "canaries, seeded": (*CANARIES, *SEEDED),
    "DP-SGD in silos, secret": (*DP_SGD, *SILO),
    "DP-SGD in silos, seeded": (*DP_SGD, *SILO, *SEEDED),
    "masked sums, secret": MASKS,
    "masked sums that abort": (*MASKS, "cohort.dropout=0.35", "secure.threshold=0.6"),
    "Skellam noise, seeded": ("privacy.mechanism=skellam", "secure.bits=20", *MASKS, *SEEDED),
}
"""Every kind of run with state of its own, by description."""


@dataclass(frozen=True)
class Life:
    """A complete run of `overrides`, below `root`, with all of its moments.

    A note of a moment is ("drawn", round) or ("released", round, tensor).
    """

    root: Path
    overrides: tuple[str, ...]
    moments: tuple[Moment, ...]
    end: Tree
    cut: int = 0
    """Number of crashes before these moments."""

    @property
    def path(self) -> Path:
        return self.root / "run"

    @property
    def seeded(self) -> bool:
        return SEEDED[0] in self.overrides

    @property
    def rounds(self) -> int:
        return small(*self.overrides).run.rounds

    def crashes(self, kinds: Sequence[str] = CRASHES, seed: int = 0) -> list[Crash]:
        """Returns all crashes with different states, each by the last moment with that state."""
        rng = random.Random(seed)
        different = {}
        for kind in kinds:
            for moment in self.moments:
                tree = moment.after(kind, rng)
                different[frozenset(tree.items())] = Crash(kind, moment, tree)
        return list(different.values())


@dataclass(frozen=True)
class Crash:
    """The state after a crash of this `kind` at this `moment`."""

    kind: str
    moment: Moment
    tree: Tree

    def __str__(self) -> str:
        return f"{self.kind} before {self.moment.operation}"


def sample(crashes: list[Crash], count: int, seed: int = 0) -> list[Crash]:
    """Returns `count` crashes, spread over their kinds, and for each kind over the whole life."""
    rng, count = random.Random(seed), min(count, len(crashes))
    step = len(crashes) / count
    return [crashes[int((place + rng.random()) * step)] for place in range(count)]


def recorded(root: Path, overrides: tuple[str, ...]) -> Life:
    """Runs it once and records its moments."""
    root.mkdir(parents=True)
    with watching(root) as watcher, noting(watcher.notes):
        train(small(*overrides), root / "run")
    return Life(root, overrides, tuple(watcher.moments), watcher.moments[-1].seen.tree())


@contextlib.contextmanager
def noting(notes: list[Any]) -> Iterator[None]:
    """Notes each sampled round as it begins, and each release as soon as it may be published."""
    draw, write = rounds.charge_then_draw, Releases.write

    def drawing(round: int, *rest: Any) -> Any:
        drawn = draw(round, *rest)
        notes.append(("drawn", round))
        return drawn

    def releasing(self: Releases, charge: Any, released: Any, state: Any) -> None:
        write(self, charge, released, state)
        notes.append(("released", charge.round, [tensor.clone() for tensor in released]))

    with (
        mock.patch.object(rounds, "charge_then_draw", drawing),
        mock.patch.object(Releases, "write", releasing),
    ):
        yield


def goes_on(life: Life, crash: Crash) -> None:
    """Resumes after the crash. Raises `AssertionError`, or the error of the resume."""
    restore(life.root, crash.tree)
    before, after = list(crash.moment.notes), []
    _was_charged(life, before)
    before += _stored(life)
    with without_disk(), noting(after):
        outcome = _again(life)
    _is_whole(life, outcome)
    if life.seeded:
        _same(life)
    else:
        _is_drawn_once(life, outcome, before, after)


def resumed(life: Life, crash: Crash) -> Life:
    """Returns the resume after the crash, as a life of its own that may crash again."""
    restore(life.root, crash.tree)
    earlier = (*crash.moment.notes, *_stored(life))
    with watching(life.root) as watcher, noting(watcher.notes):
        _again(life)
    moments = (replace(moment, notes=earlier + moment.notes) for moment in watcher.moments)
    return replace(life, moments=tuple(moments), cut=life.cut + 1)


def _again(life: Life) -> Outcome:
    """Does what a user does after a crash: resumes, or begins again if nothing has begun."""
    if (life.path / "config.toml").exists():
        return resume(life.path, lambda config: config)
    return train(small(*life.overrides), life.path)


def _stored(life: Life) -> list[Any]:
    """Returns stored releases as notes, including a round whose write had not returned."""
    directory = RunDirectory(life.path)
    stored = {round: directory.releases.read(round) for round in directory.releases.rounds()}
    return [("released", round, release.released) for round, release in stored.items()]


@contextlib.contextmanager
def without_disk() -> Iterator[None]:
    """Prevents syncs from reaching the real disk, to save time."""
    with mock.patch.object(os, "fsync", _nothing):
        yield


def _nothing(descriptor: int) -> None:
    """Does nothing; a mock would record every call."""


def _was_charged(life: Life, before: list[Any]) -> None:
    """Checks write-ahead: all sampled rounds are in the ledger that the crash left."""
    ledger = life.path / "ledger.jsonl"
    charged = {charge.round for charge in Ledger.load(ledger).charges} if ledger.exists() else set()
    assert {note[1] for note in before} <= charged, "drawn, and not charged"
    if ledger.exists() and Ledger.load(ledger).opened:
        _audited(life)


def _audited(life: Life) -> None:
    problems = audit(life.path).problems
    assert not problems, problems


def _is_whole(life: Life, outcome: Outcome) -> None:
    ledger = Ledger.load(life.path / "ledger.jsonl")
    assert [charge.round for charge in ledger.charges] == [*range(1, life.rounds + 1)]
    assert outcome.guarantee.epsilon == spent(ledger, 1e-3).epsilon
    _audited(life)
    assert about(life.path)["updates"] == outcome.updates
    assert not list(life.path.glob("releases/0*")), "all of them are in the checkpoint"
    private = life.path / "private"
    assert not private.exists() or private.stat().st_mode & 0o777 == 0o700
    states = private / "settled.f32"
    if states.exists():
        held = np.fromfile(states, np.float32).reshape(small(*life.overrides).data.clients, -1)
        assert set(held[:, 0]) <= {0.0, 1.0}
        total = model(life.path).get("objective/sum")
        if total is not None and "privacy.mechanism=none" in life.overrides:
            torch.testing.assert_close(
                total, torch.from_numpy(held[:, 1:].sum(0)), rtol=1e-4, atol=1e-5
            )


def _same(life: Life) -> None:
    """Checks that the result is bit-identical to the run without a crash, except where not
    promised.
    """
    tree = life.end
    for name, (_, content) in tree.items():
        path = life.path.parent / name
        if content is None or path.name.startswith(".") or path.name == "canaries.f64":
            continue
        if path.parent.name == "silos":
            _charges_at_most_once_more(path, content)
            continue
        assert path.read_bytes() == content, name
    if (log := life.path / "private/canaries.f64").exists():
        now = CanaryLog(RunDirectory.open(life.path).canaries, 20).read()
        restored = log.read_bytes()
        log.write_bytes(tree["run/private/canaries.f64"][1])
        then = CanaryLog(RunDirectory.open(life.path).canaries, 20).read()
        log.write_bytes(restored)
        for name in ("inclusion", "rounds", "lengths", "products", "final"):
            np.testing.assert_array_equal(getattr(now, name), getattr(then, name), name)


def _charges_at_most_once_more(path: Path, content: bytes) -> None:
    """Checks a silo's ledger: an incomplete line counts as a charge of its next round."""
    whole = path.with_suffix(".whole")
    whole.write_bytes(content)
    now, then = ({charge.round for charge in Ledger.load(at).charges} for at in (path, whole))
    assert then <= now, path
    assert len(now) <= len(then) + 1, path


def _is_drawn_once(life: Life, outcome: Outcome, before: list[Any], after: list[Any]) -> None:
    drawn = [{note[1] for note in notes if note[0] == "drawn"} for notes in (before, after)]
    assert not drawn[0] & drawn[1], "a charged round was drawn again"
    releases = [note for notes in (before, after) for note in notes if note[0] == "released"]
    exchanges = max(len(tensors) for _, _, tensors in releases)
    shown = {round: tensors for _, round, tensors in releases if len(tensors) == exchanges}
    moved = life.rounds - len(outcome.aborts)
    lost = moved - outcome.updates
    assert 0 <= lost <= life.cut + 1, "more than the round in flight is lost"
    assert outcome.updates == len(shown), "what was shown is not what is in the model"
    if set(AVERAGED) <= set(life.overrides):
        total = sum(tensors[0] for tensors in shown.values())
        parts = model(life.path)
        flat = torch.cat([parts["model/1.weight"].reshape(-1), parts["model/1.bias"]])
        torch.testing.assert_close(flat, total, rtol=1e-5, atol=1e-6)
