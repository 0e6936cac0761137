"""What clients remember between rounds, for objectives that need returning clients.

A simulation keeps every client's memory; in a deployment each client keeps its own. It is secret:
it lies under private/ (mode 0700) and is never published.

Why it costs no privacy beyond the clipped message (unit: one client; add/remove; Poisson): a
client's state follows from its own data, its own coins and what was released, so leaving a client
out changes nobody else's. Fix the other clients' coins; given what was released before, a round's
output is then (1 - q) P0 + q E_h P1(h) against P0, over the client's own history h, whose posterior
is independent of this round's coin, and every P1(h) is P0 shifted by at most the clip. Hockey-stick
and Renyi divergences are jointly (quasi-)convex (van Erven & Harremoes 2014, theorems 11 and 13),
so the mixture is no further from P0 than its worst member: the round's event is that of a stateless
objective, and rounds compose adaptively.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from accounting.durable import sync_folder, write_atomically
from privfed.errors import Broken
from privfed.tensorfile import fitting, pack, unpack

Ids = NDArray[np.int64]


class ClientStates:
    """`[k]` float32 numbers per client in a mapped file, and a journal of rounds beside it.

    `settled.f32` `[clients, 1 + k]` holds what was true at the last checkpoint (first column: 1
    where the client has a state). Each later round is a file of its own, durable before the round's
    release is, so that a resume finds both or neither. Memory is flat in the number of clients.
    """

    def __init__(self, folder: Path, clients: int, width: int, checkpoint: int) -> None:
        """Open, or create where the run's last checkpoint is that of round 0.

        Raises `Broken` where the file is missing or of another size.
        """
        self._folder = folder
        self._file = folder / "settled.f32"
        self._round = checkpoint
        self._pending: list[tuple[Ids, Tensor]] = []
        self._where: dict[int, tuple[Path, int]] = {}
        if checkpoint == 0 and not self._file.exists():
            _create(self._file, 4 * clients * (1 + width))
        if not self._file.is_file() or self._file.stat().st_size != 4 * clients * (1 + width):
            raise Broken(
                f"{self._file} is missing or not of {clients} clients with {width} numbers each: "
                "what clients remembered of this run is gone, or the data have changed. Restore "
                "it, or start a new run"
            )
        for torn in folder.glob(".*.tmp"):
            torn.unlink()
        self._settled = np.memmap(self._file, np.float32, "r+", shape=(clients, 1 + width))
        self._fold(checkpoint)

    def begin(self, round: int) -> None:
        """What was scattered in a round that did not end is forgotten."""
        self._round = round
        self._pending = []

    def gather(self, ids: Ids, unseen: Tensor) -> tuple[Tensor, Tensor]:
        """States `[c, k]` of clients `ids` `[c]`, and which of them `[c]` have one.

        The others' is `unseen` `[k]`.
        """
        held = torch.from_numpy(np.array(self._settled[ids])).to(unseen.device)
        states, seen = held[:, 1:], held[:, 0] == 1
        for path in {self._where[i][0] for i in ids.tolist() if i in self._where}:
            with fitting(path), safe_open(path, "pt") as journal:
                values = journal.get_slice("values")
                for row, client in enumerate(ids.tolist()):
                    where, place = self._where.get(client, (None, 0))
                    if where == path:
                        states[row] = values[place : place + 1][0].to(unseen.device)
                        seen[row] = True
        return torch.where(seen[:, None], states, unseen), seen

    def scatter(self, ids: Ids, values: Tensor) -> None:
        """New states `[c, k]` of clients `ids` `[c]`, to be kept with the round."""
        self._pending.append((ids, values.detach().cpu()))

    def keep(self) -> None:
        """Make what the round scattered so far durable, and the states of the next round."""
        path, d = self._journal(self._round), self._settled.shape[1] - 1
        ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in self._pending)])
        values = torch.cat([torch.empty(0, d), *(values for _, values in self._pending)])
        tensors = {"ids": torch.from_numpy(ids), "values": values}
        write_atomically(path, pack(tensors, {"round": self._round}))
        self._show(path, ids)

    def replay(self, round: int, released: bool) -> None:
        """Take up round `round` of a run that was cut off, or forget it if it released nothing.

        Raises `Broken` where its journal is gone.
        """
        path = self._journal(round)
        if not released:
            path.unlink(missing_ok=True)
            return
        tensors, _ = unpack(path)
        with fitting(path):
            self._show(path, tensors["ids"].numpy())

    def settle(self, round: int) -> None:
        """Fold in every round up to `round`, whose checkpoint is durable."""
        self._fold(round)
        self._where = {}

    def _fold(self, upto: int) -> None:
        done = [path for path in self._journals() if int(path.stem) <= upto]
        for path in done:  # whole values, so doing it twice after a crash does no harm
            tensors, _ = unpack(path)
            with fitting(path):
                ids = tensors["ids"].numpy()
                self._settled[ids, 1:] = tensors["values"].numpy()
                self._settled[ids, 0] = 1
        if done:
            self._settled.flush()
            for path in done:
                path.unlink()
            sync_folder(self._folder)

    def _show(self, path: Path, ids: Ids) -> None:
        self._where |= {client: (path, place) for place, client in enumerate(ids.tolist())}

    def _journals(self) -> Iterator[Path]:
        yield from sorted(self._folder.glob("[0-9]*.safetensors"))

    def _journal(self, round: int) -> Path:
        return self._folder / f"{round:06d}.safetensors"


def _create(path: Path, size: int) -> None:
    """A file of zeros, holes where the file system has them; whole or not there at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)
