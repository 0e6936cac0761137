"""Logs of a run, a JSON object per line, that readers may follow while it goes on.

Lines are appended durably, one for each round that has something to say. A crash may tear the last
one: readers leave it out, and a resume removes it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accounting import durable, regular
from accounting.documents import from_json
from privfed.json_text import dump

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
        values: dict[int, Value] = {}
        for text in self.texts():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                line = from_json(text)
                values[int(line["round"])] = read(line)
        return values

    def texts(self) -> list[str]:
        """The lines as they are written; none where there is no file."""
        if not self.path.exists():
            return []
        return regular.read_text(self.path, errors="replace").splitlines()

    def rewrite(self, texts: Iterable[str]) -> None:
        """Replace all lines by `texts`, where there is a file."""
        if self.path.exists():
            durable.write_atomically(self.path, "".join(f"{t}\n" for t in texts).encode())


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
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return bool(from_json(text)["round"] <= last)
    return False
