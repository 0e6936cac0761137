"""The log of a run's canaries under private/: secret bits, and inner products with releases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting import regular
from accounting.durable import append, make_folder, write_atomically
from privfed.core.errors import Broken

INCLUSION, FINAL = 0, -1
"""The rounds under which the bits and the final model are recorded."""


@dataclass(frozen=True)
class CanaryRecord:
    """The records of K canaries over T rounds.

    If canaries train, releases are not recorded, `dimension` is 0, and `final` is the score by
    training on canaries (`privfed.auditing.canaries.learned`).

    Attributes:
      inclusion: secret bits, shape `[K]`; True for heads.
      dimension: number of parameters d.
      rounds: recorded rounds, shape `[T]`.
      lengths: norms of the releases, shape `[T]`.
      products: inner products of the releases with all directions, shape `[T, K]`.
      final: cosines with the model's total change, shape `[K]`; None before the run has ended, or
        if the model did not change.
    """

    inclusion: NDArray[np.bool_]
    dimension: int
    rounds: NDArray[np.int64]
    lengths: NDArray[np.float64]
    products: NDArray[np.float64]
    final: NDArray[np.float64] | None
    ended: bool
    """Whether the run had ended when the last record was written."""


class CanaryLog:
    """The file at `path`: float64 records of constant size for `count` canaries.

    Each record holds a round, the norm of that round's release, and K products. Of several records
    of one round, the last one counts. The first record (round `INCLUSION`) holds the dimension and
    the bits instead, and that of round `FINAL` the model's total change.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._size = path, count + 2

    def begin(self, inclusion: NDArray[np.bool_], dimension: int) -> None:
        """Records bits and `dimension` in a new log, if the log has no complete record.

        Otherwise keeps the complete records, and removes an incomplete last one.
        """
        make_folder(self._path.parent, 0o700)
        records = self._records()
        if len(records):
            write_atomically(self._path, records.tobytes())
        else:
            write_atomically(self._path, _record(INCLUSION, np.append(float(dimension), inclusion)))
        self._path.chmod(0o600)

    def append(self, round: int, products: NDArray[np.float64]) -> None:
        """Records the norm of a round's release and K inner products, `[1 + K]`, durably."""
        append(self._path, _record(round, products))

    def read(self) -> CanaryRecord | None:
        """Returns the records; None if there is no file.

        Raises `Broken` if the file is damaged, or has no complete record.
        """
        if not self._path.is_file():
            return None
        records = self._records()
        if not len(records) or records[0, 0] != INCLUSION or not _are_plausible(records):
            raise Broken(
                f"{self._path} is damaged, so the canaries' observations cannot be read; restore "
                "the file"
            )
        latest = {int(record[0]): record[1:] for record in records}
        rounds = np.array(sorted(round for round in latest if round > 0), dtype=np.int64)
        table = np.array([latest[round] for round in rounds]).reshape(len(rounds), self._size - 1)
        final, ended = latest.get(FINAL, np.zeros(1)), bool(records[-1, 0] == FINAL)
        return CanaryRecord(
            inclusion=latest[INCLUSION][1:] > 0.5,
            dimension=int(latest[INCLUSION][0]),
            rounds=rounds,
            lengths=table[:, 0],
            products=table[:, 1:],
            final=final[1:] / final[0] if ended and final[0] else None,
            ended=ended,
        )

    def _records(self) -> NDArray[np.float64]:
        """Returns all complete records `[n, 2 + K]`; n is 0 without a file."""
        if not self._path.is_file():
            return np.empty((0, self._size))
        content = regular.read_bytes(self._path)
        untorn = len(content) // (8 * self._size) * (8 * self._size)
        return np.frombuffer(content[:untorn], dtype=np.float64).reshape(-1, self._size)


def _record(round: int, numbers: NDArray[np.float64]) -> bytes:
    return np.concatenate([[float(round)], numbers]).tobytes()


def _are_plausible(records: NDArray[np.float64]) -> bool:
    """Whether all numbers are in float32's range, and all records but the first have a valid round.

    A valid round is an integer from `FINAL` (-1) to below 2^53.
    """
    rounds, largest = records[1:, 0], np.finfo(np.float32).max
    are_rounds = (rounds == np.round(rounds)) & (rounds >= FINAL) & (rounds < 2**53)
    return bool((np.abs(records) <= largest).all() and are_rounds.all())
