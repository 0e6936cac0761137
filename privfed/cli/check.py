"""The command that says what a run means before it runs: `privfed check`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from privfed.cli.answering import print_answer, print_json, quotes_on_request
from privfed.cli.options import JSON, OPTIONAL_RUN_FILE, OVERRIDES


@click.command("check")
@OPTIONAL_RUN_FILE
@OVERRIDES
@JSON
@click.option("--matrix", is_flag=True, help="What goes with what, other parts as configured.")
@click.option(
    "--answers", type=int, help="What a site promises its clients that answers so many rounds."
)
@quotes_on_request
def check_command(
    run_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    matrix: bool,
    answers: int | None,
) -> int:
    """Say what a run means before it runs, or every reason why it is refused. Writes nothing."""
    from privfed.config.reading import load
    from privfed.report.plan import plan_table
    from privfed.run.check import check

    if matrix:
        return _print_matrix(run_file, overrides, as_json)
    checked = check(load(run_file, overrides), answers)
    table = partial(plan_table, checked.plan, checked.forecast, None, checked.site)
    return print_answer(checked, table, as_json)


def _print_matrix(run_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Print which parts may be combined, the others being as configured."""
    from privfed.config.reading import as_written
    from privfed.report.console import console
    from privfed.report.matrix import matrix_tables

    table, cells = matrix_tables(as_written(run_file, overrides))
    if as_json:
        return print_json({"cells": cells})
    console(False).print(table)
    return 0
