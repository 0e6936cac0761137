"""The command that plans a run before it starts: `privfed check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import (
    JSON,
    OPTIONAL_RUN_FILE,
    OVERRIDES,
    PROMISES,
    print_answer,
    quotes_on_request,
)

if TYPE_CHECKING:
    from privfed.api.answer import Answer
    from privfed.run.check import Check


@click.command("check")
@OPTIONAL_RUN_FILE
@OVERRIDES
@JSON
@click.option(
    "--matrix",
    is_flag=True,
    help="Print the combinations of parts that have a proof; other parts are as configured.",
)
@click.option(
    "--answers",
    type=int,
    help="Print a site's guarantee for its clients if the site answers this number of rounds.",
)
@click.option(
    "--advise", is_flag=True, help="Compare other samplers and mechanisms at this epsilon."
)
@PROMISES
@quotes_on_request
def check_command(
    run_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    matrix: bool,
    answers: int | None,
    advise: bool,
    promises: str | None,
) -> int:
    """Plan a run without starting it, or print every reason for a refusal. Writes nothing."""
    from privfed.api.training import answer_of
    from privfed.config.reading import load
    from privfed.plan.calibration.advice_question import refuse_promises_without_advice
    from privfed.run.check import check

    if matrix:
        return _print_matrix(run_file, overrides, as_json)
    checked = check(load(run_file, overrides), answers)
    if advise:
        return print_answer(_advised(checked, promises), as_json)
    refuse_promises_without_advice(promises)
    return print_answer(answer_of(checked, by_command=True), as_json)


def _advised(checked: Check, promises: str | None) -> Answer:
    """Returns `checked` with a comparison of its sampler and mechanism with others."""
    from rich.console import Group

    from privfed.api.answer import Answer
    from privfed.plan.calibration.advice_question import advice_on_run, parse_assumptions
    from privfed.report.calibration import advice_report
    from privfed.report.plan import plan_table

    advice = advice_on_run(checked.plan, parse_assumptions(promises))
    table = plan_table(*checked.facts)
    advised = replace(checked, advice=advice)
    return Answer(advised.to_json(), lambda: Group(table, "", advice_report(advice)), advised)


def _print_matrix(run_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Prints whether each combination of built-in parts is possible; returns 0.

    Parts of the kinds that are not varied are those of the configuration.
    """
    from privfed.api.answer import Answer
    from privfed.config.reading import as_written
    from privfed.report.matrix import matrix_tables

    table, cells = matrix_tables(as_written(run_file, overrides))
    return print_answer(Answer({"cells": cells}, lambda: table), as_json)
