"""What a run's canaries saw: coins, and products of releases with directions, under private/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.durable import append, make_folder, write_atomically
from privfed.errors import Broken

COINS, FINAL = 0, -1
"""The rounds under which coins, and the final model, are noted."""


@dataclass(frozen=True)
class Seen:
    """Of K canaries: `coins` `[K]`, `products` `[T, K]` with the releases of `rounds` `[T]`.

    `lengths` `[T]` are the releases' own; `final` `[K]` are cosines with the model's whole way, in
    `dimension` d.
    """

    coins: NDArray[np.bool_]
    dimension: int
    rounds: NDArray[np.int64]
    lengths: NDArray[np.float64]
    products: NDArray[np.float64]
    final: NDArray[np.float64] | None
    ended: bool
    """Whether the run was at its end when the last of this was noted."""


class CanaryLog:
    """Records of a fixed size: round, length of what was seen, K products; the last one counts."""

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._size = path, count + 2

    def begin(self, coins: NDArray[np.bool_], dimension: int) -> None:
        """Note the coins, where the run has just begun; forget a torn last record."""
        make_folder(self._path.parent, 0o700)
        whole = self._records()
        if len(whole):
            write_atomically(self._path, whole.tobytes())
        else:
            write_atomically(self._path, self._record(COINS, np.append(float(dimension), coins)))
        self._path.chmod(0o600)

    def append(self, round: int, found: NDArray[np.float64]) -> None:
        """Note a length and K products, `[1 + K]`."""
        append(self._path, self._record(round, found))

    def read(self) -> Seen | None:
        """What was noted; None where the log is not here. Raises `Broken` for a damaged one."""
        if not self._path.is_file():
            return None
        records = self._records()
        if not len(records) or records[0, 0] != COINS or not _are_plausible(records):
            raise Broken(f"{self._path} is damaged: what canaries saw cannot be read")
        latest = {int(record[0]): record[1:] for record in records}
        rounds = np.array(sorted(round for round in latest if round > 0), dtype=np.int64)
        table = np.array([latest[round] for round in rounds]).reshape(len(rounds), self._size - 1)
        final, ended = latest.get(FINAL, np.zeros(1)), bool(records[-1, 0] == FINAL)
        return Seen(
            coins=latest[COINS][1:] > 0.5,
            dimension=int(latest[COINS][0]),
            rounds=rounds,
            lengths=table[:, 0],
            products=table[:, 1:],
            final=final[1:] / final[0] if ended and final[0] else None,
            ended=ended,
        )

    def _record(self, round: int, found: NDArray[np.float64]) -> bytes:
        return np.concatenate([[float(round)], found]).tobytes()

    def _records(self) -> NDArray[np.float64]:
        if not self._path.is_file():
            return np.empty((0, self._size))
        numbers = np.frombuffer(self._path.read_bytes()[: self._whole()], dtype=np.float64)
        return numbers.reshape(-1, self._size)

    def _whole(self) -> int:
        each = 8 * self._size
        return self._path.stat().st_size // each * each


def _are_plausible(records: NDArray[np.float64]) -> bool:
    """Whether all numbers are finite in single precision, as they were, and rounds are rounds."""
    rounds, largest = records[1:, 0], np.finfo(np.float32).max
    whole = (rounds == np.round(rounds)) & (rounds >= FINAL) & (rounds < 2**53)
    return bool((np.abs(records) <= largest).all() and whole.all())
