"""The commands that look at run directories: `privfed runs` and `privfed compare`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import answers_errors, print_answer
from privfed.cli.options import DIRECTORY, JSON


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", type=DIRECTORY, default=Path("runs"))
@JSON
@answers_errors
def runs_command(folder: Path, as_json: bool) -> int:
    """List the runs in a folder: state, ε spent, measure, whom they are about, and when.

    Run directories are looked for three folders deep. FOLDER is runs/ where it is left out.
    """
    from privfed.overview.listing import list_runs
    from privfed.report.runs.listing import RunsTable

    listed = list_runs(folder)
    return print_answer(listed, lambda: RunsTable(listed), as_json)


@click.command("compare")
@click.argument("first", metavar="RUN_DIR", type=DIRECTORY)
@click.argument("second", metavar="RUN_DIR", type=DIRECTORY)
@JSON
@answers_errors
def compare_command(first: Path, second: Path, as_json: bool) -> int:
    """Put two runs side by side: what differs in their files, guarantees and measures.

    Where both are about the same people, their joint ε is beside them.
    """
    from privfed.overview.comparison import compare_runs
    from privfed.report.runs.comparison import ComparisonTable

    compared = compare_runs(first, second)
    return print_answer(compared, lambda: ComparisonTable(compared), as_json)
