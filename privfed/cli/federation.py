"""The commands of a federation's members: `privfed federation new`, `add`, `check` and `run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from accounting.errors import LedgerBroken
from privfed.cli.answering import (
    ANY_PATH,
    DIRECTORY,
    FILE,
    JSON,
    JSON_AT_THE_END,
    answers_errors,
    print_json,
    quotes_on_request,
)
from privfed.core.errors import Broken, Refused
from privfed.core.failures import STOPPED_AT_BUDGET, report_error

if TYPE_CHECKING:
    from privfed.deploy.files.federation_file import FederationFile


@click.command("run")
@click.argument("run_file", metavar="RUN.toml", type=ANY_PATH)
@click.option("--federation", required=True, type=FILE, help="The federation file.")
@click.option("--key", required=True, type=FILE, help="The coordinator's secret key.")
@click.option("--out", required=True, type=DIRECTORY, help="The directory of a new or begun run.")
@click.option(
    "--site", "sockets", nargs=2, multiple=True, metavar="NAME SOCKET", help="A site's socket."
)
@click.option(
    "--seconds", default=60.0, help="Seconds for each answer, in addition to the training time."
)
@click.option("--patience", default=60.0, help="Seconds for which a round waits for enough sites.")
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

    The same command resumes a run that was stopped. A site without a socket is absent.
    """
    from privfed.deploy.carriers.local_socket import Sockets
    from privfed.deploy.coordinator.coordinate import coordinate
    from privfed.deploy.files.federation_file import FederationFile
    from privfed.report.console import console
    from privfed.report.outcome import outcome_table
    from privfed.report.progress import progress

    paths = _paths(tuple(FederationFile.read(federation).parties), sockets)
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
        return report_error(stopped, "the same command resumes the run")
    except (LedgerBroken, Broken) as error:
        return report_error(error, problems=[str(error)], ledger_ok=False, run=str(out))
    screen.print("", outcome_table(outcome), sep="\n")
    code = STOPPED_AT_BUDGET if outcome.stopped_at_budget else 0
    return print_json(outcome.to_json(), code) if as_json else code


def _paths(names: tuple[str, ...], sockets: tuple[tuple[str, str], ...]) -> dict[int, Path]:
    """Returns the given sockets by site number. Raises `Refused` for a name of no site."""
    for name, _ in sockets:
        if name not in names:
            raise Refused(
                f"--site is {name}, but the federation has no such site; expected one of "
                f"{', '.join(names)}"
            )
    return {names.index(name): Path(path) for name, path in sockets}


FEDERATION_FILE = click.argument("file", metavar="FILE", type=FILE)


@click.group("federation")
def federation() -> None:
    """Manage the members of a federation, in a file that all agree on, and run a training."""


federation.add_command(run_federation)


@federation.command("new")
@FEDERATION_FILE
@click.option("--name", required=True, help="The federation's name.")
@click.option("--coordinator", required=True, metavar="KEY", help="The coordinator's public key.")
@click.option(
    "--threshold",
    default=0,
    help="Number of shares that reconstruct a secret; 0: the smallest allowed number.",
)
@answers_errors
def new_command(file: Path, name: str, coordinator: str, threshold: int) -> int:
    """Write a federation's file, without any site yet."""
    from privfed.deploy.files.federation_file import agreed

    stated = {"name": name, "coordinator": coordinator, "threshold": threshold}
    agreed(stated).write_new(file)
    return 0


@federation.command("add")
@FEDERATION_FILE
@click.option(
    "--site", nargs=2, required=True, metavar="NAME KEY", help="The site, by name and public key."
)
@answers_errors
def add_command(file: Path, site: tuple[str, str]) -> int:
    """Add a site by its name and its public key, which `privfed site key` prints at the site."""
    from privfed.deploy.files.federation_file import add_site

    add_site(file, *site)
    return 0


@federation.command("check")
@FEDERATION_FILE
@click.option(
    "--colluders", default=1, help="Largest number of sites that may collude with the server."
)
@JSON
@answers_errors
def check_federation(file: Path, colluders: int, as_json: bool) -> int:
    """Print the members, the number of shares that reconstruct a secret, and the file's digest.

    Files that state the same federation have the same digest, for any layout of the file. Compare
    the digests of all members by telephone before the first run.
    """
    from privfed.deploy.files.federation_file import FederationFile

    agreed_on = FederationFile.read(file)
    shares = _shares(agreed_on, colluders)
    digest = agreed_on.digest()
    if as_json:
        facts = {**agreed_on.stated(), "colluders": colluders, "shares": shares}
        return print_json({**facts, "digest": digest})
    click.echo(f"federation   {agreed_on.name}")
    click.echo(f"coordinator  {agreed_on.coordinator}")
    for name in agreed_on.order:
        click.echo(f"site         {name}  {agreed_on.sites[name]}")
    for region, of in agreed_on.regions.items():
        click.echo(f"region       {region}  {of.coordinator}  {', '.join(of.sites)}")
    threshold = agreed_on.threshold or "automatic"
    click.echo(f"threshold    {threshold}; {colluders} may collude with the server")
    for threat, least in shares.items():
        opened = f"{least} of {agreed_on.sharing} shares open a secret" if least else "too low"
        words = "semi-honest" if threat == "curious" else threat
        click.echo(f"  {words:11} {opened}")
    spaced = [digest[place : place + 4] for place in range(0, len(digest), 4)]
    click.echo(f"digest       {' '.join(spaced[:8])}\n             {' '.join(spaced[8:])}")
    return 0


def _shares(agreed_on: FederationFile, colluders: int) -> dict[str, int | None]:
    """Returns the number of shares that reconstruct a secret, by threat model of the server.

    The number is None for a malicious server if the federation has too few sites or too low a
    threshold. Raises `Refused` if that holds even for a semi-honest server.
    """
    from privfed.core.errors import Refused

    shares: dict[str, int | None] = {"curious": agreed_on.least_shares(colluders, "curious")}
    try:
        shares["malicious"] = agreed_on.least_shares(colluders, "malicious")
    except Refused:
        shares["malicious"] = None
    return shares
