"""One line of a site's receipts: an answered question and its charge."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accounting import chain
from accounting.documents import Encoded
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import Event, Spending, apart
from privfed.core.errors import Refused, public_text
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.plan.assumed import Assumed
from privfed.plan.prior_spending import Prior

FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_ROUNDS = 10**9


@dataclass(frozen=True)
class Receipt(Encoded):
    """One answered exchange, and the charge of its round.

    Attributes:
      federation: digest of the federation file, 64 hexadecimal digits, as all digests.
      run: name of the run.
      round: round number.
      exchange: number of the exchange; all exchanges of a round share one cohort.
      model: digest of the model.
      question: digest of all bytes of the question, including the sum's invitation, so that a
        receipt covers no second sum.
      config: digest of the configuration.
      event: event of the round against the server with colluding sites.
      alone: event of the round if only this site is trusted; None if it is the same.
      prepaid_rounds: number of rounds charged with the first, if clients are at several sites and
        every round of the run counts; 0 if each round is charged as it is answered.
      population: the site's name for the clients that are charged.
    """

    federation: str
    run: str
    round: int
    exchange: int
    model: str
    question: str
    config: str
    event: Event
    alone: Event | None = None
    prepaid_rounds: int = 0
    population: str = ""
    assumes: Assumed | None = None
    """The adversary that `event` holds against; None if a receipt does not state it."""

    def __post_init__(self) -> None:
        digests = (self.federation, self.model, self.question, self.config)
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise Refused("a receipt's digests are 64 hexadecimal digits each")
        if not re.fullmatch(r"[\w.:-]{1,128}", self.run):
            raise Refused("a receipt's run is a word of at most 128 letters")
        if not re.fullmatch(r"[\w.:-]{0,128}", self.population):
            raise Refused("a receipt's population is a word of at most 128 letters")
        counts = (self.round, self.exchange, self.prepaid_rounds)
        if not all(type(count) is int and 0 <= count <= _MOST_ROUNDS for count in counts):
            raise Refused("a receipt's round, exchange and prepaid_rounds are integers from 0")

    @property
    def place(self) -> tuple[int, int]:
        """The receipt's round and exchange."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """Returns the line's object, without its hash."""
        return {**super().to_json(), "type": "answer", "format": FORMAT}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Receipt:
        """Parses the receipt in a line. Raises `LedgerBroken` if there is none."""
        if link.get("type") != "answer" or link.get("format") != FORMAT:
            raise LedgerBroken(
                "is of a kind that this version of privfed does not know; update privfed"
            )
        digests = ("federation", "model", "question", "config")
        names = (*digests, "run", "round", "exchange", "prepaid_rounds", "population")
        try:
            facts = {name: link[name] for name in names}
            alone = Event.from_json(link["alone"]) if link["alone"] is not None else None
            assumes = Assumed.from_json(link.get("assumes"))
            event = Event.from_json(link["event"])
            receipt = cls(**facts, event=event, alone=alone, assumes=assumes)
        except (
            AccountingError,
            Refused,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise LedgerBroken(f"is no receipt ({public_text(error)})") from error
        if {**receipt.to_json(), "hash": link["hash"]} != {"assumes": None, **link}:
            raise LedgerBroken("is no receipt (it has unknown keys or values)")
        return receipt


@dataclass(frozen=True)
class Commits(Encoded):
    """The number of states that a party had committed when it answered an exchange.

    The number reveals a state that is missing or was rolled back; from such a state the party could
    answer twice.
    """

    run: str
    round: int
    exchange: int
    count: int

    @property
    def place(self) -> tuple[int, int]:
        """The round and exchange."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """Returns the line's object, without its hash."""
        return {**super().to_json(), "type": "commits", "format": FORMAT}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Commits:
        """Parses a line of commits. Raises `LedgerBroken` for another line."""
        numbers = ("round", "exchange", "count")
        facts: dict[str, Any] = {name: link.get(name) for name in ("run", *numbers)}
        counted = all(type(facts[name]) is int for name in numbers)
        named = isinstance(facts["run"], str)
        if not (counted and named) or {*link} != {*facts, "type", "format", "hash"}:
            raise LedgerBroken("does not state a party's number of commits")
        return cls(**facts)


def read_line(link: chain.Link) -> Receipt | Commits:
    """Parses a line of receipts. Raises `LedgerBroken`."""
    if link.get("format") == FORMAT and link.get("type") == "commits":
        return Commits.from_json(link)
    return Receipt.from_json(link)


@dataclass(frozen=True)
class AnsweredRun:
    """Summary of the answers to one run."""

    federation: str
    run: str
    rounds: int
    exchanges: int
    last_round: int
    charged: int
    """The number of rounds charged to its clients."""


def charged_here(
    spending: Spending, assumed: Assumed | None, against: str | None, now: Assumed
) -> Counter[Event]:
    """Recomputes one run's `spending` (`against` a party) for the adversary of `now`.

    Raises:
      Incomposable: if no bound is known.
    """
    prior = Prior("", "", "", apart(spending), against=against, assumed=assumed)
    return Counter(prior.under(now).spending)


@dataclass
class RunReceipts:
    """The accumulated lines of one run."""

    first: Receipt
    lines: dict[tuple[int, int], Receipt] = field(default_factory=dict)
    rounds: dict[int, Receipt] = field(default_factory=dict)
    events: Counter[tuple[Event, Event | None]] = field(default_factory=Counter)
    commits: int = 0
    """The number of commits by the party of the last exchange."""

    def take(self, receipt: Receipt) -> None:
        """Adds a receipt, if it may follow. Raises `Declined` otherwise."""
        self.refuse_replay(receipt)
        self.lines[receipt.place] = receipt
        self.commits = 0
        if receipt.round not in self.rounds:
            self.rounds[receipt.round] = receipt
            self.events[receipt.event, receipt.alone] += 1

    @property
    def last(self) -> tuple[int, int]:
        """The last answered round and exchange."""
        return next(reversed(self.lines))

    def spending(self, alone: bool, now: Assumed) -> Counter[Event]:
        """Returns the counts of charged events, recomputed for `now`, for a sum over runs.

        Raises:
          Incomposable: if no bound is known.
        """
        charged: Counter[Event] = Counter()
        for (event, other), count in self.events.items():
            charged[other if alone and other else event] += self.first.prepaid_rounds or count
        return charged_here(charged, self.first.assumes, self._party(alone), now)

    def _party(self, alone: bool) -> str | None:
        """Returns the party that charges are against; None if there is no distinction."""
        if self.first.alone is None:
            return None
        return "others" if alone else "sites"

    def refuse_replay(self, receipt: Receipt) -> None:
        """Raises `Declined` if `receipt` cannot follow the lines of its run."""
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
        before = self.rounds.get(receipt.round, first if first.prepaid_rounds else None)
        charged = before and (before.event, before.alone)
        other = charged is not None and charged != (receipt.event, receipt.alone)
        if other or receipt.prepaid_rounds != first.prepaid_rounds:
            raise Declined(Refusal(Code.RUN, f"{where}: another event than was charged"))
        if first.prepaid_rounds and receipt.round > first.prepaid_rounds:
            raise Declined(
                Refusal(Code.ROUND, f"{where}: {first.prepaid_rounds} rounds were charged")
            )

    def note(self, commits: Commits) -> None:
        """Adds the commits of the last exchange's party. Raises `LedgerBroken` for another."""
        if not self.lines or commits.place != self.last or commits.count <= self.commits:
            raise LedgerBroken("states commits of an earlier state, or of another exchange")
        self.commits = commits.count
