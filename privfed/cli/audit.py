"""The command that recomputes the spending of runs: `privfed audit`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from privfed.cli.answering import (
    ANY_PATH,
    DIRECTORY,
    FILE,
    JSON,
    OVERRIDES,
    ROUNDS,
    SAMPLING_RATE,
    answers_errors,
    print_answer,
    print_json,
)
from privfed.core.errors import Refused
from privfed.core.failures import BROKEN, REFUTED, report_failure


def _refuse_claim_alone(claim: Mapping[str, Any]) -> None:
    """Raises `Refused` if any option in `claim` is not None; call it if --function is not given."""
    given = [f"--{name.replace('_', '-')}" for name, value in claim.items() if value is not None]
    if given:
        raise Refused(
            f"{given[0]} is given, but has an effect only with --function; add --function "
            f"module:name, or remove {given[0]}"
        )


def _audit_function(
    name: str, claim: Mapping[str, Any], releases: int | None, as_json: bool
) -> int:
    """Audits a function against a claim.

    Args:
      name: the function, `module:name`.
      claim: values of the claim's options and of "confidence", by parameter name; None if not
        given (confidence: 0.95).
      releases: number of releases per neighbour; None: as in `audit_function`.
      as_json: whether to print JSON.

    Returns:
      The exit code, 4 if the claim is refuted.
    """
    from privfed.auditing.function_audit import audit_function, claim_of
    from privfed.auditing.released_function import ReleasedFunction
    from privfed.report.audit import function_table
    from privfed.report.console import console

    screen = console(as_json)
    stated = {key: value for key, value in claim.items() if key != "confidence"}
    # The function may print: standard output is only for the answer.
    with contextlib.redirect_stdout(sys.stderr), screen.status("releasing on neighbouring inputs"):
        function = ReleasedFunction.named(name, "--function")
        audited = audit_function(
            function, claim_of(function, **stated), releases, claim["confidence"] or 0.95
        )
    screen.print(function_table(audited))
    code = REFUTED if audited.refuted else 0
    return print_json(audited.to_json(), code) if as_json else code


@click.command("audit")
@click.argument("directories", metavar="RUN_DIR...", type=DIRECTORY, nargs=-1)
@click.option(
    "--mechanism",
    metavar="RUN.toml",
    type=ANY_PATH,
    help="Test the mechanism that this file configures, without training.",
)
@OVERRIDES
@click.option(
    "--function",
    metavar="MODULE:NAME",
    help="Test a function of your own, release(member, generator), on neighbouring inputs.",
)
@click.option("--claimed-epsilon", type=click.FloatRange(0), help="The claimed ε at --delta.")
@click.option("--delta", type=click.FloatRange(0, 1, max_open=True), help="δ of the claim.")
@click.option(
    "--noise-multiplier",
    type=click.FloatRange(0, min_open=True),
    help="Claim Gaussian noise: its standard deviation over the sensitivity.",
)
@SAMPLING_RATE
@ROUNDS
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, True, True),
    help="Confidence of lower bounds; default: 0.95.",
)
@click.option("--releases", type=click.IntRange(20, 10**7), help="Number of releases.")
@click.option(
    "--accountant",
    help="tightest, rdp, pld; or, as a further cross-check: opacus_rdp, opacus_prv, or all.",
)
@click.option(
    "--plot",
    type=FILE,
    help="Draw ε over rounds and over δ into this file (.svg, .png, .pdf).",
)
@click.option(
    "--head", metavar="HASH", help="An earlier head of the run's ledger, recorded elsewhere."
)
@JSON
@answers_errors
def audit_command(
    directories: tuple[Path, ...],
    mechanism: Path | None,
    overrides: tuple[str, ...],
    releases: int | None,
    accountant: str | None,
    plot: Path | None,
    head: str | None,
    as_json: bool,
    function: str | None,
    **claim: Any,
) -> int:
    """Recompute the ε of one run, or of several runs together, from their ledgers alone.

    The ε is also compared with the evidence of the run's canaries. With --mechanism or --function,
    a mechanism is tested against its claim instead.
    """
    of_a_run = (*directories, accountant, plot, head)
    if function is not None:
        _refuse_combination("--function is", *of_a_run, mechanism, *overrides)
        return _audit_function(function, claim, releases, as_json)
    _refuse_claim_alone(claim)
    if mechanism is not None:
        _refuse_combination("--mechanism, a run file, is", *of_a_run)
        return _audit_mechanism(mechanism, overrides, releases, as_json)
    if overrides or releases:
        raise Refused(
            "--set or --releases is given, but neither --mechanism nor --function; add the run "
            "file (--mechanism) or, with --releases, the function (--function)"
        )
    if not directories:
        raise Refused(
            "nothing to audit is given; name a run directory, --mechanism RUN.toml or --function "
            "module:name"
        )
    if len(directories) > 1:
        if plot or head:
            raise Refused(
                "--plot or --head is given, but several runs are named; name one run only"
            )
        return _audit(directories, accountant, None, None, as_json)
    return _audit(directories[0], accountant, head, plot, as_json)


def _refuse_combination(tested: str, *others: object) -> None:
    """Raises `Refused` if any option value in `others` is given (neither None nor empty).

    `tested` is the start of the message, for example "--function is".
    """
    if any(others):
        raise Refused(
            f"{tested} tested without a run directory; leave out RUN_DIR, --accountant, --plot, "
            "--head and, with --function, also --mechanism and --set"
        )


def _audit(
    path: Path | Sequence[Path],
    accountant: str | None,
    head: str | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Audits one run, or several together, and prints the result; returns the exit code.

    If `plot` is given, ε over rounds and over δ is drawn into that file for a single run without
    problems.
    """
    from privfed.api.commands import audit

    answer = audit(path, accountant, head)
    problems, refuted = answer.problems, getattr(answer.result, "refuted", False)
    curves = {}
    if isinstance(path, Path) and plot is not None and not problems:
        curves = _plot(path, plot)
    code = BROKEN if problems else REFUTED if refuted else 0
    if not as_json:
        return print_answer(answer, as_json, code)
    if problems:
        return report_failure("\n".join(problems), BROKEN, "broken", **answer)
    return print_json({**answer, **curves}, code)


def _audit_mechanism(
    run_file: Path, overrides: tuple[str, ...], releases: int | None, as_json: bool
) -> int:
    from privfed.auditing.mechanism_audit import audit_mechanism
    from privfed.config.reading import load
    from privfed.report.audit import mechanism_table
    from privfed.report.console import console

    screen = console(as_json)
    with screen.status("releasing on neighbouring populations"):
        audited = audit_mechanism(load(run_file, overrides), releases)
    screen.print(mechanism_table(audited))
    code = REFUTED if audited.refuted else 0
    return print_json(audited.to_json(), code) if as_json else code


def _plot(directory: Path, path: Path) -> dict[str, Any]:
    """Draws the run's ε over rounds and over δ into `path`; returns {"curves": their values}."""
    from accounting.ledger import Ledger
    from privfed.report.audit import draw_curves
    from privfed.store.run_directory import RunDirectory

    return {"curves": draw_curves(Ledger.load(RunDirectory.open(directory).ledger), path)}
