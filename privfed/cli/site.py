"""The commands of a site: `privfed site init`, `key`, `check`, `serve`, `receipts`, `recover`."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli import operations
from privfed.cli.answering import (
    ANY_PATH,
    FILE,
    JSON,
    SITE_FOLDER,
    answers_errors,
    print_json,
    quotes_on_request,
)

if TYPE_CHECKING:
    from privfed.deploy.files.receipts import Receipts
    from privfed.deploy.site.policy import SpendingLimit
    from privfed.deploy.site.site_check import SiteCheck


@click.group("site")
def site() -> None:
    """A site of a federation: its key, its policy, and its receipts."""


site.add_command(operations.approve_command)
site.add_command(operations.decline_command)
site.add_command(operations.pending_command)
site.add_command(operations.status_command)


@site.command("init")
@SITE_FOLDER
@click.option("--name", required=True, help="The site's name in the federation.")
@click.option(
    "--witness",
    type=FILE,
    help="Where to keep a second copy of the receipts, on another disk: a backup that is restored "
    "is then noticed.",
)
@answers_errors
def init_command(directory: Path, name: str, witness: Path | None) -> int:
    """Create a site's folder: a new secret key, a policy to read, and a data file to fill in."""
    from privfed.deploy.files.site_folder import SiteFolder

    folder = SiteFolder(directory)
    key = folder.begin(name, witness)
    click.echo(f"{key.name}  {key.public}")
    click.echo(
        "privfed: give the key above to the other members. A coordinator needs no other step; at a "
        f"site, read {folder.policy} and fill in {folder.data}",
        err=True,
    )
    return 0


@site.command("key")
@SITE_FOLDER
@answers_errors
def key_command(directory: Path) -> int:
    """Print the site's public key, which identifies the site to the other members."""
    from privfed.deploy.files.keys import SiteKey
    from privfed.deploy.files.site_folder import SiteFolder

    click.echo(str(SiteKey.read(SiteFolder(directory).key).public))
    return 0


@site.command("check")
@SITE_FOLDER
@click.argument("run_file", metavar="RUN.toml", type=ANY_PATH)
@JSON
@quotes_on_request
def check_site_command(directory: Path, run_file: Path, as_json: bool) -> int:
    """Print whether the site would take part in a run, and the ε that its clients would spend.

    The site's table is read as the run declares it, and training on the largest possible cohort is
    rehearsed. Nothing leaves the site, and nothing is charged. The output may reveal data of the
    site's clients.
    """
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.agent import open_member
    from privfed.deploy.site.site_check import check_site

    checked = check_site(open_member(SiteFolder(directory), alone=False), run_file)
    if as_json:
        return print_json(checked.to_json())
    for line in _check_lines(checked):
        click.echo(line)
    return 0


@site.command("serve")
@SITE_FOLDER
@click.option(
    "--socket",
    type=FILE,
    help="Where the socket is created, in a folder for its carrier; default: in the site's folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one object in a line.")
@answers_errors
def serve_command(directory: Path, socket: Path | None, as_json: bool) -> int:
    """Answer the coordinator at the site's socket until Ctrl-C, or until a service manager ends it.

    Events are printed on standard error, without data. Reasons are written only to `log` in the
    site's folder.
    """
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.agent import serving
    from privfed.deploy.site.agent_log import event, logging_to
    from privfed.deploy.site.site_work import flushed_denormals

    folder = SiteFolder(directory)
    # Denormals are flushed before threads start, which inherit the setting.
    with flushed_denormals(), logging_to(folder.log, as_json), serving(folder, socket) as member:
        place = f"{socket or folder.socket}; its log is {folder.log}"
        text = f"{member.key.name} of the federation {member.federation.name} answers at {place}"
        if as_json:
            logging.getLogger("privfed.deploy").info(text, extra=event("started"))
        else:
            click.echo(text, err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


@site.command("receipts")
@SITE_FOLDER
@JSON
@answers_errors
def receipts_command(directory: Path, as_json: bool) -> int:
    """Print the runs that the site answered, and the ε of its clients by the site's own receipts.

    The chain of receipts is verified: if a receipt was edited or removed, the exit code is 5. Only
    the head reveals that the last receipts were removed: compare it with a head recorded elsewhere.
    """
    from privfed.deploy.files.receipts import Receipts
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.policy import LocalPolicy

    folder = SiteFolder(directory)
    receipts = Receipts.load(folder.receipts)
    limit = LocalPolicy.read(folder.policy).budget
    if as_json:
        return print_json(receipts.to_json(limit))
    for line in _lines(receipts, limit):
        click.echo(line)
    return 0


@site.command("recover")
@SITE_FOLDER
@click.option(
    "--lost",
    is_flag=True,
    help="Without a witness: record that receipts were lost, so that no ε is known any more and "
    "this site answers no further run on this population.",
)
@answers_errors
def recover_command(directory: Path, lost: bool) -> int:
    """Restore receipts that a restored backup lacks, from their witness, or record their loss.

    Stop the site's agent first. The state of unfinished sums is lost: these sums count as dropouts.
    """
    from accounting.errors import LedgerBroken
    from privfed.core.errors import Busy
    from privfed.deploy.files.data_file import SiteTable
    from privfed.deploy.files.receipts import Receipts
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.files.witness import ReceiptsWitness
    from privfed.store.folders import held_alone

    folder = SiteFolder(directory)
    witness = SiteTable.read(folder.data).witness_path
    with held_alone(directory, Busy(f"an agent serves {directory}; stop it first")):
        copy = ReceiptsWitness(witness, folder.receipts) if witness else None
        try:
            if copy and folder.receipts.exists() and (damaged := copy.replace_damaged()):
                click.echo(
                    f"restored {folder.receipts} from {witness}; the damaged file is now {damaged}"
                )
                return 0
            if restored := copy.restore() if copy else 0:
                click.echo(f"restored {restored} lines of {folder.receipts} from {witness}")
                return 0
            receipts = Receipts.recover(folder.receipts)
        except LedgerBroken:
            if not lost:
                raise
            receipts = _begun_again(folder.receipts)
        if not lost:
            why = f"{witness} holds no further line" if witness else "data.toml names no witness"
            click.echo(
                f"nothing was restored: {why}. If the coordinator has answers that these receipts "
                "lack, and you can confirm that an older copy was restored, pass --lost"
            )
            return 2
        receipts.declare_lost()
        click.echo(
            "recorded that receipts were lost: no ε is known for this population, and this folder "
            "answers no further run. Begin a new folder with a new key, and lower its budget by "
            "the charges in the coordinator's ledgers"
        )
    return 0


def _begun_again(path: Path) -> Receipts:
    """Returns the receipts at `path`, to append to.

    If the file is damaged or missing, returns the receipts of a new empty file; the damaged file is
    renamed.
    """
    from accounting.errors import LedgerBroken
    from privfed.deploy.files.receipts import Receipts

    try:
        return Receipts.recover(path)
    except LedgerBroken:
        if path.exists():
            damaged = path.with_name(f"receipts.damaged.{path.stat().st_mtime_ns}")
            path.rename(damaged)
            click.echo(f"the damaged receipts are now {damaged}")
        path.touch(0o600)
        return Receipts.recover(path)


def _check_lines(checked: SiteCheck) -> Iterator[str]:
    from privfed.core.text import ceiling, number

    waits = checked.approval is not None and checked.approval.decision != "approved"
    yield f"policy   this site takes part{', once a person approves the run' if waits else ''}"
    yield f"table    {checked.clients:,} clients, {checked.rows:,} rows that are used"
    spent = f"ε = {ceiling(checked.epsilon)} of {number(checked.budget)}, δ = {checked.delta:g}"
    yield f"budget   {spent}, after this run and earlier answers"
    yield (
        f"time     the largest cohort of {checked.cohort:,} takes {checked.seconds:.2g} s, reading "
        f"the table {checked.reading:.2g} s, of {number(checked.deadline)} s"
    )
    if checked.approval is not None:
        until = f" until {checked.approval.until}" if checked.approval.until else ""
        yield f"approval {checked.approval.decision}{until}: {checked.approval.digest}"
    yield from (f"warning  {each}" for each in checked.warnings)


def _lines(receipts: Receipts, limit: SpendingLimit) -> Iterator[str]:
    from privfed.core.text import ceiling, number

    for run in receipts.runs:
        yield (
            f"run {run.run} of federation {run.federation[:16]}…: {run.rounds} rounds in "
            f"{run.exchanges} exchanges, the last {run.last_round}; charged for {run.charged}"
        )
    if not receipts.runs:
        yield "nothing was answered"
    bound, alone = receipts.guarantees(limit.delta)
    scope = "against the server with colluding sites" if alone else "over all runs"
    spent = f"ε = {ceiling(bound.epsilon)} of {number(limit.epsilon)}, δ = {bound.delta:g}"
    yield f"{spent}, {scope}"
    if receipts.runs:
        yield f"    {bound.sentence()}"
    if alone:
        yield f"ε = {ceiling(alone.epsilon)}, δ = {alone.delta:g}, if only this site is trusted"
    yield f"head {receipts.head}"
    if receipts.torn:
        yield (
            "the last line is incomplete after a crash: its request was never answered, so it does "
            "not count"
        )
