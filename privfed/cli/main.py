"""The command line. Heavy imports wait until a command runs."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfed import __version__
from privfed.cli.attack import attack
from privfed.cli.budget import audit, calibrate
from privfed.cli.model import export, predict, quoted
from privfed.cli.program import CommandLine
from privfed.errors import Broken, Refused
from privfed.failures import (
    OUR_FAULT,
    STOPPED_AT_BUDGET,
    answer,
    answers_errors,
    ended,
    fail,
    never_quotes,
    quotes_on_request,
)
from privfed.json_text import dump
from privfed.store.folders import new_folder
from privfed.visible import visible_toml

if TYPE_CHECKING:
    from privfed.config.config import Config

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="privfed")
def main() -> None:
    """Private and robust federated learning, with an epsilon that can be proved."""


main.add_command(attack)
main.add_command(audit)
main.add_command(calibrate)
main.add_command(export)
main.add_command(predict)


@main.command()
@click.argument("run_file", metavar="[RUN.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option("--out", type=DIRECTORY, help="Where the run goes; default: a new folder in runs/.")
@click.option("--resume", type=DIRECTORY, help="Go on with the run in this folder.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share each cohort.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@quotes_on_request
def train(
    run_file: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Train within a privacy budget. Without a file: digits over 500 clients, epsilon 4."""
    if out and resume:
        raise Refused("--out and --resume exclude each other; --resume goes on in its own folder")
    path = resume or out or new_folder()
    if out:
        _refuse_taken(out)
    try:
        from accounting.errors import LedgerBroken
        from privfed.cli.console import console
        from privfed.config.reading import load, overridden, restated
        from privfed.ranks import RankLost, joined
        from privfed.report.outcome import outcome_table
        from privfed.report.progress import progress
        from privfed.run.resume import resume as resume_run
        from privfed.run.train import train as train_run
        from privfed.run.worker_rank import follow, refuse_ranks

        def change(stored: Config) -> Config:
            if run_file is None:
                return overridden(stored, overrides)
            return restated(stored, run_file, overrides)

        screen = console(as_json)
        config = None if resume else load(run_file, overrides)
        together = workers or (config.run.workers if config else 1)
        if config:
            refuse_ranks(config, together)
        with joined(together) as ranks:
            if ranks.rank:
                follow(ranks)
                return 0
            with progress(screen) as shown:
                if config is None:
                    assert resume is not None
                    outcome = resume_run(resume, change, [shown], ranks)
                else:
                    outcome = train_run(config, path, [shown], ranks)
    except (KeyboardInterrupt, OSError, RankLost) as error:
        return ended(error, _how_to_go_on(path))
    except (LedgerBroken, Broken) as error:
        claim: dict[str, Any] = {"epsilon": math.inf, "ledger_ok": False, "run": str(path)}
        return ended(error, problems=[str(error)], **claim)
    screen.print("", outcome_table(outcome), sep="\n")
    code = STOPPED_AT_BUDGET if outcome.stopped_at_budget else 0
    return answer(outcome.to_json(), code) if as_json else code


def _refuse_taken(out: Path) -> None:
    """Early, so that what is said of an interrupted run is said of this one."""
    if (out / "ledger.jsonl").exists():
        raise Refused(
            f"--out {out} holds another run; nothing was changed. Name a new directory, or use "
            f"--resume {shlex.quote(str(out))} to go on with it"
        )


def _how_to_go_on(path: Path) -> str:
    if (path / "ledger.jsonl").exists():
        command = f"privfed train --resume {shlex.quote(str(path))}"
        return f"what was released is kept{_standing(path)}. Go on with: {command}"
    return "nothing was released: the run had not begun"


def _standing(path: Path) -> str:
    """Where the ledger stands, by which a later cut is seen; nothing where it cannot be read."""
    from accounting.errors import AccountingError
    from accounting.ledger import Ledger

    try:
        ledger = Ledger.load(path / "ledger.jsonl")
    except (OSError, AccountingError):
        return ""
    return f", and the ledger's head is {ledger.head().hex()} at {len(ledger.charges)} charges"


@main.command()
@click.argument("run_file", metavar="[RUN.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--matrix", is_flag=True, help="What goes with what, other parts as configured.")
@quotes_on_request
def check(run_file: Path | None, overrides: tuple[str, ...], as_json: bool, matrix: bool) -> int:
    """Say what a run means before it runs, or every reason why it is refused. Writes nothing."""
    from privfed.cli.console import console
    from privfed.config.reading import load
    from privfed.report import plan as report
    from privfed.run.check import check as check_run

    if matrix:
        from privfed.config.reading import as_written
        from privfed.report.matrix import tables

        shown, cells = tables(as_written(run_file, overrides))
        if as_json:
            answer({"cells": cells})
        else:
            console(False).print(shown)
        return 0
    found = check_run(load(run_file, overrides))
    if as_json:
        answer(found.to_json())
    else:
        console(False).print(report.plan_table(found.plan, found.forecast, None))
    return 0


@main.command()
@click.argument("directory", metavar="RUN_DIR", type=DIRECTORY)
@click.option("--data", metavar="PATH", help="Other data of the same form: short for data.path.")
@click.option("--set", "overrides", multiple=True, metavar="data.key=value", help="Other data.")
@click.option(
    "--predictions", type=click.Path(dir_okay=False, path_type=Path), help="CSV to write."
)
@click.option(
    "--personalise",
    type=click.IntRange(1, 10_000),
    metavar="EPOCHS",
    help="Fine-tune on half of each client's examples, score on the other: a simulation.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quotes_on_request
def evaluate(
    directory: Path,
    data: str | None,
    overrides: tuple[str, ...],
    predictions: Path | None,
    personalise: int | None,
    as_json: bool,
) -> int:
    """Score a trained model: on the run's own test examples, or on another data source."""
    from privfed.cli.console import console
    from privfed.report.evaluation import evaluation_table, personal_table
    from privfed.trained.evaluate import evaluate as evaluate_run
    from privfed.trained.personalise import personalise as personalise_run

    if personalise is not None:
        if data is not None or overrides or predictions:
            raise Refused(
                "--personalise is about the run's own clients; leave out the other options"
            )
        tuned = personalise_run(directory, personalise)
        if as_json:
            answer(tuned.to_json())
        else:
            console(False).print(personal_table(tuned))
        return 0
    other = [*([f"data.path={quoted(data)}"] if data is not None else []), *overrides]
    found = evaluate_run(directory, other, predictions)
    if as_json:
        answer(found.to_json())
    else:
        console(False).print(evaluation_table(found, predictions))
    return 0


@main.command()
@click.argument("grid_file", metavar="GRID.toml", type=click.Path(path_type=Path))
@click.option("--out", type=DIRECTORY, help="Where results go; default: beside the grid file.")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes; default: the cores.")
@click.option("--retry", is_flag=True, help="Repeat cells that failed or were refused.")
@click.option("--dry-run", is_flag=True, help="Print the cells and the estimated time only.")
@click.option("--plot", is_flag=True, help="Redraw the figures from the table alone.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@never_quotes
def experiment(
    grid_file: Path,
    out: Path | None,
    jobs: int | None,
    retry: bool,
    dry_run: bool,
    plot: bool,
    as_json: bool,
) -> int:
    """Run a grid of many runs, each once, in parallel; table, summary and figures."""
    from privfed.cli.console import console
    from privfed.grid.drawing import draw_all
    from privfed.grid.engine import experiment as run_experiment
    from privfed.grid.grid import cells, estimate, load_grid
    from privfed.grid.planned_guarantee import outlook
    from privfed.grid.results import DONE, FAILED, Files
    from privfed.report.grid import (
        ExperimentProgress,
        cells_table,
        excluded_table,
        outcome_table,
        outlook_table,
    )

    grid, files = load_grid(grid_file), Files(grid_file, out or grid_file.parent)
    screen = console(as_json)
    processes = jobs or os.cpu_count() or 1
    if dry_run:
        found = cells(grid_file, grid)
        ahead = outlook(files, grid, found, retry)
        time = estimate(grid_file, found, grid, processes)
        screen.print(cells_table(found, grid, ahead.excluded), "", sep="\n")
        if ahead.excluded:
            screen.print(excluded_table(ahead.excluded))
        screen.print(outlook_table(ahead), time, sep="\n")
        if as_json:
            answer(ahead.to_json(found))
        return 0
    try:
        if not plot:
            with ExperimentProgress(screen, grid.keys) as shown:
                outcome = run_experiment(files, grid, processes, retry, shown)
            screen.print(outcome_table(outcome))
            told, failed = outcome.to_json(), outcome.counts[FAILED]
            if outcome.files != files:
                said = "nothing is tuned before all of it was tried; mend that, and go on (--retry)"
                return _without_cells(said, bool(failed), told)
            if not outcome.counts[DONE] and not failed:
                return _without_cells("no cell is done; the table says why", False, told)
        elif not grid.figure:
            screen.print(f"{grid_file} has no [[figure]] to draw")
        for path in draw_all(files, grid.figure, grid.axes, grid.columns):
            screen.print(f" drawn    {path}", highlight=False)
    except KeyboardInterrupt as error:
        return ended(error, "what is done is kept; the same command goes on")
    if plot:
        return 0
    if failed:
        said = f"{failed} cells failed; the table says why, and --retry repeats them"
        return fail(said, OUR_FAULT, "failed", **told)
    return answer(told) if as_json else 0


def _without_cells(said: str, failed: bool, told: Mapping[str, Any]) -> int:
    """Of an experiment that came to nothing: a bug somewhere, or cells that are refused."""
    if failed:
        return fail(said, OUR_FAULT, "failed", **told)
    return fail(said, Refused.exit_code, "refused", **told)


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of run files, for editors.")
@answers_errors
def list_parts(as_json: bool, schema: bool) -> int:
    """List every part by kind, with its one line."""
    from privfed.cli.console import console
    from privfed.config import catalog

    if schema:
        click.echo(dump(catalog.schema(), indent=2))
    elif as_json:
        answer(catalog.catalog())
    else:
        from privfed.report.catalog import catalog_table

        console(False).print(catalog_table(catalog.catalog()))
    return 0


@main.command()
@click.argument("sample", metavar="SAMPLE", type=click.Path(path_type=Path))
@click.option("--label", required=True, help="The column to predict.")
@click.option("--client", default="", help="The column that says whose a row is.")
@click.option("--path", help="Where the private table lies; default: the sample.")
@click.option("--delimiter", help="What divides cells; default: what seems to.")
@click.option("--encoding", help="Of the sample's text; default: the first common one that fits.")
@quotes_on_request
def declare(
    sample: Path,
    label: str,
    client: str,
    path: str | None,
    delimiter: str | None,
    encoding: str | None,
) -> int:
    """Write a run file for your table from a PUBLIC sample of it, to standard output."""
    from privfed.data.declaring.declare import declare as declare_table

    declared = declare_table(sample, label, client, path or str(sample), delimiter, encoding)
    click.echo(visible_toml(declared), nl=False)
    click.echo(
        "privfed: fill in data.clients and cohort.size, then: privfed check RUN.toml", err=True
    )
    return 0
