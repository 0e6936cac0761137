"""Runs all trials at full length, and writes the table of docs/reliability.md: `make
reliability`.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from trials.fuzz import Fault, fuzz
from trials.kills import EARLIER, KINDS, SIGNALS, survived, went_on_alone
from trials.lives import LIVES, goes_on, recorded, resumed, sample
from trials.soak import assert_flat, soaked
from trials.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "docs" / "reliability.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass
class Row:
    """One trial: its subject, its number of repetitions, and its faults, by their first words."""

    trial: str
    what: str
    times: int
    wrong: dict[str, int]
    seconds: float
    note: str = ""


def crashes(folder: Path, share: float) -> Iterator[Row]:
    """Yields each kind of run with every crash, or a fraction of them."""
    for number, (kind, overrides) in enumerate(LIVES.items()):
        began, wrong = time.perf_counter(), Counter[str]()
        life = recorded(folder / f"{number}", overrides)
        everything = life.crashes()
        tried = sample(everything, max(round(share * len(everything)), 1))
        for crash in tried:
            wrong.update(_wrong(partial(goes_on, life, crash)))
        note = f"{len(everything)} different crashes at {len(life.moments)} moments"
        yield _row("crash", kind, len(tried), wrong, began, note)


def crashes_of_resumes(folder: Path, share: float) -> Iterator[Row]:
    for number, kind in enumerate(("plain, secret", "SCAFFOLD's memory, seeded")):
        began, wrong, count = time.perf_counter(), Counter[str](), max(round(20 * share), 1)
        life, times = recorded(folder / f"again {number}", LIVES[kind]), 0
        for crash in sample(life.crashes(), count, seed=1):
            again = resumed(life, crash)
            for second in sample(again.crashes(), count):
                wrong.update(_wrong(partial(goes_on, again, second)))
                times += 1
        yield _row("crash of a resume", kind, times, wrong, began)


def kills(folder: Path, share: float) -> Iterator[Row]:
    for number, kind in enumerate(EARLIER):
        began, times = time.perf_counter(), max(round(200 * share), 1)
        (place := folder / f"kills {number}").mkdir()
        wrong = Counter(_wrong(partial(survived, place, EARLIER[kind], times)))
        yield _row("SIGKILL", kind, times, wrong, began)


def signalled(folder: Path, share: float) -> Iterator[Row]:
    for number, (name, kind) in enumerate(KINDS.items()):
        began, times = time.perf_counter(), max(round(20 * share), 1)
        (place := folder / f"signals {number}").mkdir()
        wrong = Counter(_wrong(partial(survived, place, kind, times, each=SIGNALS)))
        yield _row("five signals", name, times, wrong, began)


def rivals(folder: Path, share: float) -> Iterator[Row]:
    began, times = time.perf_counter(), max(round(60 * share), 3)
    wrong = Counter(_wrong(partial(went_on_alone, folder / "rivals", times)))
    yield _row("two at once", "one run folder", times, wrong, began)


def fuzzed(folder: Path, share: float) -> Iterator[Row]:
    for name, target in TARGETS.items():
        began, outcomes, wrong = time.perf_counter(), Counter[str](), Counter[str]()
        first, last = 0, max(round((500 if "run director" in name else 5000) * share), 1)
        while first < last:
            try:
                outcomes += fuzz(name, target, folder / f"fuzz {name}", range(first, last))
                first = last
            except Fault as fault:
                wrong[fault.cause[:100]] += 1
                first = fault.number + 1
        note = f"{outcomes['read']} read, {outcomes['refused']} refused"
        yield _row("spoiled files", name, last, wrong, began, note)


def soaks(folder: Path, share: float) -> Iterator[Row]:
    memory = ("client.objective=scaffold", "data.setting=cross_silo")
    for number, (what, kind) in enumerate({"plain": (), "SCAFFOLD's memory": memory}.items()):
        began, rounds = time.perf_counter(), max(round(10_000 * share), 90)
        growth = soaked(folder / f"soak {number}", rounds, *kind)
        wrong = Counter(_wrong(partial(assert_flat, growth)))
        note = (
            f"per round {growth.memory:.0f} bytes of memory, {growth.ledger:.0f} of ledger; "
            f"{growth.files} more descriptors"
        )
        yield _row("soak", f"{what}, rounds", rounds, wrong, began, note)


TRIALS: dict[str, Callable[[Path, float], Iterator[Row]]] = {
    "crashes": crashes,
    "resumes": crashes_of_resumes,
    "kills": kills,
    "signals": signalled,
    "rivals": rivals,
    "fuzz": fuzzed,
    "soak": soaks,
}


def _wrong(trial: Callable[[], object]) -> list[str]:
    try:
        trial()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"[:100]]
    return []


def _row(
    trial: str, what: str, times: int, wrong: Counter[str], began: float, note: str = ""
) -> Row:
    row = Row(trial, what, times, dict(wrong), round(time.perf_counter() - began, 1), note)
    click.echo(
        f"{trial:18} {what:30} {times:6} times, {sum(wrong.values())} wrong, {row.seconds} s"
    )
    return row


def page(results: dict[str, Any]) -> str:
    """Returns the table, as Markdown."""
    lines = [
        f"Measured until {results['day']}, {results['machine']}.",
        "",
        "| trial | case | times | went wrong | |",
        "|---|---|---:|---:|---|",
    ]
    for row in results["rows"]:
        wrong = sum(row["wrong"].values())
        lines.append(
            f"| {row['trial']} | {row['what']} | {row['times']:,} | {wrong} | {row['note']} |"
        )
    return "\n".join(lines)


@click.command()
@click.argument("trials", nargs=-1, type=click.Choice([*TRIALS]))
@click.option("--share", default=1.0, type=click.FloatRange(0.001), help="Of the full length.")
def run(trials: tuple[str, ...], share: float) -> None:
    """Run TRIALS (default: all), and write what came of them into docs/reliability.md."""
    torch.set_num_threads(1)
    began = json.loads(RESULTS.read_text("utf-8"))["rows"] if RESULTS.exists() else []
    rows = {(row["trial"], row["what"]): row for row in began}
    with tempfile.TemporaryDirectory() as folder:
        for name in trials or TRIALS:
            for row in TRIALS[name](Path(folder), share):
                rows[row.trial, row.what] = asdict(row)
                write(list(rows.values()))
    if any(row["wrong"] for row in rows.values()):
        raise SystemExit("something went wrong: see docs/reliability.json")


def write(rows: list[dict[str, object]]) -> None:
    """Writes the results so far into both files."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine = f"{os.cpu_count()} cores, {versions}"
    results = {"day": time.strftime("%Y-%m-%d"), "machine": machine, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{page(results)}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    run()
