"""The commands on run directories and claims: `report`, `runs`, `compare`, `verify`, `claim`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import (
    ANY_PATH,
    DIRECTORY,
    FILE,
    JSON,
    answers_errors,
    never_quotes,
    print_answer,
    print_json,
)
from privfed.core.errors import Refused
from privfed.core.failures import REFUTED
from privfed.core.text import visible


@click.command("report")
@click.argument("path", metavar="RUN_DIR|GRID.toml", type=ANY_PATH)
@click.option(
    "--out", type=FILE, help=("The page's file; default: in the run, or next to the grid.")
)
@click.option(
    "--simulation",
    is_flag=True,
    help=(
        "Also show values that no ε covers: metrics of simulations, attackers, and the results of "
        "canaries."
    ),
)
@click.option(
    "--claim", type=FILE, help="Instead write the run's claim, a JSON file that others can verify."
)
@click.option(
    "--claim-page",
    is_flag=True,
    help="Instead write one A4 page about the claim of a run, or about a claim's JSON file.",
)
@JSON
@never_quotes
def report_command(
    path: Path,
    out: Path | None,
    simulation: bool,
    claim: Path | None,
    claim_page: bool,
    as_json: bool,
) -> int:
    """Write one self-contained page of HTML about a run or a grid; or a run's claim."""
    from privfed.report.page.write import write_grid_page, write_run_page

    if claim is not None:
        _refuse_together(out=out, simulation=simulation, claim_page=claim_page)
        from privfed.api.commands import opened

        return print_answer(opened(path).claim(claim), as_json)
    if claim_page:
        _refuse_together(simulation=simulation)
        from privfed.claims.page import write_claim_page

        written = write_claim_page(path, out)
    else:
        write = write_grid_page if path.is_file() else write_run_page
        written = write(path, out, simulation)
    code = REFUTED if written.refuted else 0
    if as_json:
        return print_json(written.to_json(), code)
    click.echo(visible(f"wrote {written.path}"))
    return code


def _refuse_together(**others: object) -> None:
    """Raises `Refused` if any of these options, by parameter name, is given (true).

    Call it for options that another given option excludes, since each writes another file.
    """
    for name, value in others.items():
        if value:
            raise Refused(
                f"--{name.replace('_', '-')} is given with an option that writes another file; "
                "give one of them"
            )


@click.command("verify")
@click.argument("claim", metavar="CLAIM.json", type=FILE)
@click.argument("run", metavar="[RUN_DIR]", required=False, type=DIRECTORY)
@click.option("--head", help="A head of the run's ledger that was recorded elsewhere.")
@click.option("--digest", help="The claim's digest, as its issuer published it.")
@JSON
@never_quotes
def verify_command(
    claim: Path, run: Path | None, head: str | None, digest: str | None, as_json: bool
) -> int:
    """Verify a claim: compute it again from its ledger, and compare it with the run.

    Without RUN_DIR, the ledger and the configuration in the claim are used. If a value differs,
    the first difference is printed, and the exit code is 4.
    """
    from privfed.api.claims import verify

    answer = verify(claim, run, head=head, digest=digest)
    return print_answer(answer, as_json, 0 if answer.verified else REFUTED)


@click.group("claim")
def claim_group() -> None:
    """Write claims about runs of other frameworks."""


@claim_group.command("import")
@click.argument("description", metavar="RUN.toml", type=FILE)
@click.option("--out", type=FILE, required=True, help="The claim's JSON file.")
@JSON
@never_quotes
def import_command(description: Path, out: Path, as_json: bool) -> int:
    """Write the claim of a run of another framework, from its releases and their sampling."""
    from privfed.api.claims import import_claim

    return print_answer(import_claim(description, out), as_json)


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", type=DIRECTORY, default=Path("runs"))
@JSON
@answers_errors
def runs_command(folder: Path, as_json: bool) -> int:
    """List the runs in a folder: state, ε spent, metric, population, and time.

    Run directories are searched three folders deep. FOLDER is runs/ by default.
    """
    from privfed.api.commands import runs

    return print_answer(runs(folder), as_json)


@click.command("compare")
@click.argument("first", metavar="RUN_DIR", type=DIRECTORY)
@click.argument("second", metavar="RUN_DIR", type=DIRECTORY)
@JSON
@answers_errors
def compare_command(first: Path, second: Path, as_json: bool) -> int:
    """Compare two runs: the differences of their files, guarantees and metrics.

    If both runs concern the same population, also print their joint ε.
    """
    from privfed.api.commands import compare

    return print_answer(compare(first, second), as_json)
