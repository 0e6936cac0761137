"""What a site's receipts of one run add up to, and which receipt may follow them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from accounting.errors import LedgerBroken
from accounting.events import Event, Spending, apart
from privfed.deploy.files.receipt import Commits, Receipt
from privfed.deploy.policies.codes import Code, Declined, Refusal
from privfed.plan.assumed import Assumed
from privfed.plan.prior_spending import Prior


@dataclass(frozen=True)
class AnsweredRun:
    """What was answered of one run."""

    federation: str
    run: str
    rounds: int
    exchanges: int
    last_round: int
    charged: int
    """How many rounds its clients were charged."""


def charged_here(
    spending: Spending, assumed: Assumed | None, against: str | None, now: Assumed
) -> Counter[Event]:
    """Recomputes `spending` of one run, `against` a party, for the adversary of `now`.

    Raises `Incomposable` where no bound is known.
    """
    prior = Prior("", "", "", apart(spending), against=against, assumed=assumed)
    return Counter(prior.under(now).spending)


@dataclass
class RunReceipts:
    """What the lines of one run add up to."""

    first: Receipt
    lines: dict[tuple[int, int], Receipt] = field(default_factory=dict)
    rounds: dict[int, Receipt] = field(default_factory=dict)
    events: Counter[tuple[Event, Event | None]] = field(default_factory=Counter)
    commits: int = 0
    """How often the party of the last exchange committed."""

    def take(self, receipt: Receipt) -> None:
        """Add a receipt that may follow."""
        self.refuse_replay(receipt)
        self.lines[receipt.place] = receipt
        self.commits = 0
        if receipt.round not in self.rounds:
            self.rounds[receipt.round] = receipt
            self.events[receipt.event, receipt.alone] += 1

    @property
    def last(self) -> tuple[int, int]:
        """The last round and exchange that were answered."""
        return next(reversed(self.lines))

    def spending(self, alone: bool, now: Assumed) -> Counter[Event]:
        """Counts of charged events, recomputed for the adversary of `now`, that add to other runs'.

        Raises `Incomposable` where no bound is known.
        """
        charged: Counter[Event] = Counter()
        for (event, other), count in self.events.items():
            charged[other if alone and other else event] += self.first.at_once or count
        return charged_here(charged, self.first.assumes, self._party(alone), now)

    def _party(self, alone: bool) -> str | None:
        """The party that charges are against; None where all but this site are one."""
        if self.first.alone is None:
            return None
        return "others" if alone else "sites"

    def refuse_replay(self, receipt: Receipt) -> None:
        """Raises `Declined` where `receipt` cannot follow the lines of its run."""
        first, where = self.first, f"run {receipt.run}, round {receipt.round}"
        if (first.federation, first.config) != (receipt.federation, receipt.config):
            reason = f"{where}: another federation or configuration than the run began with"
            raise Declined(Refusal(Code.RUN, reason))
        if receipt.place in self.lines:
            reason = f"{where}: exchange {receipt.exchange} was answered to another question"
            raise Declined(Refusal(Code.QUESTION, reason))
        if self.lines and receipt.place < self.last:
            last = "round {}, exchange {}".format(*self.last)
            raise Declined(Refusal(Code.ROUND, f"{where}: the run was answered up to {last}"))
        before = self.rounds.get(receipt.round, first if first.at_once else None)
        charged = before and (before.event, before.alone)
        other = charged is not None and charged != (receipt.event, receipt.alone)
        if other or receipt.at_once != first.at_once:
            raise Declined(Refusal(Code.RUN, f"{where}: another event than what was charged"))
        if first.at_once and receipt.round > first.at_once:
            raise Declined(Refusal(Code.ROUND, f"{where}: {first.at_once} rounds were charged"))

    def note(self, commits: Commits) -> None:
        """Add what the party of the last exchange committed. Raises `LedgerBroken` for another."""
        if not self.lines or commits.place != self.last or commits.count <= self.commits:
            raise LedgerBroken("states what a party committed before, or of another exchange")
        self.commits = commits.count
