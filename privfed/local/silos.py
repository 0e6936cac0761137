"""Silos that train with DP-SGD, one after the other, each charged to its own ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.ledger import Ledger
from privfed.federation import Indices
from privfed.local.dp_sgd import DpSgd
from privfed.local.objective import Broadcast, Work
from privfed.local.per_example import PerExample
from privfed.local.trainer import LocalTrainer
from privfed.streams import Keys


class SiloLedgers:
    """One ledger per silo under private/silos, as it would lie at the silo itself.

    Which rounds a silo took part in is part of it, so it is never published.
    """

    def __init__(self, folder: Path, terms: Mapping[str, Any], reexecutes: bool) -> None:
        self._folder, self._terms, self._reexecutes = folder, dict(terms), reexecutes
        self._open: dict[int, Ledger] = {}

    def of(self, silo: int) -> Ledger:
        if silo not in self._open:
            path = self._folder / f"{silo:06d}.jsonl"
            if path.exists():
                ledger = Ledger.recover(path)
            else:
                for folder in (self._folder.parent, self._folder):
                    folder.mkdir(mode=0o700, exist_ok=True)
                    folder.chmod(0o700)
                ledger = Ledger.create(path, {**self._terms, "silo": silo})
            ledger.reexecutes = self._reexecutes
            self._open[silo] = ledger
        return self._open[silo]


class PrivateSilos:
    """Trains silos by `DpSgd`: what they send is private for each of their examples."""

    def __init__(self, dp: DpSgd, trainer: LocalTrainer, ledgers: SiloLedgers) -> None:
        self._dp, self._ledgers = dp, ledgers
        self._per_example = PerExample(trainer.network)

    def train(
        self,
        trainer: LocalTrainer,
        ids: Indices,
        broadcast: Broadcast,
        own: Tensor | None,
        round: int,
        keys: Keys,
        epochs: Indices,
        seen: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows `[c, m]` of silos `ids` `[c]`, and their new own state, as `LocalTrainer.train`.

        `keys` are private ones, one per silo. Each silo is charged before it trains.
        """
        for silo in ids.tolist():
            self._ledgers.of(silo).charge(round, self._dp.event(trainer.epochs))
        w = broadcast["params"].repeat(len(ids), 1)
        steps = [self._dp.steps(int(count)) for count in epochs]
        for place, (silo, each) in enumerate(zip(ids.tolist(), keys.each(), strict=True)):
            now = w[place : place + 1]
            state = None if own is None else own[place : place + 1]
            for step in range(steps[place]):
                grad = self._gradient(trainer, silo, now[0], each.derived(b"step %d" % step))
                now -= trainer.lr * trainer.objective.direction(grad[None], now, broadcast, state)
        work = Work(torch.tensor(steps).to(w), trainer.lr, None, seen)
        return trainer.objective.message(w, broadcast, own, work)

    def _gradient(self, trainer: LocalTrainer, silo: int, w: Tensor, keys: Keys) -> Tensor:
        federation = trainer.federation
        first, size = int(federation.offsets[silo]), int(federation.sizes(np.array([silo]))[0])

        def gradients(model: Tensor, drawn: np.ndarray) -> Tensor:
            x, y = federation.gather(torch.from_numpy(first + drawn).to(model.device))
            return self._per_example.gradients(model, x, y)

        return self._dp.gradient(w, size, trainer.batch_size, gradients, keys)
