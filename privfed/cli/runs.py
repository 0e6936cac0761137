"""The commands that read run directories: `privfed report`, `runs` and `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import (
    ANY_PATH,
    DIRECTORY,
    FILE,
    JSON,
    answers_errors,
    never_quotes,
    print_answer,
    print_json,
)
from privfed.core.failures import REFUTED
from privfed.core.text import visible


@click.command("report")
@click.argument("path", metavar="RUN_DIR|GRID.toml", type=ANY_PATH)
@click.option(
    "--out", type=FILE, help=("The page's file; default: in the run, or next to the grid.")
)
@click.option(
    "--simulation",
    is_flag=True,
    help=(
        "Also show values that no ε covers: metrics of simulations, attackers, and the results of "
        "canaries."
    ),
)
@JSON
@never_quotes
def report_command(path: Path, out: Path | None, simulation: bool, as_json: bool) -> int:
    """Write one self-contained page of HTML about a run or a grid."""
    from privfed.report.page.write import write_grid_page, write_run_page

    write = write_grid_page if path.is_file() else write_run_page
    written = write(path, out, simulation)
    code = REFUTED if written.refuted else 0
    if as_json:
        return print_json(written.to_json(), code)
    click.echo(visible(f"wrote {written.path}"))
    return code


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", type=DIRECTORY, default=Path("runs"))
@JSON
@answers_errors
def runs_command(folder: Path, as_json: bool) -> int:
    """List the runs in a folder: state, ε spent, metric, population, and time.

    Run directories are searched three folders deep. FOLDER is runs/ by default.
    """
    from privfed.api.commands import runs

    return print_answer(runs(folder), as_json)


@click.command("compare")
@click.argument("first", metavar="RUN_DIR", type=DIRECTORY)
@click.argument("second", metavar="RUN_DIR", type=DIRECTORY)
@JSON
@answers_errors
def compare_command(first: Path, second: Path, as_json: bool) -> int:
    """Compare two runs: the differences of their files, guarantees and metrics.

    If both runs concern the same population, also print their joint ε.
    """
    from privfed.api.commands import compare

    return print_answer(compare(first, second), as_json)
