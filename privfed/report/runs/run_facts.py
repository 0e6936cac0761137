"""What the files of a run state, read without building a part, and nothing under private/."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json, from_toml
from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.core.errors import Broken, public_text, unreadable
from privfed.core.text import with_numbers
from privfed.store.folders import is_held
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class RunFacts:
    """A run directory as its files state it.

    `config` is the text of config.toml as tables, `ledger` None where nothing was begun, `summary`
    empty where there is none, `evaluated` the lines of metrics.jsonl by round, and `excluded` how
    many parties were proved to lie in secure sums. `held`: a process is at work on it.
    """

    path: Path
    config: Mapping[str, Any]
    ledger: Ledger | None
    summary: Mapping[str, Any]
    evaluated: Mapping[int, Mapping[str, Any]]
    held: bool
    excluded: int = 0

    @property
    def terms(self) -> Mapping[str, Any]:
        """What the ledger's first line states; nothing where there is none."""
        return self.ledger.terms if self.ledger else {}

    @property
    def charges(self) -> int:
        """How many rounds were charged."""
        return len(self.ledger.charges) if self.ledger else 0

    @property
    def head(self) -> str | None:
        """The ledger's head."""
        return self.ledger.head().hex() if self.ledger else None

    @property
    def summarised(self) -> bool:
        """Whether the summary is about the ledger as it stands, and about the same promise."""
        terms, summary = self.terms, self.summary
        return (
            bool(summary)
            and summary.get("ledger_head") == self.head
            and summary.get("charges") == self.charges
            and all(summary.get(key) == terms.get(key) for key in ("delta", "accountant"))
        )

    def setting(self, section: str, key: str) -> Any:
        """What config.toml states; None where it is silent."""
        table = self.config.get(section)
        return table.get(key) if isinstance(table, Mapping) else None


def read_facts(path: Path) -> RunFacts:
    """What the files of the run at `path` state.

    Raises `Broken` where one of them cannot be read, or contradicts the ledger, and `Refused` for a
    path that is no run.
    """
    directory = RunDirectory.open(path)
    held = is_held(path)
    try:
        config = from_toml(regular.read_text(directory.config.path))
        summary = _summary(directory.summary)
        evaluated = directory.metrics.by_round(_line)
        excluded = len(directory.exclusions.culprits())
        ledger = _ledger(directory)  # last: of a run that goes on, it covers what the others state
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(path, error) from None
    except AccountingError as error:
        raise Broken(public_text(error)) from None
    if ledger and ledger.terms.get("config") != directory.config.digest():
        raise Broken("config.toml is not the configuration that the ledger was opened for")
    return RunFacts(path, config, ledger, summary, evaluated, held, excluded)


def number_in(facts: Mapping[str, Any], key: str) -> float | None:
    """The finite number that stands under `key`; None for anything else."""
    value = _number(facts.get(key))
    return value if value is not None and math.isfinite(value) else None


def epsilon_in(facts: Mapping[str, Any]) -> float | None:
    """The ε that a line of a run's files states, which may be infinite; None for no number."""
    value = _number(facts.get("epsilon"))
    return None if value is None or math.isnan(value) or value < 0 else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


def _ledger(directory: RunDirectory) -> Ledger | None:
    """The run's ledger; None where nothing was begun."""
    if not directory.ledger.exists():
        if directory.began():
            raise Broken("it has a model or measures, but its ledger.jsonl is missing")
        return None
    ledger = Ledger.load(directory.ledger)
    return ledger if ledger.opened else None


def _summary(path: Path) -> Mapping[str, Any]:
    return _line(from_json(regular.read_text(path))) if path.exists() else {}


def _line(value: Any) -> dict[str, Any]:
    """The JSON object that `value` is. Raises `TypeError` for anything else."""
    if not isinstance(value, dict):
        raise TypeError("it is no object")
    return dict(with_numbers(value))
