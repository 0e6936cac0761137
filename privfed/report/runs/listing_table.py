"""The console table of the runs in a folder, with one line per run on a wide screen, else two."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from accounting.statement import NOMINAL, at_delta
from privfed.core.errors import for_interface
from privfed.core.text import ceiling, duration, measure
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.report.runs.listed import DEPTH, Listing, SamePopulation
from privfed.report.runs.run_row import BROKEN, RunRow
from privfed.report.tables import counted, rows

NOTHING = "—"
_DIGEST = 64


def on_a_line(text: str) -> str:
    """Returns untrusted `text` with its line breaks and tabs escaped."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def rounds_cell(row: RunRow) -> str:
    """Formats the numbers of charged and of planned rounds of a run."""
    if row.state == BROKEN:
        return NOTHING
    return f"{row.charges} of {row.rounds if row.rounds is not None else '?'}"


def epsilon_cell(row: RunRow) -> str:
    """Formats the ε that a run spent; a dash if it is unknown."""
    return NOTHING if row.epsilon is None or row.state == BROKEN else ceiling(row.epsilon)


def nominal_mark(row: RunRow) -> str:
    """Returns the mark that is appended to the ε of a simulation; "" for other runs."""
    return (NOMINAL * row.nominal).strip()


def meaning_line(row: RunRow) -> str:
    """Returns a line with the terms of a run's ε; only ε with equal lines are comparable."""
    parts = [
        at_delta(row.delta, digits=10),
        f"for one {row.unit}",
        str(row.relation),
        f"{row.sampler} sampling",
        f"by {row.accountant}",
    ]
    parts += [f"against {party(row.against, row.trust)}"]
    parts += [f"nominal: {row.note}"] if row.nominal else []
    parts += [f"no guarantee: {row.guarantee}"] if row.guarantee else []
    parts += [f"not covered: the initial model ({row.uncovered})"] if row.uncovered else []
    return ", ".join(parts)


def party(against: str | None, trust: str | None) -> str:
    """Describes the adversary of an ε: `against`, or the one that the trust model implies."""
    if against:
        return PARTY_WORDS.get(against, against)
    if trust == "client":
        return "all parties, including the server"
    return "all but a trusted server"


def measure_cell(row: RunRow) -> str:
    """Formats the name and last value of the run's first metric; a dash if it is unknown."""
    if row.measure is None or row.value is None:
        return NOTHING
    return f"{row.measure} {measure(row.measure, row.value)}"


def constant_cell(row: RunRow) -> str:
    """Formats the baseline's metric (best constant prediction); "" if it is unknown."""
    if row.measure is None or row.constant is None:
        return ""
    return f"{measure(row.measure, row.constant)}"


def population_cell(row: RunRow) -> str:
    """Formats the population's name; a digest is shortened, and an unknown name is a dash."""
    name = row.population or NOTHING
    return f"{name[:8]}…" if len(name) == _DIGEST and name.isalnum() else name


def time_cells(row: RunRow) -> tuple[str, str]:
    """Formats the run's start in local time, or a dash, and its duration; "" if unknown."""
    if row.began is None:
        return NOTHING, ""
    began = datetime.fromisoformat(row.began).astimezone()
    this_year = began.year == datetime.now().astimezone().year
    took = "" if row.seconds is None else duration(row.seconds)
    return began.strftime("%m-%d %H:%M" if this_year else "%Y-%m-%d"), took


_WIDE = 140
"""Screen width from which each run fits on one line."""
_SHOWN = 4
"""Largest number of populations, and of runs of each, that are named; --json has all."""
_STYLES = {"running": "cyan", "broken": "red", "interrupted": "yellow"}
_HEADINGS = (
    ("run", "population"),
    ("state", "rounds"),
    ("ε", ""),
    ("measure", "baseline"),
    ("mechanism", ""),
    ("began", "took"),
)
Pair = tuple[str, str]


@dataclass(frozen=True)
class RunsTable:
    """The console output on the runs in a folder.

    It has a table of the runs, the terms of their ε, and notes on runs over one population.
    """

    listing: Listing

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if not self.listing.rows:
            yield Text(
                for_interface(
                    f"{self.listing.folder} has no run directory, down to {DEPTH} folders deep; "
                    "`privfed train --out FOLDER/NAME` creates one"
                )
            )
            return
        yield _table(self.listing, stacked=options.max_width < _WIDE)
        yield ""
        yield rows(_notes(self.listing))


def _table(listing: Listing, stacked: bool) -> Table:
    """Returns the table of all runs.

    Some columns come in pairs (`_HEADINGS`). If `stacked`, the two values of a pair are in one
    column, below each other.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for pair in _HEADINGS:
        for heading in ["\n".join(pair).rstrip()] if stacked else filter(None, pair):
            folds = heading.startswith(("run", "population", "state", "mechanism"))
            table.add_column(heading, overflow="fold", no_wrap=not folds)
    meanings = _meanings(listing)
    for row in listing.rows:
        number = meanings.get(meaning_line(row)) if _has_epsilon(row) else None
        pairs = _cells(row, listing.folder, f" [{number}]" if number else "")
        cells = [
            cell for pair in zip(pairs, _HEADINGS, strict=True) for cell in _cut(*pair, stacked)
        ]
        table.add_row(*map(Text, cells), style=_STYLES.get(row.state))
    return table


def _cut(cells: Pair, headings: Pair, stacked: bool) -> list[str]:
    """Returns the pair `cells` as table cells.

    It is one cell, of two lines, if `stacked`; one cell if the second heading is empty; else two.
    """
    first, second = map(on_a_line, cells)
    if stacked:
        return [f"{first}\n{second}".rstrip()]
    return [first, second] if headings[1] else [f"{first} {second}".rstrip()]


def _cells(row: RunRow, folder: Path, meaning: str) -> list[Pair]:
    """Returns the pairs of values under each of `_HEADINGS`; `meaning` is appended to the ε."""
    return [
        (_name(row.run, folder), population_cell(row)),
        (row.state, rounds_cell(row)),
        (epsilon_cell(row) + meaning, nominal_mark(row)),
        (measure_cell(row), constant_cell(row)),
        (row.mechanism or "—", ""),
        time_cells(row),
    ]


def _meanings(listing: Listing) -> dict[str, int]:
    """Returns a number, from 1, for each distinct `meaning_line` of the runs that have an ε."""
    lines = dict.fromkeys(meaning_line(row) for row in listing.rows if _has_epsilon(row))
    return {line: number for number, line in enumerate(lines, 1)}


def _has_epsilon(row: RunRow) -> bool:
    return row.epsilon is not None and row.state != BROKEN


def _name(run: str, folder: Path) -> str:
    """Returns the path of a run relative to the listed folder, or unchanged if both are equal."""
    inside = Path(run).relative_to(folder)
    return run if inside == Path() else str(inside)


def _notes(listing: Listing) -> dict[str, str]:
    """Returns notes below the table, as texts by label."""
    folder = listing.folder
    pairs = {f"ε [{number}]": on_a_line(line) for line, number in _meanings(listing).items()}
    for row in listing.rows:
        if row.state == BROKEN:
            pairs[on_a_line(_name(row.run, folder))] = on_a_line(f"broken: {row.reason}")
        elif row.note and not row.nominal:
            pairs[on_a_line(_name(row.run, folder))] = on_a_line(row.note)
    for row in filter(lambda row: row.excluded, listing.rows):
        pairs[f"{on_a_line(_name(row.run, folder))}: left out"] = on_a_line(_left_out(row))
    if groups := listing.same_population:
        lines = [on_a_line(line) for group in groups[:_SHOWN] for line in _group_lines(group)]
        hidden = len(groups) - _SHOWN
        more = [f"and {counted(hidden, 'population')} more, by --json"] if hidden > 0 else []
        pairs["same population"] = "\n".join([*lines, *more])
    pairs["times"] = (
        "from the times of files: a copy has other times, and pauses of a resumed run are included"
    )
    pairs["proof"] = "`privfed audit RUN` compares a run's files with its ledger"
    return pairs


def _left_out(row: RunRow) -> str:
    """Describes the parties proved to be Byzantine, and the guarantees that do not hold."""
    lost = f". {row.lost_claims}" if row.lost_claims else ""
    return f"{row.excluded} proved to be Byzantine in secure sums (excluded.jsonl){lost}"


def _group_lines(group: SamePopulation) -> Iterator[str]:
    """Yields commands that print the joint ε of groups of runs, and why no ε covers all runs."""
    if group.obstacles:
        yield f"{_named(group.runs)}: no single ε covers all, since {'; '.join(group.obstacles)}"
    for runs in group.together:
        rest = len(runs) - _SHOWN
        call = f"`privfed audit {shlex.join(runs[:_SHOWN])}`"
        call += f", with {rest} more runs," if rest > 0 else ""
        yield f"these runs compose: {call} prints their joint ε"


def _named(runs: Sequence[str]) -> str:
    """Returns the paths of the first runs, quoted for a shell, and the number of the others."""
    rest = len(runs) - _SHOWN
    return shlex.join(runs[:_SHOWN]) + (f" … and {rest} more" if rest > 0 else "")
