"""The commands of a site: `privfed site init`, `key` and `receipts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import answers_errors, print_json
from privfed.cli.options import DIRECTORY, JSON

if TYPE_CHECKING:
    from privfed.deploy.files.receipts import Receipts
    from privfed.deploy.policies.policy import SpendingLimit

SITE_FOLDER = click.argument("directory", metavar="DIR", type=DIRECTORY)


@click.group("site")
def site() -> None:
    """A site of a federation: its key, its policy, and what it has answered."""


@site.command("init")
@SITE_FOLDER
@click.option("--name", required=True, help="What the federation calls the site.")
@answers_errors
def init_command(directory: Path, name: str) -> int:
    """Make a site's folder: a fresh secret key, a policy to read, and no receipts yet."""
    from privfed.deploy.files.site_folder import SiteFolder

    folder = SiteFolder(directory)
    key = folder.begin(name)
    click.echo(f"{key.name}  {key.public}")
    click.echo(
        f"privfed: read {folder.policy}, fill in {folder.data}, and tell the others the key above",
        err=True,
    )
    return 0


@site.command("key")
@SITE_FOLDER
@answers_errors
def key_command(directory: Path) -> int:
    """Print the site's public key, by which the others know it."""
    from privfed.deploy.files.keys import SiteKey
    from privfed.deploy.files.site_folder import SiteFolder

    click.echo(str(SiteKey.read(SiteFolder(directory).key).public))
    return 0


@site.command("receipts")
@SITE_FOLDER
@JSON
@answers_errors
def receipts_command(directory: Path, as_json: bool) -> int:
    """Print what the site has answered, and the ε of its people by its own count.

    The chain of receipts is verified; one that was edited or cut in the middle ends with exit
    code 5. A cut end shows by the head alone: compare it with one that was kept elsewhere.
    """
    from privfed.deploy.files.receipts import Receipts
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.policies.policy import LocalPolicy

    folder = SiteFolder(directory)
    receipts = Receipts.load(folder.receipts)
    limit = LocalPolicy.read(folder.policy).budget
    if as_json:
        return print_json(receipts.to_json(limit))
    for line in _lines(receipts, limit):
        click.echo(line)
    return 0


def _lines(receipts: Receipts, limit: SpendingLimit) -> Iterator[str]:
    """What people read of `receipts`."""
    from accounting.guarantee import sentence
    from privfed.words import ceiling, number

    for run in receipts.runs:
        yield (
            f"run {run.run} of federation {run.federation[:16]}…: {run.rounds} rounds in "
            f"{run.exchanges} exchanges, the last {run.last_round}; charged for {run.charged}"
        )
    if not receipts.runs:
        yield "nothing was answered"
    bound, alone = receipts.guarantees(limit.delta)
    whom = "against the server with colluding sites" if alone else "over all runs"
    spent = f"ε = {ceiling(bound.epsilon)} of {number(limit.epsilon)}, δ = {bound.delta:g}"
    yield f"{spent}, {whom}"
    if receipts.runs:
        yield f"    {sentence(bound)}"
    if alone:
        yield f"ε = {ceiling(alone.epsilon)}, δ = {alone.delta:g}, trusting this site alone"
    yield f"head {receipts.head}"
    if receipts.torn:
        yield "the last line was torn by a crash: it was never answered, and does not count"
