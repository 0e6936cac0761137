"""The commands that speak of budgets alone: audit and calibrate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from privfed.errors import Refused
from privfed.failures import BROKEN, REFUTED, answer, answers_errors, fail

DIRECTORY = click.Path(file_okay=False, path_type=Path)
RATE = click.FloatRange(0, 1, min_open=True)
SHARE = click.FloatRange(0, 1, max_open=True)
COUNT = click.IntRange(1, 10**12)


@click.command()
@click.argument("directories", metavar="RUN_DIR...", type=DIRECTORY, nargs=-1)
@click.option(
    "--mechanism",
    metavar="RUN.toml",
    type=click.Path(path_type=Path),
    help="Test the mechanism that this file configures, without training.",
)
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option("--releases", type=click.IntRange(20, 10**7), help="How many to test it on.")
@click.option(
    "--accountant",
    help="tightest, rdp, pld; or a cross-check beside these: opacus_rdp, opacus_prv, or all.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw ε over rounds and over δ into this file (.svg, .png, .pdf).",
)
@click.option("--head", metavar="HASH", help="A head that its ledger had, kept elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@answers_errors
def audit(
    directories: tuple[Path, ...],
    mechanism: Path | None,
    overrides: tuple[str, ...],
    releases: int | None,
    accountant: str | None,
    plot: Path | None,
    head: str | None,
    as_json: bool,
) -> int:
    """Re-compute the ε that a run spent, or several together, from their ledgers alone.

    And hold it against what the run's canaries show, or a mechanism against its claim.
    """
    from privfed.auditing.joint_audit import audit_together
    from privfed.auditing.run_audit import audit as audit_run
    from privfed.cli.console import console
    from privfed.report import audit as report

    if mechanism is not None:
        if directories or accountant or plot or head:
            raise Refused("--mechanism tests a run file by itself; leave out the other arguments")
        return _audit_mechanism(mechanism, overrides, releases, as_json)
    if overrides or releases:
        raise Refused("--set and --releases go with --mechanism")
    if not directories:
        raise Refused("expected a run directory to audit, or --mechanism RUN.toml")
    if len(directories) > 1:
        if plot or head:
            raise Refused("--plot and --head are about one run; audit them one by one")
        merged = audit_together(directories, accountant)
        if as_json:
            return _told(merged.to_json(), merged.problems, refuted=False)
        console(False).print(report.merged_table(merged))
        return BROKEN if merged.problems else 0
    found = audit_run(directories[0], accountant, head)
    curves = {} if plot is None or found.problems else _plot(directories[0], plot)
    if as_json:
        return _told({**found.to_json(), **curves}, found.problems, found.refuted)
    console(False).print(report.audit_table(found))
    if found.problems:
        return BROKEN
    return REFUTED if found.refuted else 0


def _told(audited: Mapping[str, Any], problems: Sequence[str], refuted: bool) -> int:
    """As JSON; of what is broken, the same with the error in it."""
    if problems:
        return fail("\n".join(problems), BROKEN, "broken", **audited)
    return answer(audited, REFUTED if refuted else 0)


def _audit_mechanism(
    run_file: Path, overrides: tuple[str, ...], releases: int | None, as_json: bool
) -> int:
    from privfed.auditing.mechanism_audit import audit_mechanism
    from privfed.cli.console import console
    from privfed.config.reading import load
    from privfed.report.mechanism_audit import mechanism_table

    screen = console(as_json)
    with screen.status("releasing on neighbouring populations"):
        found = audit_mechanism(load(run_file, overrides), releases)
    screen.print(mechanism_table(found))
    code = REFUTED if found.refuted else 0
    return answer(found.to_json(), code) if as_json else code


def _plot(directory: Path, path: Path) -> dict[str, Any]:
    from accounting.ledger import Ledger
    from privfed.report.budget_curves import draw_curves
    from privfed.store.run_directory import RunDirectory

    return {"curves": draw_curves(Ledger.load(RunDirectory.open(directory).ledger), path)}


@click.command()
@click.option("--sampler", default="poisson", show_default=True, help="As cohort.sampler.")
@click.option("--sampling-rate", "rate", type=RATE, help="q (poisson): expected cohort / clients.")
@click.option("--population", type=COUNT, help="Clients, as a public constant.")
@click.option("--cohort", type=COUNT, help="Clients per round: expected, or exactly (fixed_size).")
@click.option("--cap", type=COUNT, default=None, help="truncated_poisson: default 1.5 x cohort.")
@click.option("--separation", type=click.IntRange(1, 10**6), help="cyclic: rounds between two.")
@click.option("--mechanism", default="gaussian", show_default=True, help="As privacy.mechanism.")
@click.option("--protocol", help="As secure.protocol; distributed noise takes masks by default.")
@click.option("--bands", type=click.IntRange(1, 10_000), help="banded: at most the separation.")
@click.option("--bits", type=click.IntRange(8, 62), help="Of the secure sum.")
@click.option("--dimension", type=COUNT, help="distributed noise: numbers of an update.")
@click.option("--minimum", type=COUNT, help="Fewest survivors of a secure sum.")
@click.option("--threshold", type=RATE, help="masks: the part of a cohort that has to stay.")
@click.option("--colluders", type=SHARE, help="secure sums: the part that may collude.")
@click.option("--byzantine", type=COUNT, help="Hostile clients of a cohort, who add no noise.")
@click.option("--dropout", type=SHARE, help="secure sums: the part of a cohort that drops out.")
@click.option("--sizing", type=click.Choice(["minimum", "layers"]), help="skellam: how.")
@click.option("--against", type=click.Choice(["server", "readers"]), help="Whose guarantee.")
@click.option("--rounds", type=click.IntRange(1, 10**6))
@click.option("--delta", type=click.FloatRange(0, 1, True, True), required=True)
@click.option("--epsilon", type=click.FloatRange(0, min_open=True))
@click.option("--noise-multiplier", type=click.FloatRange(0), help="Deviation / clip.")
@click.option("--accountant", type=click.Choice(["tightest", "rdp", "pld"]), default="tightest")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@answers_errors
def calibrate(as_json: bool, **given: Any) -> int:
    """Solve for the one of noise, epsilon, rounds and cohort (or rate) that is left out."""
    from privfed.cli.console import console
    from privfed.plan.calibration.alternatives import alternatives
    from privfed.plan.calibration.question import CalibrationQuestion
    from privfed.plan.calibration.solving import solve
    from privfed.report import calibration as report

    solved = solve(CalibrationQuestion(**given))
    if as_json:
        return answer(solved.to_json())
    screen = console(False)
    screen.print(report.calibration_table(solved))
    screen.print("", report.alternatives_table(solved, alternatives(solved)), sep="\n")
    return 0
