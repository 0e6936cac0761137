"""Reads each file of a run at most once, for audits, reports, lists and comparisons.

No part of the configuration is built, and nothing under private/ is read.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json, from_toml
from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.config.config import digest
from privfed.core.errors import Broken, public_text, unreadable
from privfed.core.text import with_numbers
from privfed.secure.summation import Culprit
from privfed.store.folders import is_held
from privfed.store.round_logs import lines_by_round
from privfed.store.run_directory import RunDirectory


class RunRecord:
    """The contents of a run directory's files, each read at the first use of its attribute.

    For a run in progress the ledger must be read last, so that it has the charges of everything in
    the other files. Reading an attribute raises `Broken` for an invalid file, but skips unreadable
    lines of a log; it raises `Refused` for a file that this process may not read, and
    `LedgerBroken` (an `AccountingError`) for a ledger whose hash chain does not hold.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.path = directory.path

    @classmethod
    def open(cls, run: Path | RunDirectory | RunRecord) -> RunRecord:
        """Returns the record of a run, without reading its files; a record is returned unchanged.

        Raises `Refused` or `Broken` as `RunDirectory.open` does.
        """
        return run if isinstance(run, RunRecord) else cls(RunDirectory.open(run))

    @staticmethod
    def path_of(run: Path | RunDirectory | RunRecord) -> Path:
        """Returns the path of a run."""
        return run if isinstance(run, Path) else run.path

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Reads config.toml, summary, metrics, culprits, ledger; returns the record of the run.

        Raises:
          Broken: if a file cannot be read, or config.toml is not the one that the ledger states.
          Refused: if there is no run at `path`, or the operating system cannot read a file.
        """
        record = cls.open(path)
        try:
            _ = record.locked, record.keys, record.summary, record.evaluated, record.culprits
            stated = record.terms.get("config")
        except AccountingError as error:
            raise Broken(public_text(error)) from None
        if record.opened_ledger and stated != record.digest:
            raise Broken(
                "config.toml is not the configuration for which the ledger was opened; restore "
                "config.toml"
            )
        return record

    @cached_property
    def locked(self) -> bool:
        """Whether a process holds the lock of the run directory."""
        return is_held(self.path)

    @cached_property
    def keys(self) -> Mapping[str, Any]:
        """The content of config.toml, as tables by section."""
        path = self.directory.config.path
        with _readable(path):
            return from_toml(regular.read_text(path))

    @cached_property
    def digest(self) -> str:
        """The digest of config.toml, to be compared with the one in the ledger's first line."""
        keys, path = self.keys, self.directory.config.path
        try:
            return digest(keys)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise unreadable(path, error) from None

    @cached_property
    def companions(self) -> Mapping[str, str]:
        """SHA-256 digests, by file name, of the files that never change once a ledger exists."""
        return self.directory.companions()

    @cached_property
    def checkpoint_head(self) -> bytes | None:
        """The ledger's head in the checkpoint; None if there is no checkpoint."""
        checkpoint = self.directory.checkpoint
        return checkpoint.head() if checkpoint.exists() else None

    @cached_property
    def releases(self) -> Mapping[int, str]:
        """The hash of the charge to which each stored release belongs, by round."""
        releases = self.directory.releases
        cited = {round: releases.charge_of(round) for round in releases.rounds()}
        return {round: charge for round, charge in cited.items() if charge}

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The content of report/summary.json; empty if there is none."""
        return _object_at(self.directory.summary)

    @cached_property
    def evaluated(self) -> Mapping[int, Mapping[str, Any]]:
        """The lines of metrics.jsonl by round; unreadable lines are left out."""
        texts = self._metrics.decode(errors="replace").splitlines()
        return lines_by_round(texts, _object)

    @cached_property
    def last_metrics(self) -> Mapping[str, Any] | None:
        """The JSON object in the last complete line of metrics.jsonl; None if there is none.

        Bytes after the last newline are ignored: they are from a crash, and a resume writes that
        line again.
        """
        with _readable(self.directory.metrics.path):
            *lines, _ = self._metrics.decode().split("\n")
            return _object(from_json(lines[-1])) if lines else None

    @property
    def claims(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Yields the files that state the run's ε, each as path and content.

        These are the summary, and the last line of metrics.jsonl, if they exist.
        """
        if self.directory.summary.exists():
            yield self.directory.summary, self.summary
        if self.last_metrics is not None:
            yield self.directory.metrics.path, self.last_metrics

    @cached_property
    def aborts(self) -> Mapping[int, str]:
        """The reason of each aborted secure sum, by round."""
        return self.directory.aborts.reasons()

    @cached_property
    def culprits(self) -> Sequence[Culprit]:
        """The parties proved Byzantine in secure sums."""
        return self.directory.exclusions.culprits()

    @cached_property
    def attackers(self) -> Mapping[str, Any]:
        """The content of report/attackers.json, on the attackers of a simulation; empty if none."""
        return _object_at(self.path / "report" / "attackers.json")

    @cached_property
    def clients(self) -> Sequence[Mapping[str, str]]:
        """The lines of report/simulation_only_clients.csv, by column; empty without the file.

        Each line has the evidence against one client of a simulation.
        """
        path = self.directory.clients
        if not path.exists():
            return []
        return list(csv.DictReader(regular.read_text(path, errors="replace").splitlines()))

    @cached_property
    def ledger(self) -> Ledger:
        """The run's ledger.

        Raises `LedgerBroken` if the hash chain does not hold, and `OSError` if the file cannot be
        read.
        """
        return Ledger.load(self.directory.ledger)

    @cached_property
    def opened_ledger(self) -> Ledger | None:
        """The run's ledger; None if the run had not begun, so that nothing was released.

        Raises:
          Broken: if the ledger is missing although files exist that are written after it, or cannot
            be read.
          LedgerBroken: if the ledger's hash chain does not hold.
        """
        if not self.directory.ledger.exists():
            if self.directory.began():
                raise Broken(
                    "the directory has a model or metrics, but ledger.jsonl is missing; restore "
                    "the ledger"
                )
            return None
        with _readable(self.directory.ledger):
            return self.ledger if self.ledger.opened else None

    @property
    def terms(self) -> Mapping[str, Any]:
        """The run's terms (δ, unit, …) in the ledger's first line; empty if there is none."""
        return self.opened_ledger.terms if self.opened_ledger else {}

    @property
    def charges(self) -> int:
        """The number of charges; 0 if the run had not begun."""
        return len(self.opened_ledger.charges) if self.opened_ledger else 0

    @property
    def head(self) -> str | None:
        """The ledger's head, in hexadecimal digits; None if the run had not begun."""
        return self.opened_ledger.head().hex() if self.opened_ledger else None

    @property
    def summarised(self) -> bool:
        """Whether there is a summary, and it describes the ledger as it is now.

        Head, number of charges, δ and accountant are compared.
        """
        terms, summary = self.terms, self.summary
        return (
            bool(summary)
            and summary.get("ledger_head") == self.head
            and summary.get("charges") == self.charges
            and all(summary.get(key) == terms.get(key) for key in ("delta", "accountant"))
        )

    def setting(self, section: str, key: str) -> Any:
        """Returns the value of `key` in [section] of config.toml; None if it is not set."""
        table = self.keys.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @cached_property
    def _metrics(self) -> bytes:
        """The content of metrics.jsonl; empty if there is none."""
        path = self.directory.metrics.path
        with _readable(path):
            return regular.read_bytes(path) if path.exists() else b""


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Returns a context in which failures to read `path` become `Refused` or `Broken`.

    Converted by `unreadable` are `OSError`, `ValueError` and `TypeError`: to `Refused` if the
    operating system cannot read an existing file, otherwise to `Broken`.
    """
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(path, error) from None


def _object_at(path: Path) -> Mapping[str, Any]:
    """Returns the JSON object in `path`; empty without a file. Raises `Broken` if invalid."""
    with _readable(path):
        return _object(from_json(regular.read_text(path))) if path.exists() else {}


def _object(value: Any) -> dict[str, Any]:
    """Returns the JSON object `value`. Raises `TypeError` for any other value."""
    if not isinstance(value, dict):
        raise TypeError("the content is not a JSON object")
    return dict(with_numbers(value))
