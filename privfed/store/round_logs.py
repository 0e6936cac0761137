"""Logs of a run, a JSON object per line, that readers may follow while it goes on.

Lines are appended durably, one for each round that has something to say. A crash may tear the last
one: readers leave it out, and a resume removes it.

Who is left out of a run's secure sums, since they were proved to lie in one: a public list.

The list says in which round and exchange a client lied, and how. It follows from what liars sent
alone: honest clients' data, noise and coins move no line of it. It does say that a liar was drawn
in that round, which it could say itself. (With more liars than are counted on, complaints may name
an honest client.) The proofs hold rosters, and lie under `private/`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    """The file of JSON lines at `path`, each with a "round"; it may not exist yet."""

    path: Path

    def append(self, line: Mapping[str, Any]) -> None:
        """Add `line`; it is durable when this returns."""
        durable.append(self.path, (dump(line) + "\n").encode())

    def by_round(self, read: Callable[[dict[str, Any]], Value]) -> dict[int, Value]:
        """What `read` takes out of each line, by its round; a torn line is left out."""
        return lines_by_round(self.texts(), read)

    def texts(self) -> list[str]:
        """The lines as they are written; none where there is no file."""
        if not self.path.exists():
            return []
        return regular.read_text(self.path, errors="replace").splitlines()

    def rewrite(self, texts: Iterable[str]) -> None:
        """Replace all lines by `texts`, where there is a file."""
        if self.path.exists():
            durable.write_atomically(self.path, "".join(f"{t}\n" for t in texts).encode())


def lines_by_round(
    texts: Iterable[str], read: Callable[[dict[str, Any]], Value]
) -> dict[int, Value]:
    """What `read` takes out of each line of a log, by its round; a torn line is left out."""
    values: dict[int, Value] = {}
    for text in texts:
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
            line = from_json(text)
            values[int(line["round"])] = read(line)
    return values


class MetricsLog(RoundLog):
    """The file `metrics.jsonl`: what each evaluated round measured."""

    def cut(self, after: int) -> None:
        """Remove the lines of rounds after `after` (and a torn one): a resume writes them again."""
        self.rewrite(text for text in self.texts() if _is_until(text, after))

    def losses(self) -> dict[int, float]:
        """The loss at each round that was evaluated, on public examples."""
        return self.by_round(lambda line: math.nan if line["loss"] is None else float(line["loss"]))


class AbortLog(RoundLog):
    """The file `aborts.jsonl`: the rounds whose secure sum was aborted, for all to see."""

    def note(self, round: int, reason: str) -> None:
        """Add that the secure sum of `round` was aborted, and the `reason`."""
        self.append({"round": round, "reason": reason})

    def reasons(self) -> dict[int, str]:
        """The rounds that were aborted, and why."""
        return self.by_round(lambda line: str(line["reason"]))

    def mend(self) -> None:
        """Remove a torn last line, with which the next one would be lost."""
        reasons = self.reasons().items()
        self.rewrite(dump({"round": round, "reason": reason}) for round, reason in reasons)


class RanksLog(RoundLog):
    """The file `report/simulation_only_ranks.jsonl`: how rows stood to the aggregate of a round.

    A round that is played again after a crash has two lines, of which the later counts.
    """

    def mend(self) -> None:
        """Remove a torn last line, with which the next one would be lost."""
        self.rewrite(text for text in self.texts() if _is_until(text, math.inf))

    def lines(self, until: int) -> list[dict[str, Any]]:
        """One line of each round up to `until`."""
        by_round = self.by_round(lambda line: line)
        return [line for round, line in sorted(by_round.items()) if round <= until]


def _is_until(text: str, last: float) -> bool:
    """Whether `text` is a whole line, of a round up to `last`."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        return bool(from_json(text)["round"] <= last)
    return False


_MOST = 2**63 - 1
"""The largest number of a client, which arrays hold as int64."""


@dataclass(frozen=True)
class ExclusionLog:
    """The file `excluded.jsonl` at `path`, a line for each culprit, and the folder of `proofs`."""

    path: Path
    proofs: Path

    def before(self, round: int) -> frozenset[int]:
        """Who was named in a round before `round`: a round that is played again is as it was."""
        return frozenset(each.client for each in self.culprits() if each.round < round)

    def note(self, culprit: Culprit) -> None:
        """Add a culprit, durably, its proof first; whoever is on the list stays as it is there."""
        if any(each.client == culprit.client for each in self.culprits()):
            return
        if culprit.proof:
            durable.make_folder(self.proofs.parent)
            self.proofs.parent.chmod(0o700)
            name = f"{culprit.round:06d}-{culprit.exchange}-{culprit.client}.proof"
            write_private(self.proofs, {name: culprit.proof})
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
        """All on the list, without their proofs; a torn line is left out."""
        return tuple(culprit for _, culprit in self._lines())

    def mend(self) -> None:
        """Remove a torn last line, with which the next one would be lost."""
        RoundLog(self.path).rewrite(text for text, _ in self._lines())

    def _lines(self) -> Iterator[tuple[str, Culprit]]:
        for text in RoundLog(self.path).texts():
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                yield text, _culprit(from_json(text))


def _culprit(line: dict[str, object]) -> Culprit:
    """The culprit of a line. Raises `ValueError` for a number or a reason that none has."""
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
    """What one charged round released, exchange by exchange, and the hash of its charge."""

    released: list[Tensor]
    mechanism: dict[str, Tensor]
    charge: str


@dataclass(frozen=True)
class Releases:
    """The files `NNNNNN.safetensors` in `folder`, one for each round after the last checkpoint."""

    folder: Path

    def write(self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]) -> None:
        """Make the charged round's releases so far durable: before they are used or shown.

        `state` is the mechanism's public state after them.
        """
        tensors = {f"released/{n}": tensor for n, tensor in enumerate(released)}
        tensors |= {f"mechanism/{name}": tensor for name, tensor in state.items()}
        about = {"round": charge.round, "charge": charge.hash, "exchanges": len(released)}
        write(self.path_of(charge.round), tensors, about)

    def read(self, round: int, device: torch.device | str = CPU) -> StoredRelease | None:
        """What `round` released, None where nothing is kept of it. Raises `Broken`."""
        path = self.path_of(round)
        if not path.exists():
            return None
        try:
            tensors, about = unpack(path, device)
        except Broken:
            if path.exists():
                raise
            return None  # a later checkpoint took it up just now
        with misfits_are_broken(path):
            count = int(about["exchanges"])
            released = [tensors[f"released/{n}"] for n in range(count)]
            return StoredRelease(released, under(tensors, "mechanism/"), str(about["charge"]))

    def charge_of(self, round: int) -> str | None:
        """The hash of the charge that `round`'s release cites, read without torch.

        None where a later checkpoint has just taken the release up. Raises `Broken`.
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
        """The rounds whose releases are kept, in ascending order."""
        stems = (path.stem for path in self.folder.glob("*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def drop(self, until: int) -> None:
        """Remove the releases of all rounds up to `until`, which a durable checkpoint contains."""
        for round in self.rounds():
            if round <= until:
                self.path_of(round).unlink()
        durable.sync_folder(self.folder)

    def path_of(self, round: int) -> Path:
        """The file of what `round` released."""
        return self.folder / f"{round:06d}.safetensors"
