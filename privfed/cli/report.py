"""The command that writes a page: `privfed report`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import never_quotes, print_json
from privfed.cli.options import ANYTHING, FILE, JSON
from privfed.failures import REFUTED
from privfed.visible import visible


@click.command("report")
@click.argument("path", metavar="RUN_DIR|GRID.toml", type=ANYTHING)
@click.option("--out", type=FILE, help="The page's file; default: in the run, beside the grid.")
@click.option(
    "--simulation",
    is_flag=True,
    help="Show what no ε covers, too: measures of simulations, attackers, what canaries show.",
)
@JSON
@never_quotes
def report_command(path: Path, out: Path | None, simulation: bool, as_json: bool) -> int:
    """Write one page of HTML about a run, or a grid: it holds all that it shows."""
    from privfed.report.page.write import write_grid_page, write_run_page

    write = write_grid_page if path.is_file() else write_run_page
    written = write(path, out, simulation)
    code = REFUTED if written.refuted else 0
    if as_json:
        return print_json(written.to_json(), code)
    click.echo(visible(f"wrote {written.path}"))
    return code
