"""Who is left out of a run's secure sums, since they were proved to lie in one: a public list.

The list says in which round and exchange a client lied, and how. It follows from what liars sent
alone: honest clients' data, noise and coins move no line of it. It does say that a liar was drawn
in that round, which it could say itself. (With more liars than are counted on, complaints may name
an honest client.) The proofs hold rosters, and lie under `private/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from accounting import durable
from accounting.documents import from_json
from privfed.secure.culprit import Culprit, Reason
from privfed.store.folders import write_private
from privfed.store.round_logs import RoundLog


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
            with contextlib.suppress(ValueError, KeyError, TypeError):
                yield text, _culprit(from_json(text))


def _culprit(line: dict[str, object]) -> Culprit:
    """The culprit of a line. Raises `ValueError` for another reason than there are."""
    client, round, exchange, complaints = (
        int(str(line[name])) for name in ("client", "round", "exchange", "complaints")
    )
    for reason in get_args(Reason):
        if line["reason"] == reason:
            return Culprit(client, round, exchange, reason, complaints=complaints)
    raise ValueError(f"no such reason: {line['reason']}")
