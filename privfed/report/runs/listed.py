"""Lists the runs in a folder, and groups of runs over the same population."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting.documents import Encoded
from privfed.core.errors import Refused, unreadable
from privfed.report.runs.run_row import RunRow, row_at

DEPTH = 3
"""Depth of folders that are searched: enough for the runs of a grid, from the grid's folder."""
_WORDS = {
    "unit": "unit",
    "relation": "adjacency relation",
    "delta": "δ",
    "against": "the party against whom it holds",
}
_MEANING = (*_WORDS,)
"""Terms that must be equal, in addition to the population, for one ε to cover several runs."""


@dataclass(frozen=True)
class SamePopulation(Encoded):
    """Two or more runs over the same population.

    Attributes:
      population: the name of the population.
      runs: paths of the runs.
      together: groups of these runs, as paths; `privfed audit` computes a joint ε of each group.
      obstacles: reasons why no single ε covers all runs; empty if one does.
    """

    population: str
    runs: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    obstacles: tuple[str, ...]


@dataclass(frozen=True)
class Listing(Encoded):
    """The list of the runs in `folder`, the most recently started one last."""

    folder: Path
    rows: tuple[RunRow, ...]
    same_population: tuple[SamePopulation, ...]


def list_runs(folder: Path) -> Listing:
    """Lists the runs in a folder.

    Args:
      folder: the folder that contains run directories, or a run directory itself.

    Raises:
      Refused: if there is no folder.
      Broken: if the folder cannot be read.
    """
    if not folder.is_dir():
        raise Refused(f"{folder} is not a folder; name a folder that contains run directories")
    rows = sorted(map(row_at, run_directories(folder)), key=lambda row: (row.began or "", row.run))
    return Listing(folder, tuple(rows), _same_population(rows))


def run_directories(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yields `folder` if it is a run directory, else those in it, up to `depth` folders below.

    Hidden folders, folders called private, and unreadable inner folders are not searched. At the
    default `depth`, raises `Refused` or `Broken`, as `unreadable` decides, if `folder` cannot be
    read.
    """
    try:
        if _is_run(folder):
            yield folder
            return
        if depth == 0:
            return
        inner = sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        if depth == DEPTH:
            raise unreadable(folder, error) from None
        return
    for name in inner:
        if not name.startswith(".") and name != "private":
            yield from run_directories(folder / name, depth - 1)


def _is_run(folder: Path) -> bool:
    """Whether `folder` has a ledger, or a configuration and a folder of releases."""
    config = (folder / "config.toml").is_file()
    return (folder / "ledger.jsonl").is_file() or (config and (folder / "releases").is_dir())


def _same_population(rows: Sequence[RunRow]) -> tuple[SamePopulation, ...]:
    """Returns the groups of two or more charged runs over one population."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        if row.population_digest and row.charges:
            groups.setdefault(row.population_digest, []).append(row)
    return tuple(_group(group) for group in groups.values() if len(group) > 1)


def _group(group: Sequence[RunRow]) -> SamePopulation:
    """Returns the `SamePopulation` of these runs, which are over one population."""
    once = {row.id: row for row in group if not row.guarantee}
    of_meaning: dict[tuple[object, ...], list[str]] = {}
    for row in once.values():
        meaning = tuple(getattr(row, key) for key in _MEANING)
        of_meaning.setdefault(meaning, []).append(row.run)
    together = tuple(tuple(runs) for runs in of_meaning.values() if len(runs) > 1)
    population, runs = str(group[0].population), tuple(row.run for row in group)
    return SamePopulation(population, runs, together, tuple(_obstacles(group)))


def _obstacles(group: Sequence[RunRow]) -> Iterator[str]:
    """Yields the reasons why no single ε covers all of these runs."""
    differ = [key for key in _MEANING if len({getattr(row, key) for row in group}) > 1]
    if differ:
        yield f"they differ in {', '.join(map(_WORDS.__getitem__, differ))}"
    of_id: dict[str, list[str]] = {}
    for row in group:
        of_id.setdefault(str(row.id), []).append(row.run)
        if row.guarantee:
            yield f"{row.run} has no guarantee"
    for runs in of_id.values():
        if len(runs) > 1:
            named = ", ".join(runs[:2]) + (f" and {len(runs) - 2} others" if runs[2:] else "")
            yield f"{named} are copies of one run"
