"""The log of a run's canaries under private/: coins, and products of releases with directions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting import regular
from accounting.durable import append, make_folder, write_atomically
from privfed.core.errors import Broken

COINS, FINAL = 0, -1
"""The rounds under which coins, and the final model, are noted."""


@dataclass(frozen=True)
class CanaryRecord:
    """What was noted of K canaries over T rounds.

    `coins` `[K]` say who entered, and `products` `[T, K]` are those of the releases of `rounds`
    `[T]` with all directions. `lengths` `[T]` are the releases' own; `final` `[K]` are cosines with
    the model's whole way, in `dimension` d. Of canaries that train nothing is noted of releases,
    and `final` is what the model learned of them (`privfed.auditing.canaries.learned`): d is 0.
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
    """The file at `path`: float64 records of one size, for `count` canaries.

    Each holds a round, the length of what was released in it, and K products; of several records of
    a round the last one counts.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._size = path, count + 2

    def begin(self, coins: NDArray[np.bool_], dimension: int) -> None:
        """Note the coins, where the run has just begun; forget a torn last record."""
        make_folder(self._path.parent, 0o700)
        records = self._records()
        if len(records):
            write_atomically(self._path, records.tobytes())
        else:
            write_atomically(self._path, _record(COINS, np.append(float(dimension), coins)))
        self._path.chmod(0o600)

    def append(self, round: int, products: NDArray[np.float64]) -> None:
        """Note a length and K products, `[1 + K]`; durable when this returns."""
        append(self._path, _record(round, products))

    def read(self) -> CanaryRecord | None:
        """What was noted; None where there is no log. Raises `Broken` for a damaged one."""
        if not self._path.is_file():
            return None
        records = self._records()
        if not len(records) or records[0, 0] != COINS or not _are_plausible(records):
            raise Broken(f"{self._path} is damaged: what canaries saw cannot be read")
        latest = {int(record[0]): record[1:] for record in records}
        rounds = np.array(sorted(round for round in latest if round > 0), dtype=np.int64)
        table = np.array([latest[round] for round in rounds]).reshape(len(rounds), self._size - 1)
        final, ended = latest.get(FINAL, np.zeros(1)), bool(records[-1, 0] == FINAL)
        return CanaryRecord(
            coins=latest[COINS][1:] > 0.5,
            dimension=int(latest[COINS][0]),
            rounds=rounds,
            lengths=table[:, 0],
            products=table[:, 1:],
            final=final[1:] / final[0] if ended and final[0] else None,
            ended=ended,
        )

    def _records(self) -> NDArray[np.float64]:
        """All records `[n, 2 + K]` but for a torn last one; none where there is no file."""
        if not self._path.is_file():
            return np.empty((0, self._size))
        content = regular.read_bytes(self._path)
        untorn = len(content) // (8 * self._size) * (8 * self._size)
        return np.frombuffer(content[:untorn], dtype=np.float64).reshape(-1, self._size)


def _record(round: int, numbers: NDArray[np.float64]) -> bytes:
    return np.concatenate([[float(round)], numbers]).tobytes()


def _are_plausible(records: NDArray[np.float64]) -> bool:
    """Whether all numbers are finite in single precision, as they were, and rounds are rounds."""
    rounds, largest = records[1:, 0], np.finfo(np.float32).max
    are_rounds = (rounds == np.round(rounds)) & (rounds >= FINAL) & (rounds < 2**53)
    return bool((np.abs(records) <= largest).all() and are_rounds.all())
