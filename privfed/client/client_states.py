"""Client states between rounds: values of an objective, or local model parameters.

A simulation keeps every client's state; in a deployment each client keeps its own. The state is
secret: it is stored under private/ (mode 0700) and is never published.

Why states cost no privacy beyond the clipped message (unit: one client; add/remove; Poisson): a
client's state is a function of its own data, its own random numbers, public random numbers
(availability and dropouts) and released values, so removing a client changes no other client's
state. Fix the other clients' random numbers, and let h be the removed client's history. Given the
earlier releases, a round's output is distributed as P0 without the client, and as
(1 - q) P0 + q E_h P1(h) with it. The posterior of h is independent of this round's Bernoulli(q)
draw, and every P1(h) is P0 shifted by at most the clip. Hockey-stick and Renyi divergences are
jointly (quasi-)convex (van Erven & Harremoes 2014, theorems 11 and 13), so the mixture is no
further from P0 than its worst member. The round's event is therefore that of a stateless objective,
and rounds compose adaptively.

The same argument for other samplers and noise:
- `full` (zero-out): this is q = 1, without a Bernoulli draw. All rounds of both worlds, with the
  client and with zeros in its place, differ by a shift of at most the clip.
- `cyclic` (zero-out): a slot drawn before training, independently of the data, fixes a client's
  rounds, which are charged as observed. In these rounds the argument is that of `full`; in all
  others both worlds agree. Noise that is correlated over these rounds is charged for rows that may
  depend on all earlier releases (Denisov, McMahan, Rush, Smith & Guha Thakurta 2022).
- Noise on each row (replace-one): participation is observed, so subsampling hides nothing. Given
  the earlier releases, a row is under either dataset a mixture, over the client's own history, of
  noise about means no longer than the clip. By the same convexity, two such mixtures are no further
  apart than two means at twice the clip, which is charged. Other clients' rows do not change, so
  the argument also holds for noise shared by pairs of clients, given what colluders know
  (`PairwiseGaussian`).

A row in which a client scores its personal model (`evaluation.personal`) is also such a row: no
longer than its clip, and a function of that client's own history.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import regular
from accounting.durable import make_folder, recover_folder, sync_folder, write_atomically
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Broken, Refused, public_text
from privfed.core.vector import Indices

STATES_FILE = "settled.f32"
"""Name of the file with the states at the last checkpoint."""


class ClientStates:
    """The clients' states: k float32 values each, in a memory-mapped file and files of rounds.

    The file `settled.f32` `[clients, 1 + k]` contains the states at the last checkpoint; the first
    column is 1 if the client has a state. The new states of each round since then are in a separate
    file, which is durable before the round's release: after a resume, no release is without its
    states. Memory has only an index of the clients in the files of rounds.

    `folded.txt` states the last round that was merged into `settled.f32`. After a power cut, files
    that were removed may reappear; those of merged rounds are then ignored.
    """

    def __init__(self, folder: Path, run: str, clients: int, width: int, checkpoint: int) -> None:
        """Opens the states; creates them if `checkpoint` is 0 and they do not exist.

        Args:
          folder: directory of the files.
          run: identity of the run, which must be that in the folder's of.txt.
          clients: number of clients.
          width: values per client, k.
          checkpoint: round of the last checkpoint.

        Raises:
          Broken: if `settled.f32` is missing, or of another size or run, or if `folded.txt` or the
            file of a round up to `checkpoint`, which is merged now, is damaged.
          Refused: if the file system has too little space.
        """
        self._folder, self._clients = folder, clients
        self._file, self._owner = folder / STATES_FILE, folder / "of.txt"
        self._upto = folder / "folded.txt"
        self._record = np.dtype([("client", "<i8"), ("values", "<f4", (width,))])
        self._where: dict[int, tuple[Path, int]] = {}
        size = 4 * clients * (1 + width)
        if checkpoint == 0 and not self._file.exists():
            make_folder(folder, 0o700)
            write_atomically(self._owner, run.encode())
            _create(self._file, size)  # last: if this file exists, so does the owner's
        if folder.is_dir():
            folder.chmod(0o700)
            recover_folder(folder)
        if not self._file.is_file() or self._file.stat().st_size != size:
            raise Broken(
                f"{self._file} is missing, or its size is not that of {clients} clients with "
                f"{width} numbers each: the clients' states were lost, or the data have changed; "
                "restore the file or the data, or start a new run"
            )
        if not self._owner.is_file() or regular.read_text(self._owner, errors="replace") != run:
            raise Broken(
                f"{folder} holds the clients' states of another run, or of other clients, or of "
                "clients in another order; restore this run's file, or the data"
            )
        _reserve(self._file, size)
        self._settled = np.memmap(self._file, np.float32, "r+", shape=(clients, 1 + width))
        self._fold(checkpoint)
        self.begin(checkpoint)

    def begin(self, round: int) -> None:
        """Begins `round`; discards states that `scatter` stored in an unfinished attempt at it."""
        self._path, self._earlier = self._journal(round), self._where
        self._temporary = self._path.with_name(f".{self._path.name}.tmp")
        self._temporary.unlink(missing_ok=True)

    def discard(self) -> None:
        """Discards the new states of the current, aborted round, also if `keep` stored them."""
        self._temporary.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._where = self._earlier

    def gather(self, ids: Indices, initial_client_state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns states `[c, k]` of clients `ids` `[c]`, and a mask `[c]` of those that have one.

        The state of all others is `initial_client_state` `[k]`.
        """
        held = np.array(self._settled[ids])
        places = [self._where.get(client) for client in ids.tolist()]
        for path in {place[0] for place in places if place}:
            journal = self._read(path)
            for row, place in enumerate(places):
                if place and place[0] == path:
                    held[row, 0], held[row, 1:] = 1, journal[place[1]]["values"]
        states = torch.from_numpy(held).to(initial_client_state.device)
        returning = states[:, 0] == 1
        return torch.where(returning[:, None], states[:, 1:], initial_client_state), returning

    def scatter(self, ids: Indices, values: Tensor) -> None:
        """Stores new states `[c, k]` of clients `ids` `[c]`; `keep` makes them durable."""
        records = np.empty(len(ids), self._record)
        records["client"], records["values"] = ids, values.detach().cpu().numpy()
        with self._temporary.open("ab") as file:
            file.write(records.tobytes())

    def keep(self) -> None:
        """Makes the states that `scatter` stored in the round durable; later rounds read them."""
        if not self._temporary.exists() and self._path.exists():
            return  # a later exchange of the same round
        with self._temporary.open("ab") as file:
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        sync_folder(self._folder)
        self._show(self._path)

    def replay(self, round: int, released: bool) -> None:
        """Makes later rounds read the states that `keep` stored in an interrupted `round`.

        Deletes these states instead if the round's release was not stored (`released` is False).
        Raises `Broken` if the round was released, but its file is missing or damaged.
        """
        path = self._journal(round)
        if released:
            self._show(path)
        else:
            path.unlink(missing_ok=True)

    def flush(self, round: int) -> None:
        """Merges the states of all rounds up to `round` into the file of the checkpoint.

        The checkpoint of `round` must be durable.
        """
        self._fold(round)
        self._where = {}

    def _fold(self, upto: int) -> None:
        rounds = {path: int(path.stem) for path in sorted(self._folder.glob("[0-9]*.f32"))}
        done, before = [path for path, round in rounds.items() if round <= upto], self._folded()
        new = [path for path in done if rounds[path] > before]
        for path in new:  # complete values, so merging twice after a crash is harmless
            for record in self._read(path):
                self._settled[record["client"], 1:] = record["values"]
                self._settled[record["client"], 0] = 1
        if new:
            self._settled.flush()
            write_atomically(self._upto, b"%d" % upto)
        for path in done:
            path.unlink()
        if done:
            sync_folder(self._folder)

    def _folded(self) -> int:
        """Returns the last round merged into `settled.f32`; 0 without the file `folded.txt`.

        Raises `Broken` if the file states no number.
        """
        text = regular.read_text(self._upto, "ascii", "replace") if self._upto.is_file() else "0"
        if not text.isdecimal():
            raise Broken(
                f"{self._upto} does not hold the number of a round; restore the file", text[:20]
            )
        return int(text)

    def _show(self, path: Path) -> None:
        clients = self._read(path)["client"].tolist()
        self._where = self._where | {client: (path, place) for place, client in enumerate(clients)}

    def _read(self, path: Path) -> NDArray[Any]:
        """Returns a round's records, memory-mapped.

        Raises `Broken` if the file is missing or incomplete, or names an unknown client.
        """
        size = path.stat().st_size if path.is_file() else -1
        if size == 0:
            return np.empty(0, self._record)
        if size < 0 or size % self._record.itemsize:
            raise Broken(
                f"{path}, which holds the clients' states after a round, is missing or "
                "incomplete; restore private/ as it was when the run stopped, or start a new run"
            )
        records: NDArray[Any] = np.memmap(path, self._record, "r")
        if not np.isin(records["client"], np.arange(self._clients)).all():
            raise Broken(
                f"{path} names clients that this run does not have, so it was edited; restore the "
                "file"
            )
        return records

    def _journal(self, round: int) -> Path:
        return self._folder / f"{round:06d}.f32"


def _reserve(path: Path, size: int) -> None:
    """Allocates all `size` bytes of the file at `path` before anything relies on them.

    If a memory-mapped file has a hole, and the disk is full when it is written, the process
    ends by SIGBUS without a message. Raises `Refused` if there is no space.
    """
    try:
        regular.refuse_irregular(path)
        with path.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(file.fileno(), 0, size)
            os.fsync(file.fileno())
    except OSError as error:
        raise Refused(
            f"{path} needs {size:,} bytes for the clients' states between rounds, but the file "
            f"system does not provide them ({public_text(error)}); no round was charged; free "
            "space there and resume the run, or start a run with another --out"
        ) from None


def _create(path: Path, size: int) -> None:
    """Creates a file of `size` zero bytes atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
