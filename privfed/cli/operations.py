"""The commands that operate a site: `privfed site status`, `pending`, `approve` and `decline`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import FILE, JSON, SITE_FOLDER, answers_errors, print_json
from privfed.core.errors import Refused

if TYPE_CHECKING:
    from privfed.deploy.site.status import SiteStatus

DIGEST = click.argument("digest", metavar="DIGEST")


@click.command("pending")
@SITE_FOLDER
@JSON
@answers_errors
def pending_command(directory: Path, as_json: bool) -> int:
    """List the declared runs, and the decision about each: pending, approved, declined, expired.

    A run is declined until it is approved if the policy has approve = "by_hand".
    """
    from privfed.deploy.files.approvals import Approvals
    from privfed.deploy.files.site_folder import SiteFolder

    runs = list(Approvals(SiteFolder(directory).approvals).all())
    if as_json:
        return print_json({"runs": [each.to_json() for each in runs]})
    for each in runs:
        until = f" until {each.until}" if each.decision == "approved" else ""
        since = f"declared {each.declared}" if each.declared else "not declared yet"
        click.echo(f"{each.digest}  {each.decision}{until}; {since}")
        if each.declared:
            click.echo(f"    run file {each.run_file}")
    if not runs:
        click.echo("no run was declared or approved")
    return 0


@click.command("approve")
@SITE_FOLDER
@DIGEST
@click.option(
    "--days",
    type=click.FloatRange(0, 3650, min_open=True),
    default=30.0,
    show_default=True,
    help="Days until the approval ends.",
)
@answers_errors
def approve_command(directory: Path, digest: str, days: float) -> int:
    """Approve a run, for a policy with approve = "by_hand".

    DIGEST covers the run file and the file of the model: privfed site check prints it, and privfed
    site pending lists it once the run was declared.
    """
    from privfed.deploy.files.approvals import Approvals
    from privfed.deploy.files.site_folder import SiteFolder

    approvals = Approvals(SiteFolder(directory).approvals)
    approval = approvals.of(approvals.decide(digest, "approved", days))
    click.echo(f"{approval.digest}  approved until {approval.until}")
    return 0


@click.command("decline")
@SITE_FOLDER
@DIGEST
@answers_errors
def decline_command(directory: Path, digest: str) -> int:
    """Decline a run, also one that was approved: its next exchange is not answered."""
    from privfed.deploy.files.approvals import Approvals
    from privfed.deploy.files.site_folder import SiteFolder

    approvals = Approvals(SiteFolder(directory).approvals)
    click.echo(f"{approvals.decide(digest, 'declined', 0.0)}  declined")
    return 0


@click.command("status")
@SITE_FOLDER
@JSON
@click.option(
    "--prometheus",
    type=FILE,
    metavar="FILE",
    help="Write the status to this file, for the textfile collector of Prometheus' node exporter.",
)
@answers_errors
def status_command(directory: Path, as_json: bool, prometheus: Path | None) -> int:
    """Print whether the site's agent answers, the ε spent and left, and what was declined.

    The exit code is 2 if no agent answers. Nothing printed depends on the site's table.
    """
    from accounting.durable import write_atomically
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.status import site_status

    status = site_status(SiteFolder(directory))
    if prometheus is not None:
        write_atomically(prometheus, status.prometheus().encode())
        prometheus.chmod(0o644)
    code = 0 if status.up else Refused.exit_code
    if as_json:
        return print_json(status.to_json(), code)
    for line in _status_lines(status):
        click.echo(line)
    return code


def _status_lines(status: SiteStatus) -> Iterator[str]:
    from privfed.core.text import ceiling, number, utc

    agent = "up" if status.up else "down"
    yield f"agent    {agent}: {status.site} of the federation {status.federation}"
    spent = f"ε = {ceiling(status.epsilon)} of {number(status.budget)}, δ = {status.delta:g}"
    yield f"budget   {spent}, for {status.population}"
    yield f"answers  {status.answers:,} exchanges of {status.runs:,} runs"
    if status.last_run:
        when = utc(status.last_answer)
        yield f"last     round {status.last_round} of run {status.last_run[:16]}…, {when}"
    if status.pending:
        yield f"pending  {status.pending} to approve by hand: privfed site pending DIR"
    declined = ", ".join(f"{code} {count}" for code, count in status.declined.items() if count)
    yield f"declined {declined or 'no message'}"
