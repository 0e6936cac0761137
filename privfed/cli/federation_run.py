"""`privfed federation run`: a run over sites whose sockets can be reached from here."""

from __future__ import annotations

from pathlib import Path

import click

from accounting.errors import LedgerBroken
from privfed.cli.answering import print_json, quotes_on_request
from privfed.cli.options import ANYTHING, DIRECTORY, FILE, JSON_AT_THE_END
from privfed.errors import Broken, Refused
from privfed.failures import STOPPED_AT_BUDGET, report_error


@click.command("run")
@click.argument("run_file", metavar="RUN.toml", type=ANYTHING)
@click.option("--federation", required=True, type=FILE, help="Who takes part.")
@click.option("--key", required=True, type=FILE, help="The coordinator's secret key.")
@click.option("--out", required=True, type=DIRECTORY, help="The run's directory, new or begun.")
@click.option(
    "--site", "sockets", nargs=2, multiple=True, metavar="NAME SOCKET", help="A site's socket."
)
@click.option("--seconds", default=60.0, help="For each answer, beside the time to train.")
@click.option("--patience", default=60.0, help="Seconds that a round waits for enough sites.")
@JSON_AT_THE_END
@quotes_on_request
def run_federation(
    run_file: Path,
    federation: Path,
    key: Path,
    out: Path,
    sockets: tuple[tuple[str, str], ...],
    seconds: float,
    patience: float,
    as_json: bool,
) -> int:
    """Train over sites whose sockets are on this machine, or are forwarded to it.

    The same command goes on with a run that was stopped. A site without a socket is away.
    """
    from privfed.deploy.carriers.sockets import Sockets
    from privfed.deploy.coordinator.coordinate import coordinate
    from privfed.deploy.files.federation_file import FederationFile
    from privfed.report.console import console
    from privfed.report.outcome import outcome_table
    from privfed.report.progress import progress

    paths = _paths(FederationFile.read(federation).order, sockets)
    screen = console(as_json)
    try:
        with progress(screen) as observer:
            outcome = coordinate(
                run_file,
                federation,
                key,
                out,
                lambda _: Sockets(paths),
                seconds=seconds,
                patience=patience,
                observers=[observer],
            )
    except KeyboardInterrupt as stopped:
        return report_error(stopped, "the same command goes on with the run")
    except (LedgerBroken, Broken) as error:
        return report_error(error, problems=[str(error)], ledger_ok=False, run=str(out))
    screen.print("", outcome_table(outcome), sep="\n")
    code = STOPPED_AT_BUDGET if outcome.stopped_at_budget else 0
    return print_json(outcome.to_json(), code) if as_json else code


def _paths(names: tuple[str, ...], sockets: tuple[tuple[str, str], ...]) -> dict[int, Path]:
    """The sockets by the numbers of their sites. Raises `Refused` for a site of another name."""
    for name, _ in sockets:
        if name not in names:
            raise Refused(f"--site {name}: the federation has no such site: {', '.join(names)}")
    return {names.index(name): Path(path) for name, path in sockets}
