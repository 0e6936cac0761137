"""`privfed audit --function`: a function of somebody's own, held against what it claims."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from privfed.cli.answering import print_json
from privfed.errors import Refused
from privfed.failures import REFUTED

_POSITIVE = click.FloatRange(0, min_open=True)
_OPTIONS = (
    click.option(
        "--function",
        metavar="MODULE:NAME",
        help="Test a function of your own, release(member, generator), on two neighbours.",
    ),
    click.option("--claimed-epsilon", type=click.FloatRange(0), help="What it claims at --delta."),
    click.option("--delta", type=click.FloatRange(0, 1, max_open=True), help="Of the claim."),
    click.option(
        "--noise-multiplier",
        type=_POSITIVE,
        help="It claims to be Gaussian noise: deviation over sensitivity.",
    ),
    click.option(
        "--sampling-rate",
        type=click.FloatRange(0, 1, min_open=True),
        help="… on Poisson cohorts of this rate.",
    ),
    click.option("--rounds", type=click.IntRange(1, 10**6), help="… in so many rounds."),
    click.option(
        "--confidence",
        type=click.FloatRange(0, 1, True, True),
        help="Of lower bounds; 0.95 by default.",
    ),
)


def function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with the options of an audit of a function."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_claim_alone(claim: Mapping[str, Any]) -> None:
    """Raises `Refused` where a part of a claim is given, and no function that it is about."""
    given = [f"--{name.replace('_', '-')}" for name, value in claim.items() if value is not None]
    if given:
        raise Refused(f"{given[0]} goes with --function module:name")


def audit_named_function(
    name: str, claim: Mapping[str, Any], releases: int | None, as_json: bool
) -> int:
    """Audit the function at `name` against `claim`; 4 where it is refuted."""
    from privfed.auditing.function_audit import audit_function
    from privfed.auditing.function_claim import claim_of
    from privfed.auditing.released_function import ReleasedFunction
    from privfed.report.console import console
    from privfed.report.mechanism_audit import function_table

    screen = console(as_json)
    stated = {key: value for key, value in claim.items() if key != "confidence"}
    # What the function prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr), screen.status("releasing on neighbouring inputs"):
        function = ReleasedFunction.named(name, "--function")
        audited = audit_function(
            function, claim_of(function, **stated), releases, claim["confidence"] or 0.95
        )
    screen.print(function_table(audited))
    code = REFUTED if audited.refuted else 0
    return print_json(audited.to_json(), code) if as_json else code
