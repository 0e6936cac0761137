"""Silos that train with DP-SGD, one after the other, each charged to its own ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.durable import make_folder
from accounting.ledger import Ledger
from privfed.errors import Broken
from privfed.local.course import Course
from privfed.local.dp_sgd import ExamplePrivacy
from privfed.local.exchange import Broadcast
from privfed.local.objective import Work
from privfed.local.per_example import PerExample
from privfed.local.trainer import DROPOUT, LocalTrainer, own_draws, seed_draws
from privfed.streams import Keys
from privfed.vector import Indices


class SiloLedgers:
    """One ledger per silo under private/silos, as it would lie at the silo itself.

    Which rounds a silo took part in is part of it, so it is never published.
    """

    def __init__(
        self, folder: Path, terms: Mapping[str, Any], silos: int, fresh: bool, reexecutes: bool
    ) -> None:
        """Open those of all `silos`; begin them where nothing was charged yet (`fresh`).

        Raises `Broken` where one is missing from a run that was charged.
        """
        for part in (folder.parent, folder):
            if fresh:
                make_folder(part, 0o700)
        self._ledgers = [
            _opened(folder / f"{silo:06d}.jsonl", {**terms, "silo": silo}, fresh)
            for silo in range(silos)
        ]
        for ledger in self._ledgers:
            ledger.reexecutes = reexecutes

    def of(self, silo: int) -> Ledger:
        return self._ledgers[silo]


def _opened(path: Path, terms: Mapping[str, Any], fresh: bool) -> Ledger:
    ledger = Ledger.recover(path) if path.exists() else None
    if ledger is None or not ledger.opened:
        if not fresh:
            raise Broken(
                f"{path} is missing or empty, and what that silo's examples spent with it; restore "
                "it, or start a new run"
            )
        path.unlink(missing_ok=True)  # torn as it was begun
        return Ledger.create(path, terms)
    if ledger.terms.get("id") != terms["id"]:
        raise Broken(f"{path} is the ledger of another run's silo; restore this one's")
    return ledger


class PrivateSilos:
    """Trains silos by an `ExamplePrivacy`: what they send is private for each of their examples."""

    def __init__(self, dp: ExamplePrivacy, trainer: LocalTrainer, ledgers: SiloLedgers) -> None:
        self._dp, self._ledgers = dp, ledgers
        self._per_example = PerExample(trainer.network)

    def train(
        self,
        trainer: LocalTrainer,
        ids: Indices,
        broadcast: Broadcast,
        states: Tensor | None,
        round: int,
        keys: Keys,
        draws: Keys,
        epochs: Indices,
        returning: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows `[c, m]` of silos `ids` `[c]`, and their new states, as `LocalTrainer.train`.

        `keys` are private ones, one per silo; `draws` are for what the model draws itself
        (dropout). Each silo is charged before it trains.
        """
        for silo in ids.tolist():
            self._ledgers.of(silo).charge(round, self._dp.event(trainer.epochs))
        course = Course.begin(trainer.objective, len(ids), broadcast, states)
        steps = [self._dp.steps(int(count)) for count in epochs]
        device, taken = course.w.device, torch.tensor(steps).to(course.w)
        seeds = draws.per_client(1, salt=DROPOUT)[:, 0] >> np.uint64(1)
        with own_draws(device):
            for place, (silo, each) in enumerate(zip(ids.tolist(), keys.each(), strict=True)):
                seed_draws(int(seeds[place]), device)
                now = course.of(slice(place, place + 1))
                for step in range(steps[place]):
                    fresh = each.derived(b"step %d" % step)
                    grad = self._gradient(trainer, silo, now.w[0], fresh)[None]
                    epoch = torch.tensor([step // self._dp.steps(1)], device=device)
                    total = taken[place : place + 1]
                    along = now.step(grad, None, step, epoch, total, trainer.lr)
                    trainer.go(now, along, broadcast)
        work = Work(taken, trainer.lr, None, returning, course.carried, draws)
        return trainer.objective.message(course.w, broadcast, states, work)

    def _gradient(self, trainer: LocalTrainer, silo: int, w: Tensor, keys: Keys) -> Tensor:
        federation = trainer.federation
        first, size = int(federation.offsets[silo]), int(federation.sizes(np.array([silo]))[0])

        def gradients(model: Tensor, drawn: np.ndarray) -> Tensor:
            x, y = federation.gather(torch.from_numpy(first + drawn).to(model.device))
            return self._per_example.gradients(model, x, y)

        return self._dp.gradient(w, size, trainer.batch_size, gradients, keys)
