"""The command `privfed survive`: survival curves of a federation."""

from __future__ import annotations

from typing import Any

import click

from privfed.cli.answering import (
    ANY_PATH,
    JSON,
    NEW_RUN,
    OVERRIDES,
    RELEASE_DELTA,
    RELEASE_EPSILON,
    RELEASE_RUN_FILE,
    print_release,
    quotes_on_request,
)


@click.command("survive")
@click.argument("run_file", metavar="RUN.toml", type=ANY_PATH)
@OVERRIDES
@click.option("--time", default="", help="The column of times until the event or censoring.")
@click.option("--event", default="", help="The column that states whether the event occurred.")
@click.option(
    "--occurred",
    multiple=True,
    help="An entry of the event's column that states an event; may be repeated; default: 1.",
)
@click.option("--group", default="", help="The column of groups, as [data.categories] declares it.")
@click.option("--until", type=float, help="The end of the last bin; the first begins at 0.")
@click.option(
    "--bins",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="With --until: the number of bins of equal width.",
)
@click.option(
    "--edge",
    "edges",
    type=float,
    multiple=True,
    help="Instead of --until: an end of a bin, in ascending order; repeat it for each.",
)
@click.option(
    "--actuarial",
    is_flag=True,
    help="Count a censored client as at risk for half of its bin; default: for all of it.",
)
@RELEASE_EPSILON
@RELEASE_DELTA
@NEW_RUN
@RELEASE_RUN_FILE
@JSON
@quotes_on_request
def survive_command(**asked: Any) -> int:
    """Release a survival table of all clients, charged once, and estimate curves and tests from it.

    Prints Kaplan-Meier curves with 95 % intervals, restricted means, the log-rank test and hazard
    ratios. All intervals contain the noise. If RUN.toml is a run directory, it is only read again.
    """
    from privfed.analytics.survival.release import survival_request
    from privfed.api.survival import survival

    asked |= {"edges": asked["edges"] or None, "occurred": asked["occurred"] or (1,)}
    return print_release(survival, survival_request, "survival", asked, "actuarial")
