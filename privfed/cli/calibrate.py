"""The command that solves for what a budget leaves open: `privfed calibrate`."""

from __future__ import annotations

from typing import Any

import click

from privfed.cli.answering import JSON, PROMISES, answers_errors, print_json

RATE = click.FloatRange(0, 1, min_open=True)
SHARE = click.FloatRange(0, 1, max_open=True)
COUNT = click.IntRange(1, 10**12)


class _Calibrate(click.Command):
    """The command, which suggests its own flag for a run file's key of the same meaning."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from privfed.plan.calibration.question import RUN_FILE_KEYS

            if meant := RUN_FILE_KEYS.get(error.option_name.lstrip("-")):
                message = f"No such option {error.option_name!r}. Did you mean '--{meant}'?"
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            raise


@click.command("calibrate", cls=_Calibrate)
@click.option("--sampler", default="poisson", show_default=True, help="As cohort.sampler.")
@click.option("--sampling-rate", "rate", type=RATE, help="q (poisson): expected cohort / clients.")
@click.option("--population", type=COUNT, help="Clients, as a public constant.")
@click.option("--cohort", type=COUNT, help="Clients per round: expected, or exactly (fixed_size).")
@click.option("--cap", type=COUNT, default=None, help="truncated_poisson: default 1.5 x cohort.")
@click.option("--separation", type=click.IntRange(1, 10**6), help="cyclic: rounds between two.")
@click.option("--slots", type=click.IntRange(1, 10**6), help="allocation: rounds of an epoch.")
@click.option("--groups", type=COUNT, help="allocation: public groups; as many as bands.")
@click.option("--mechanism", default="gaussian", show_default=True, help="As privacy.mechanism.")
@click.option("--protocol", help="As secure.protocol; distributed noise takes masks by default.")
@click.option("--bands", type=click.IntRange(0, 10_000), help="banded; allocation: 0 searches.")
@click.option("--buffers", type=click.IntRange(1, 8), help="blt: rows that are remembered.")
@click.option("--bits", type=click.IntRange(8, 62), help="Of the secure sum.")
@click.option("--dimension", type=COUNT, help="distributed noise: numbers of an update.")
@click.option("--minimum", type=COUNT, help="Fewest survivors of a sum: clients, or sites.")
@click.option("--threshold", type=RATE, help="masks: the part of a cohort that has to stay.")
@click.option("--sites", type=click.IntRange(1, 10_000), help="Sites that hold the clients.")
@click.option("--sites-per-client", type=click.IntRange(1, 64), help="Most sites of one client.")
@click.option(
    "--colluders",
    type=click.FloatRange(0),
    help="secure sums: the part that may collude; with --sites, how many sites.",
)
@click.option("--byzantine", type=COUNT, help="Hostile clients of a cohort, who add no noise.")
@click.option("--dropout", type=SHARE, help="secure sums: the part of a cohort that drops out.")
@click.option("--sizing", type=click.Choice(["minimum", "layers"]), help="skellam: how.")
@click.option("--against", type=click.Choice(["server", "readers"]), help="Whose guarantee.")
@click.option("--rounds", type=click.IntRange(1, 10**6))
@click.option("--delta", type=click.FloatRange(0, 1, True, True), required=True)
@click.option("--epsilon", type=click.FloatRange(0, min_open=True))
@click.option("--noise-multiplier", type=click.FloatRange(0), help="Deviation / clip.")
@click.option("--accountant", type=click.Choice(["tightest", "rdp", "pld"]), default="tightest")
@click.option("--advise", is_flag=True, help="Compare draws and mechanisms at this epsilon.")
@PROMISES
@JSON
@answers_errors
def calibrate_command(as_json: bool, advise: bool, promises: str | None, **flags: Any) -> int:
    """Solve for the one of noise, epsilon, rounds and cohort (or rate) that is left out."""
    if advise:
        return _advise(flags, promises, as_json)
    from privfed.plan.calibration.advice_question import refuse_promises_alone
    from privfed.plan.calibration.question import CalibrationQuestion
    from privfed.plan.calibration.solving import alternatives, solve
    from privfed.report import calibration as report
    from privfed.report.console import console

    refuse_promises_alone(promises)
    solved = solve(CalibrationQuestion(**flags))
    if as_json:
        return print_json(solved.to_json())
    screen = console(False)
    screen.print(report.calibration_table(solved))
    screen.print("", report.alternatives_table(solved, alternatives(solved)), sep="\n")
    return 0


def _advise(flags: dict[str, Any], promises: str | None, as_json: bool) -> int:
    """Print what each draw and mechanism needs of noise, least first."""
    from privfed.plan.calibration.advice_question import advice_question, advise
    from privfed.report.console import console
    from privfed.report.plan_rows.advice import advice_report

    advice = advise(advice_question(flags, promises))
    if as_json:
        return print_json(advice.to_json())
    console(False).print(advice_report(advice))
    return 0
