"""The command that solves for noise, epsilon, rounds or cohort size: `privfed calibrate`."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

import click

from privfed.cli.answering import (
    JSON,
    PROMISES,
    Command,
    answers_errors,
    print_answer,
)
from privfed.plan.calibration.question import CalibrationQuestion


class _Calibrate(click.Command):
    """A command that suggests its own flag if an unknown flag has the name of a run file's key."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if meant := CalibrationQuestion.flag_meant(error.option_name.lstrip("-")):
                flag = f"--{meant.replace('_', '-')}"
                message = f"No such option {error.option_name!r}. Did you mean {flag!r}?"
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            raise


def _question_flags(command: Command) -> Command:
    """Returns `command` with one option for each field of `CalibrationQuestion`, in their order."""
    for each in reversed(fields(CalibrationQuestion)):
        default = each.metadata["default"]
        command = click.option(
            f"--{each.name.replace('_', '-')}",
            type=_kind(each),
            help=each.metadata["help"] or None,
            **({"required": True} if default is MISSING else {"default": default}),
            show_default=True,
        )(command)
    return command


def _kind(flag: Field[Any]) -> click.ParamType[Any, Any]:
    """Returns the parameter type of the flag for a field: choices, or type and limits."""
    about = flag.metadata
    if "choices" in about:
        return click.Choice(about["choices"])
    if str(flag.type).startswith("str"):
        return click.STRING
    kind = click.IntRange if str(flag.type).startswith("int") else click.FloatRange
    least, most = about.get("least", about.get("above")), about.get("most", about.get("below"))
    return kind(least, most, min_open="above" in about, max_open="below" in about)


@click.command("calibrate", cls=_Calibrate)
@_question_flags
@click.option("--advise", is_flag=True, help="Compare samplers and mechanisms at this epsilon.")
@PROMISES
@JSON
@answers_errors
def calibrate_command(as_json: bool, advise: bool, promises: str | None, **flags: Any) -> int:
    """Solve for noise, epsilon, rounds or cohort size: the one that is left out."""
    if advise:
        return _advise(flags, promises, as_json)
    from privfed.api.commands import calibrate
    from privfed.plan.calibration.advice_question import refuse_promises_without_advice
    from privfed.plan.calibration.solving import alternatives
    from privfed.report.calibration import alternatives_table
    from privfed.report.console import console

    refuse_promises_without_advice(promises)
    answer = calibrate(**flags)
    code = print_answer(answer, as_json)
    if not as_json and flags["examples"] is None:
        others = alternatives_table(answer.result, alternatives(answer.result))
        console(False).print("", others, sep="\n")
    return code


def _advise(flags: dict[str, Any], promises: str | None, as_json: bool) -> int:
    """Prints the noise that each sampler and mechanism needs, smallest first; returns 0."""
    from privfed.api.answer import Answer
    from privfed.plan.calibration.advice_question import advice_question, advise
    from privfed.report.calibration import advice_report

    advice = advise(advice_question(flags, promises))
    return print_answer(Answer.of(advice, advice_report), as_json)
