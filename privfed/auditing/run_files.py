"""What the files beside a run's ledger cite of it and claim about it, read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json
from privfed.errors import unreadable
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class RunFiles:
    """What the files of a run directory say, but for its ledger.

    `config` is the digest of the configuration, `companions` holds those of the files that never
    change, by name. `head` is the ledger's head that the checkpoint carries (None: there is no
    checkpoint), and `releases` the hash of the charge that each round's release cites. `claims`
    are the summary and the last line of the metrics, where they are there, each with its path.
    """

    config: str
    companions: dict[str, str]
    head: bytes | None
    releases: dict[int, str]
    claims: list[tuple[Path, dict[str, Any]]]


def read_run_files(directory: RunDirectory) -> RunFiles:
    """Read what the files of `directory` say. Raises `Broken` for one that cannot be read."""
    cited = {round: directory.releases.charge_of(round) for round in directory.releases.rounds()}
    return RunFiles(
        claims=_claims(directory),
        config=directory.config.digest(),
        companions=directory.companions(),
        head=directory.checkpoint.head() if directory.checkpoint.exists() else None,
        releases={round: charge for round, charge in cited.items() if charge},
    )


def _claims(directory: RunDirectory) -> list[tuple[Path, dict[str, Any]]]:
    claims, metrics = [], directory.metrics.path
    try:
        if directory.summary.exists():
            text = regular.read_text(directory.summary)
            claims.append((directory.summary, _table(text)))
        if metrics.exists():
            # What follows the last newline was torn by a crash, and will be written again.
            *lines, _ = regular.read_text(metrics).split("\n")
            claims += [(metrics, _table(line)) for line in lines[-1:]]
    except (OSError, ValueError, TypeError) as error:
        raise unreadable("the summary or the metrics", error) from None
    return claims


def _table(text: str) -> dict[str, Any]:
    """The JSON object that `text` is. Raises `ValueError`, and `TypeError` for anything else."""
    table = from_json(text)
    if not isinstance(table, dict):
        raise TypeError("it is no object")
    return table
