"""The command that runs a grid of many runs: `privfed experiment`."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import ANY_PATH, DIRECTORY, JSON_AT_THE_END, never_quotes, print_json
from privfed.core.errors import Refused
from privfed.core.failures import OUR_FAULT, report_error, report_failure

if TYPE_CHECKING:
    from rich.console import Console

    from privfed.grid.grid import Grid
    from privfed.grid.results import Files


TEMPLATES = {"field-guide": "field_guide.toml"}
"""Files of example grids in `privfed.grid`, by their names on the command line."""


def template(name: str) -> str:
    """Returns the example grid file `name` as TOML text. Raises `KeyError` for an unknown name."""
    return (files("privfed.grid") / TEMPLATES[name]).read_text(encoding="utf-8")


def _print_template(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Prints the example grid file `name` and ends the command; does nothing for None."""
    if name is not None:
        click.echo(template(name), nl=False)
        context.exit()


@click.command("experiment")
@click.argument("grid_file", metavar="GRID.toml", type=ANY_PATH)
@click.option("--out", type=DIRECTORY, help="Folder of results; default: next to the grid file.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Number of processes; default: the number of cores.",
)
@click.option("--retry", is_flag=True, help="Repeat cells that failed or were refused.")
@click.option("--dry-run", is_flag=True, help="Only print the cells and the estimated time.")
@click.option("--plot", is_flag=True, help="Only redraw the figures, from the tables.")
@click.option(
    "--template",
    type=click.Choice([*TEMPLATES]),
    is_eager=True,
    expose_value=False,
    callback=_print_template,
    help="Print an example grid file, and stop.",
)
@JSON_AT_THE_END
@never_quotes
def experiment_command(
    grid_file: Path,
    out: Path | None,
    jobs: int | None,
    retry: bool,
    dry_run: bool,
    plot: bool,
    as_json: bool,
) -> int:
    """Run a grid of runs in parallel, and write a table, a summary and figures.

    The same command resumes; runs that ended are not repeated.
    """
    from privfed.grid.load import load_grid
    from privfed.grid.results import Files
    from privfed.report.console import console

    grid, files = load_grid(grid_file), Files(grid_file, out or grid_file.parent)
    screen = console(as_json)
    processes = jobs or os.cpu_count() or 1
    if grid.tunes_privately:
        if plot or retry:
            raise Refused(
                "--plot or --retry is given, but with tune.private = true no figures are drawn and "
                "candidates are never repeated; leave the option out"
            )
        return _tune(screen, files, grid, processes, dry_run, as_json)
    if dry_run:
        return _look_ahead(screen, files, grid, processes, retry, as_json)
    try:
        if plot:
            return _redraw(screen, files, grid)
        return _run(screen, files, grid, processes, retry, as_json)
    except KeyboardInterrupt as error:
        return report_error(error, "finished cells are kept; the same command resumes")


def _tune(
    screen: Console, files: Files, grid: Grid, processes: int, dry_run: bool, as_json: bool
) -> int:
    """Tunes privately, or prints only the planned cost if `dry_run`; returns the exit code.

    The number of candidates that are tried is secret, and never shown.
    """
    from privfed.grid.private_tuning import tune
    from privfed.grid.tuning_proposal import propose
    from privfed.report.grid import proposal_table, tuned_table

    proposal = propose(files, grid)
    screen.print(proposal_table(proposal, processes))
    if dry_run:
        return print_json(proposal.to_json()) if as_json else 0
    try:
        tuned = tune(files, proposal, processes)
    except KeyboardInterrupt as error:
        return report_error(error, "the same command resumes with the same candidates")
    screen.print("", tuned_table(tuned), sep="\n")
    return print_json(tuned.to_json()) if as_json else 0


def _look_ahead(
    screen: Console, files: Files, grid: Grid, processes: int, retry: bool, as_json: bool
) -> int:
    """Prints the grid's planned cells, their joint guarantee, and the estimated time; returns 0."""
    from privfed.grid.cells import cells
    from privfed.grid.planned_guarantee import estimate, outlook
    from privfed.report.grid import cells_table, excluded_table, outlook_table

    planned = cells(files.grid, grid)
    ahead = outlook(files, grid, planned, retry)
    time = estimate(files.grid, planned, grid, processes)
    screen.print(cells_table(planned, grid, ahead.excluded), "", sep="\n")
    if ahead.excluded:
        screen.print(excluded_table(ahead.excluded))
    screen.print(outlook_table(ahead), time, sep="\n")
    return print_json(ahead.to_json(planned)) if as_json else 0


def _run(
    screen: Console, files: Files, grid: Grid, processes: int, retry: bool, as_json: bool
) -> int:
    """Runs the cells that have not ended, and with `retry` those that failed or were refused.

    Prints the cells' states, draws the figures and writes the page. Returns the exit code.
    """
    from privfed.grid.engine import run_grid
    from privfed.grid.results import DONE, FAILED
    from privfed.report.grid import ExperimentProgress, experiment_table

    with ExperimentProgress(screen) as observer:
        experiment = run_grid(files, grid, processes, retry, observer)
    screen.print(experiment_table(experiment))
    facts, failed = experiment.to_json(), experiment.counts[FAILED]
    # A failed cell is a bug; a refused one is bad input.
    code, kind = (OUR_FAULT, "failed") if failed else (Refused.exit_code, "refused")
    if experiment.files != files:
        message = (
            "tuning ends only after every candidate has run; correct the cause, and resume "
            "(--retry)"
        )
        return report_failure(message, code, kind, **facts)
    if not experiment.counts[DONE] and not failed:
        return report_failure("no cell is done; the table states the reasons", code, kind, **facts)
    _draw(screen, files, grid)
    _write_page(screen, files)
    if failed:
        message = f"{failed} cells failed; the table states the reasons, and --retry repeats them"
        return report_failure(message, code, kind, **facts)
    return print_json(facts) if as_json else 0


def _redraw(screen: Console, files: Files, grid: Grid) -> int:
    """Draws the figures and writes the page again, from the grid's existing tables; returns 0."""
    if not grid.figure:
        screen.print(f"{files.grid} has no [[figure]] to draw")
    _draw(screen, files, grid)
    _write_page(screen, files)
    return 0


def _draw(screen: Console, files: Files, grid: Grid) -> None:
    from privfed.grid.pictures.drawing import draw_all

    for path in draw_all(files, grid.figure, grid.axes, grid.columns):
        screen.print(f" drawn    {path}", highlight=False)


def _write_page(screen: Console, files: Files) -> None:
    """Writes the grid's page as `privfed report` does, and prints its path or why there is none."""
    from privfed.report.page.write import write_grid_page

    try:
        page = str(write_grid_page(files).path)
    except Refused as refusal:
        page = f"none: {refusal}"
    screen.print(f" page     {page}", highlight=False, markup=False)
