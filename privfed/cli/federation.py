"""The commands of who takes part: `privfed federation new`, `add`, `check` and `run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import answers_errors, print_json
from privfed.cli.federation_run import run_federation
from privfed.cli.options import FILE, JSON

if TYPE_CHECKING:
    from privfed.deploy.files.federation_file import FederationFile

FEDERATION_FILE = click.argument("file", metavar="FILE", type=FILE)


@click.group("federation")
def federation() -> None:
    """Who takes part in a federation, as a file that all agree on, and a run over them."""


federation.add_command(run_federation)


@federation.command("new")
@FEDERATION_FILE
@click.option("--name", required=True, help="What the federation is called.")
@click.option("--coordinator", required=True, metavar="KEY", help="Whose invitations count.")
@click.option("--threshold", default=0, help="Shares that open a secret; 0: the fewest that may.")
@answers_errors
def new_command(file: Path, name: str, coordinator: str, threshold: int) -> int:
    """Write a federation's file without any site yet."""
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
    """Add a site, by the line that `privfed site key` prints there."""
    from privfed.deploy.files.federation_file import add_site

    add_site(file, *site)
    return 0


@federation.command("check")
@FEDERATION_FILE
@click.option("--colluders", default=1, help="Sites that may work with the server, at most.")
@JSON
@answers_errors
def check_federation(file: Path, colluders: int, as_json: bool) -> int:
    """Print who takes part, how many shares open a secret, and the digest to compare.

    Everybody's digest is the same where everybody has the same federation, however the file is laid
    out. Compare it by telephone, before the first run.
    """
    from privfed.deploy.files.federation_file import FederationFile

    agreed_on = FederationFile.read(file)
    shares = _shares(agreed_on, colluders)
    digest = agreed_on.digest()
    if as_json:
        facts = {**agreed_on.model_dump(), "colluders": colluders, "shares": shares}
        return print_json({**facts, "digest": digest})
    click.echo(f"federation   {agreed_on.name}")
    click.echo(f"coordinator  {agreed_on.coordinator}")
    for name in agreed_on.order:
        click.echo(f"site         {name}  {agreed_on.sites[name]}")
    click.echo(f"threshold    {agreed_on.threshold}; {colluders} may work with the server")
    for threat, least in shares.items():
        opened = f"{least} of {len(agreed_on.sites)} shares open a secret" if least else "too low"
        click.echo(f"  {threat:10} {opened}")
    spaced = [digest[place : place + 4] for place in range(0, len(digest), 4)]
    click.echo(f"digest       {' '.join(spaced[:8])}\n             {' '.join(spaced[8:])}")
    return 0


def _shares(agreed_on: FederationFile, colluders: int) -> dict[str, int | None]:
    """How many shares open a secret, by what the server may do; None where the threshold is low.

    Raises `Refused` where it is low for every server.
    """
    from privfed.errors import Refused

    shares: dict[str, int | None] = {"curious": agreed_on.least_shares(colluders, "curious")}
    try:
        shares["lying"] = agreed_on.least_shares(colluders, "lying")
    except Refused:
        shares["lying"] = None
    return shares
