"""Log files of a run with one JSON object per line, and stored releases.

Logs can be read while the run is in progress. Lines are appended durably, one for each round with
an entry. A crash may leave the last line incomplete: readers ignore an incomplete line, and a
resume removes it.

`ExclusionLog` is the public list of clients that were proved Byzantine in a secure sum, and are
excluded from later ones. It states the round and exchange in which a client deviated, and how. The
list is computed only from messages of Byzantine clients: honest clients' data, noise and sampling
affect no line. A line reveals that a Byzantine client was sampled in that round, which the client
could also reveal itself. (If there are more Byzantine clients than assumed, an honest client may be
excluded.) The proofs contain lists of participants, and are stored under `private/`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from accounting import durable, regular
from accounting.documents import from_json
from accounting.ledger import Charge
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Broken
from privfed.core.text import dump
from privfed.secure.summation import Culprit, Reason
from privfed.store.folders import write_private
from privfed.store.tensorfile import CPU, checked_facts, misfits_are_broken, under, unpack, write

Value = TypeVar("Value")


@dataclass(frozen=True)
class RoundLog:
    """A log file at `path`: each line is a JSON object with a "round". It may not exist yet."""

    path: Path

    def append(self, line: Mapping[str, Any]) -> None:
        """Appends `line` durably."""
        durable.append(self.path, (dump(line) + "\n").encode())

    def by_round(self, read: Callable[[dict[str, Any]], Value]) -> dict[int, Value]:
        """Returns the result of `lines_by_round` for the lines of the file."""
        return lines_by_round(self.texts(), read)

    def texts(self) -> list[str]:
        """Returns the lines as text; empty without a file."""
        if not self.path.exists():
            return []
        return regular.read_text(self.path, errors="replace").splitlines()

    def rewrite(self, texts: Iterable[str]) -> None:
        """Replaces all lines of the log by `texts`, atomically; does nothing if no file exists."""
        if self.path.exists():
            durable.write_atomically(self.path, "".join(f"{t}\n" for t in texts).encode())


def lines_by_round(
    texts: Iterable[str], read: Callable[[dict[str, Any]], Value]
) -> dict[int, Value]:
    """Returns `read(line)` for the last readable line of each round, by round.

    Args:
      texts: lines of a log.
      read: a function of a line's JSON object. A line for which it raises `ValueError`, `KeyError`,
        `TypeError` or `OverflowError` is unreadable.
    """
    values: dict[int, Value] = {}
    for text in texts:
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
            line = from_json(text)
            values[int(line["round"])] = read(line)
    return values


class MetricsLog(RoundLog):
    """The file `metrics.jsonl`: the measures of each evaluated round."""

    def cut(self, after: int) -> None:
        """Removes the lines of all rounds later than `after`, and unreadable lines."""
        self.rewrite(text for text in self.texts() if _is_until(text, after))

    def losses(self) -> dict[int, float]:
        """Returns the loss on public examples by round; NaN for a loss that was not finite.

        Rounds without a loss are left out.
        """
        return self.by_round(lambda line: math.nan if line["loss"] is None else float(line["loss"]))


class AbortLog(RoundLog):
    """The file `aborts.jsonl`: the rounds whose secure sum aborted, with reasons."""

    def note(self, round: int, reason: str) -> None:
        """Records that the secure sum of `round` aborted, and the `reason`."""
        self.append({"round": round, "reason": reason})

    def reasons(self) -> dict[int, str]:
        """Returns the reason of each aborted round, by round."""
        return self.by_round(lambda line: str(line["reason"]))

    def mend(self) -> None:
        """Removes all lines except the last readable one of each round.

        A half-written last line would corrupt the next one.
        """
        reasons = self.reasons().items()
        self.rewrite(dump({"round": round, "reason": reason}) for round, reason in reasons)


class RanksLog(RoundLog):
    """The file `report/simulation_only_ranks.jsonl`: ranks of clients' rows, by outlyingness.

    A round that is repeated after a crash has two lines; `lines` returns the later one.
    """

    def mend(self) -> None:
        """Removes unreadable lines; an incomplete last one would corrupt the next line."""
        self.rewrite(text for text in self.texts() if _is_until(text, math.inf))

    def lines(self, until: int) -> list[dict[str, Any]]:
        """Returns the last readable line of each round up to and including `until`, by round."""
        by_round = self.by_round(lambda line: line)
        return [line for round, line in sorted(by_round.items()) if round <= until]


def _is_until(text: str, last: float) -> bool:
    """Whether `text` is a readable line of a round up to and including `last`."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        return bool(from_json(text)["round"] <= last)
    return False


_MOST = 2**63 - 1
"""Largest valid number in a line of `excluded.jsonl`, since arrays hold clients as int64."""


@dataclass(frozen=True)
class ExclusionLog:
    """The list of clients that were proved Byzantine in secure sums ("culprits"), with proofs.

    Attributes:
      path: the file `excluded.jsonl`, with one line per culprit.
      proofs: the folder with the proofs.
    """

    path: Path
    proofs: Path

    def before(self, round: int) -> frozenset[int]:
        """Returns the clients that deviated in an earlier round, and are excluded from `round`.

        A line about `round` itself, from before a crash, excludes no client when the round is
        repeated.
        """
        return frozenset(each.client for each in self.culprits() if each.round < round)

    def note(self, culprit: Culprit) -> None:
        """Adds a culprit to the list durably, after storing its proof, if it has one.

        A client that is on the list is not added a second time.
        """
        if any(each.client == culprit.client for each in self.culprits()):
            return
        if culprit.proof:
            durable.make_folder(self.proofs.parent)
            self.proofs.parent.chmod(0o700)
            write_private(self.proofs, {self._proof(culprit).name: culprit.proof})
        RoundLog(self.path).append(
            {
                "round": culprit.round,
                "exchange": culprit.exchange,
                "client": culprit.client,
                "reason": culprit.reason,
                "complaints": culprit.complaints,
            }
        )

    def culprits(self) -> tuple[Culprit, ...]:
        """Returns all culprits on the list, without their proofs; ignores unreadable lines."""
        return tuple(culprit for _, culprit in self._lines())

    def mend(self) -> None:
        """Removes unreadable lines; an incomplete last one would corrupt the next line."""
        RoundLog(self.path).rewrite(text for text, _ in self._lines())

    def proved(self, round: int, exchange: int) -> tuple[Culprit, ...]:
        """Returns the culprits of one sum that have a proof, with their proofs."""
        stated = [
            each for each in self.culprits() if (each.round, each.exchange) == (round, exchange)
        ]
        return tuple(
            replace(each, proof=regular.read_bytes(self._proof(each)))
            for each in stated
            if self._proof(each).exists()
        )

    def _proof(self, culprit: Culprit) -> Path:
        """Returns the path of the proof against a culprit."""
        return self.proofs / f"{culprit.round:06d}-{culprit.exchange}-{culprit.client}.proof"

    def _lines(self) -> Iterator[tuple[str, Culprit]]:
        for text in RoundLog(self.path).texts():
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                yield text, _culprit(from_json(text))


def _culprit(line: dict[str, object]) -> Culprit:
    """Returns the culprit that a line states.

    Raises `ValueError` for an invalid number or reason, and `KeyError` for a missing entry.
    """
    client, round, exchange, complaints = (
        int(str(line[name])) for name in ("client", "round", "exchange", "complaints")
    )
    in_range = all(0 <= number <= _MOST for number in (client, round, exchange, complaints))
    for reason in get_args(Reason):
        if in_range and line["reason"] == reason:
            return Culprit(client, round, exchange, reason, complaints=complaints)
    raise ValueError("the line names no culprit")


@dataclass(frozen=True)
class StoredRelease:
    """The stored releases of one charged round.

    Attributes:
      released: the released tensors, one for each exchange (numbered sum) of the round so far.
      mechanism: the mechanism's public state after these releases, by name.
      charge: hash of the round's charge in the ledger.
    """

    released: list[Tensor]
    mechanism: dict[str, Tensor]
    charge: str


@dataclass(frozen=True)
class Releases:
    """The folder with the releases of rounds since the last checkpoint.

    It has one file `NNNNNN.safetensors` for each round with a release, named by the round's number.
    """

    folder: Path

    def write(self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]) -> None:
        """Stores a charged round's releases so far durably, before any is used or published.

        Args:
          charge: the round's charge.
          released: the released tensors, in the order of the round's exchanges.
          state: the mechanism's public state after them.
        """
        tensors = {f"released/{n}": tensor for n, tensor in enumerate(released)}
        tensors |= {f"mechanism/{name}": tensor for name, tensor in state.items()}
        about = {"round": charge.round, "charge": charge.hash, "exchanges": len(released)}
        write(self.path_of(charge.round), tensors, about)

    def read(self, round: int, device: torch.device | str = CPU) -> StoredRelease | None:
        """Returns the releases of `round`, with tensors on `device`; None if none are stored.

        Raises `Broken` for a damaged file.
        """
        path = self.path_of(round)
        if not path.exists():
            return None
        try:
            tensors, about = unpack(path, device)
        except Broken:
            if path.exists():
                raise
            return None  # a later checkpoint, which contains it, has just removed it
        with misfits_are_broken(path):
            count = int(about["exchanges"])
            released = [tensors[f"released/{n}"] for n in range(count)]
            return StoredRelease(released, under(tensors, "mechanism/"), str(about["charge"]))

    def charge_of(self, round: int) -> str | None:
        """Returns the hash of the charge to which `round`'s release belongs, read without torch.

        None if the file is missing: a later checkpoint, which contains the release, may just have
        removed the file. Raises `Broken` for a damaged file.
        """
        path = self.path_of(round)
        try:
            with misfits_are_broken(path):
                return str(checked_facts(path)["charge"])
        except Broken:
            if path.exists():
                raise
            return None

    def rounds(self) -> list[int]:
        """Returns the rounds with stored releases, in ascending order."""
        stems = (path.stem for path in self.folder.glob("*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def drop(self, until: int) -> None:
        """Deletes the files of all rounds up to and including `until`.

        The caller has stored a checkpoint that includes these rounds.
        """
        for round in self.rounds():
            if round <= until:
                self.path_of(round).unlink()
        durable.sync_folder(self.folder)

    def path_of(self, round: int) -> Path:
        """Returns the path of the file with the releases of `round`."""
        return self.folder / f"{round:06d}.safetensors"
