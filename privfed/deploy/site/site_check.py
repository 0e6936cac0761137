"""Checks for a site's operator whether the site would take part in a run, and computes its ε.

No data are sent from the site, and nothing is charged.
"""

from __future__ import annotations

import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accounting.documents import Encoded
from accounting.guarantee import guarantee
from privfed.config.config import Config
from privfed.core.errors import Refused, public_text
from privfed.deploy.files.approvals import Approval
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.deploy.site.joining import Membership
from privfed.deploy.site.policy import Code, Declined, LocalPolicy, Refusal, SpendingLimit
from privfed.deploy.site.population import about, readable_examples, site_population
from privfed.deploy.site.site_setup import largest_cohort, site_config
from privfed.deploy.site.user_modules import outside_part
from privfed.plan.assumptions import Incomposable
from privfed.run.prepare import streams_of
from privfed.run.setup import Setup


@dataclass(frozen=True)
class SiteCheck(Encoded):
    """The result of the check of a run in which a site would take part.

    Attributes:
      clients: number of clients in the site's table; private.
      rows: number of these clients' rows that are used; private.
      epsilon: epsilon at `delta` of all charges in the site's receipts and of the whole run.
      budget: the site's largest epsilon.
      delta: the site's delta.
      cohort: size of the largest cohort that may be sampled here.
      seconds: seconds that this machine takes for the slowest sum over that cohort.
      reading: seconds that this machine takes to read the table.
      deadline: `secure.deadline` of the run, in seconds.
      approval: the operator's decision about the run; None if the policy requires none.
    """

    clients: int
    rows: int
    epsilon: float
    budget: float
    delta: float
    cohort: int
    seconds: float
    reading: float
    deadline: float
    approval: Approval | None = None
    warnings: tuple[str, ...] = ()
    """Problems that should be fixed, but are no reason to decline."""


def check_site(member: Membership, run: Path) -> SiteCheck:
    """Returns the result of the check of a run against a site's table, policy and machine.

    Args:
      member: the site.
      run: the run file.

    Raises:
      Refused: if a file is invalid, the site would decline the run, its table cannot be read as
        the run declares, or in data.toml `clients` is too small, or `reading` is less than twice
        the time that reading takes.
    """
    try:
        return _checked(member, run)
    except Declined as declined:
        reason = declined.refusal  # of public facts
    raise Refused(f"this site declines {run}: {reason.code}: {reason.reason}")


def _checked(member: Membership, run: Path) -> SiteCheck:
    policy, table = LocalPolicy.read(member.folder.policy), SiteTable.read(member.folder.data)
    text = _text(run)
    if reason := outside_part(policy, text):
        raise Declined(reason)
    config = site_config(text, table)
    began = time.perf_counter()
    try:
        examples = config.source.load(config.data.clients, streams_of(config))
    except Refused as error:
        raise _by_cause(config, table, error) from None
    form = ExampleForm.of(examples)
    clients = site_population(examples, config, table, form, member.key.name)
    reading = time.perf_counter() - began
    _, setup = member.accepted(text, form, None)
    if clients.clients > table.clients:
        raise Refused(
            f"clients is {table.clients} in {member.folder.data}, but the table has more clients; "
            "raise clients there"
        )
    if 2 * reading > table.reading:
        raise Refused(
            f"reading is {table.reading:g} s in {member.folder.data}, but the table takes "
            f"{reading:.2g} s, and longer if rows are unreadable; set reading to at least "
            f"{4 * reading:.2g}"
        )
    limit, by_hand = policy.budget, policy.require.approve == "by_hand"
    return SiteCheck(
        clients=clients.clients,
        rows=len(clients.examples),
        epsilon=_spent(member, setup, limit),
        budget=limit.epsilon,
        delta=limit.delta,
        cohort=largest_cohort(setup, table.clients),
        reading=reading,
        seconds=member.rehearsed(table, setup),
        deadline=config.secure.deadline,
        approval=member.approval(setup.plan.config) if by_hand else None,
        warnings=tuple(_open_table(Path(table.path))),
    )


def _spent(member: Membership, setup: Setup, limit: SpendingLimit) -> float:
    """Returns epsilon of the site's receipts and of all rounds of the run, at the site's delta.

    Raises `Declined` if it exceeds the site's budget, or if no joint bound is known.
    """
    plan = setup.plan
    party = "sites" if plan.other is not None else None
    try:
        before, following = member.receipts.following(
            plan.spending(plan.config.run.rounds), plan.assumed, party
        )
    except Incomposable as error:
        raise Declined(
            Refusal(
                Code.BUDGET,
                "budget.epsilon cannot be checked, since the run and the runs answered before have "
                f"no joint guarantee ({error}); the run has to use another mechanism or threat",
            )
        ) from None
    charges = Counter(before) + Counter(following)
    spent = guarantee(charges, limit.delta).epsilon
    if spent > limit.epsilon:
        reason = (
            f"budget.epsilon is {limit.epsilon:g}, but with this site's receipts the whole run "
            f"would raise epsilon to {spent:.4g}"
        )
        raise Declined(Refusal(Code.BUDGET, reason))
    return spent


def _open_table(path: Path) -> Iterator[str]:
    """Yields a warning if users who are neither owner nor in the group of the table have access."""
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o007:
        yield (
            f"{path} has mode {mode:o}, which gives other users of this machine access; set it to "
            "600 or 640 (chmod)"
        )


def _by_cause(config: Config, table: SiteTable, error: Refused) -> Refused:
    """Returns a `Refused` that states, for each cause, the number of clients with unreadable rows.

    Returns `error` itself if no client has unreadable rows. Raises what `readable_examples` raises.
    """
    read = readable_examples(config.parts["source"], table)
    if not read.causes:
        return error
    clients = read.left_out + len(read.examples.clients)
    row = re.search(r", (row \d+)", public_text(error))
    first = f"\nThe first unreadable row is {row[1]}" if row else ""
    return Refused(
        f"{table.path}: {about(read.left_out)} of {clients:,} clients have unreadable rows. An "
        f"agent would leave them out of every sum; correct their rows, or [data] in the run file:\n"
        f"{read.reason}{first}",
        private=error.private,
        key=error.key,
    )


def _text(run: Path) -> str:
    try:
        return run.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Refused(f"{run} does not exist; expected a run file (TOML)") from error
    except (OSError, ValueError) as error:
        raise Refused(
            f"{str(run)!r} cannot be read: {public_text(error)}; expected a run file (TOML)"
        ) from error
