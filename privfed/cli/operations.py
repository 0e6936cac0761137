"""The commands that operate a site: `privfed site status`, `pending`, `approve` and `decline`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import FILE, JSON, SITE_FOLDER, answers_errors, print_json
from privfed.core.errors import Refused

if TYPE_CHECKING:
    from privfed.deploy.files.approvals import Approvals
    from privfed.deploy.site.status import SiteStatus

DIGEST = click.argument("digest", metavar="DIGEST")


def _approvals(directory: Path) -> Approvals:
    """Returns the decisions of the site in `directory`. Raises `Refused` if it has no policy."""
    from privfed.deploy.files.approvals import Approvals
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.policy import LocalPolicy

    folder = SiteFolder(directory)
    LocalPolicy.read(folder.policy)
    return Approvals(folder.approvals)


@click.command("pending")
@SITE_FOLDER
@JSON
@answers_errors
def pending_command(directory: Path, as_json: bool) -> int:
    """List the declared runs, and the decision about each: pending, approved, declined, expired.

    A run is declined until it is approved if the policy has approve = "by_hand".
    """
    runs = list(_approvals(directory).all())
    if as_json:
        return print_json({"runs": [each.to_json() for each in runs]})
    for each in runs:
        until = f" until {each.until}" if each.decision == "approved" else ""
        since = f"declared {each.declared}" if each.declared else "not declared yet"
        click.echo(f"{each.digest}  {each.decision}{until}; {since}")
        if each.declared:
            click.echo(f"    {_summary(Path(each.run_file))}; run file {each.run_file}")
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
    """Approve all runs of a run file until a date, for a policy with approve = "by_hand".

    DIGEST covers the run file, the file of the model and the federation: privfed site check prints
    it, and privfed site pending lists it once a run was declared.
    """
    approvals = _approvals(directory)
    approval = approvals.of(approvals.decide(digest, "approved", days))
    click.echo(f"{approval.digest}  approved until {approval.until}")
    return 0


@click.command("decline")
@SITE_FOLDER
@DIGEST
@answers_errors
def decline_command(directory: Path, digest: str) -> int:
    """Decline a run, also one that was approved: its next exchange is not answered."""
    click.echo(f"{_approvals(directory).decide(digest, 'declined', 0.0)}  declined")
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

    The exit code is 2 if no agent answers, or a file of the site is invalid, and 5 if receipts are
    damaged or an older copy was restored; then the file for Prometheus is removed. Nothing printed
    depends on a row of the site's table.
    """
    from accounting.durable import write_atomically
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.deploy.site.agent import open_member
    from privfed.deploy.site.status import site_status

    try:
        status = site_status(open_member(SiteFolder(directory), alone=False))
    except Exception:
        if prometheus is not None:
            prometheus.unlink(missing_ok=True)
        raise
    if prometheus is not None:
        write_atomically(prometheus, status.prometheus().encode())
        prometheus.chmod(0o644)
    code = 0 if status.up else Refused.exit_code
    if as_json:
        return print_json(status.to_json(), code)
    for line in _status_lines(status):
        click.echo(line)
    return code


def _summary(run_file: Path) -> str:
    """Returns a line about a run file: rounds, epsilon, model or release, and columns."""
    from accounting import regular
    from accounting.documents import from_toml
    from privfed.core.text import visible

    try:
        document = from_toml(regular.read_text(run_file))
    except (OSError, ValueError):
        return "unreadable"
    run, data, model, privacy = (
        document.get(name, {}) for name in ("run", "data", "model", "privacy")
    )
    columns = [*data.get("features", ()), *data.get("dates", ()), *data.get("categories", ())]
    named = columns or [*data.get("columns", ()), *data.get("covariates", ())]
    facts = [
        f"{run.get('rounds', '?')} rounds",
        f"ε = {privacy.get('epsilon', 'not limited by the run')}",
        f"{data.get('source')} for the model {model.get('name')}",
        f"columns {', '.join(map(str, named)) or 'in the file'}",
    ]
    return visible(", ".join(facts))


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
