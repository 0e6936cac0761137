"""Lines of a site's file of receipts: charged exchanges, numbers of stored states, and losses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accounting import chain
from accounting.documents import Encoded
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import Event, Spending, summable
from privfed.core.errors import Refused, public_text
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.plan.assumed import Assumed
from privfed.plan.prior_spending import Prior

FORMAT = 1
_MOST_ROUNDS = 10**9
_DIGESTS = ("federation", "model", "question", "config")
_FORMS = (
    *((name, "[0-9a-f]{64}", "64 hexadecimal digits") for name in _DIGESTS),
    ("run", r"[\w.:-]{1,128}", "1 to 128 letters, digits and _ . : -"),
    ("population", r"[\w.:-]{0,128}", "at most 128 letters, digits and _ . : -"),
)
"""Field, regular expression of its value, and description of that expression."""


@dataclass(frozen=True)
class Receipt(Encoded):
    """One answered exchange, and the charge of its round.

    Attributes:
      federation: digest of the federation file. Digests are 64 hexadecimal digits.
      run: identifier of the run.
      round: round number, from 1.
      exchange: number of the exchange in its round, from 0; all exchanges share one cohort.
      model: digest of the model.
      question: digest of all bytes of the question, including the sum's invitation; a receipt
        therefore covers one sum only.
      config: digest of the configuration.
      event: the round's charge (privacy event) against a server that colludes with other sites.
      alone: the round's charge if only this site is trusted; None if it equals `event`.
      prepaid_rounds: number of rounds that the run's first receipt charges at once, because a
        client may be at several sites; 0 if each round is charged before its first answer.
      population: the site's name for the clients whose budget is charged.
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
        for name, pattern, expected in _FORMS:
            if not re.fullmatch(pattern, value := getattr(self, name)):
                raise Refused(f"{name} is {value!r} in a receipt; expected {expected}")
        for name in ("round", "exchange", "prepaid_rounds"):
            count = getattr(self, name)
            if type(count) is not int or not 0 <= count <= _MOST_ROUNDS:
                raise Refused(
                    f"{name} is {count!r} in a receipt; expected an integer from 0 to "
                    f"{_MOST_ROUNDS}"
                )

    @property
    def place(self) -> tuple[int, int]:
        """(round, exchange) of the receipt."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object of the receipt's line, without the key "hash"."""
        return {**super().to_json(), "type": "answer", "format": FORMAT}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Receipt:
        """Parses the receipt in a line. Raises `LedgerBroken` if the line is no valid receipt."""
        if link.get("type") != "answer" or link.get("format") != FORMAT:
            raise LedgerBroken(
                "is of a kind that this version of privfed does not know; update privfed"
            )
        names = (*_DIGESTS, "run", "round", "exchange", "prepaid_rounds", "population")
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
    """The number of states that a site's party (participant in a sum) has stored in an exchange.

    Each stored state is a commit. A state with fewer commits is a restored older one: from it, the
    party could answer the exchange twice.
    """

    run: str
    round: int
    exchange: int
    count: int

    @property
    def place(self) -> tuple[int, int]:
        """(round, exchange) in which the states were stored."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object of the line, without the key "hash"."""
        return {**super().to_json(), "type": "commits", "format": FORMAT}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Commits:
        """Parses a line of type `commits`. Raises `LedgerBroken` if the line is invalid."""
        numbers = ("round", "exchange", "count")
        facts: dict[str, Any] = {name: link.get(name) for name in ("run", *numbers)}
        counted = all(type(facts[name]) is int for name in numbers)
        named = isinstance(facts["run"], str)
        if not (counted and named) or {*link} != {*facts, "type", "format", "hash"}:
            raise LedgerBroken("does not state a party's number of commits")
        return cls(**facts)


@dataclass(frozen=True)
class Lost(Encoded):
    """States that receipts were lost, so that no bound on the clients' epsilon is known."""

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object of the line, without the key "hash"."""
        return {"type": "lost", "format": FORMAT}


Line = Receipt | Commits | Lost
"""A line of the file of receipts."""


def read_line(link: chain.Link) -> Line:
    """Parses a line of the file of receipts. Raises `LedgerBroken` if it is invalid."""
    if {**link, "hash": ""} == {**Lost().to_json(), "hash": ""}:
        return Lost()
    if link.get("format") == FORMAT and link.get("type") == "commits":
        return Commits.from_json(link)
    return Receipt.from_json(link)


@dataclass(frozen=True)
class AnsweredRun:
    """Summary of a site's answers to one run: the `rounds` and `exchanges` that it answered."""

    federation: str
    run: str
    rounds: int
    exchanges: int
    last_round: int
    charged: int
    """The number of rounds that were charged to the clients."""


def charges_restated(
    spending: Spending, assumed: Assumed | None, against: str | None, now: Assumed
) -> Counter[Event]:
    """Returns the charges of one run as counts of events that hold against another adversary.

    Args:
      spending: counts of the charged events.
      assumed: adversary that the events hold against; None if the receipts do not state it.
      against: "sites" for events against a server that colludes with other sites, "others" for
        events if only this site is trusted; None if the run charged the same event for both.
      now: adversary for which the events are restated.

    Raises:
      Incomposable: if no bound against `now` is known.
    """
    prior = Prior("", "", "", summable(spending), against=against, assumed=assumed)
    return Counter(prior.under(now).spending)


@dataclass
class RunReceipts:
    """All lines of one run in a site's receipts.

    Attributes:
      first: the first receipt.
      lines: the receipts by (round, exchange), oldest first.
      rounds: the first receipt of each round.
      events: number of rounds for each pair of charges (`Receipt.event`, `Receipt.alone`).
    """

    first: Receipt
    lines: dict[tuple[int, int], Receipt] = field(default_factory=dict)
    rounds: dict[int, Receipt] = field(default_factory=dict)
    events: Counter[tuple[Event, Event | None]] = field(default_factory=Counter)
    commits: int = 0
    """The number of states that the party of the last exchange's sum stored."""

    def take(self, receipt: Receipt) -> None:
        """Adds a receipt, and sets `commits` to 0. Raises `Declined` as `refuse_replay` does."""
        self.refuse_replay(receipt)
        self.lines[receipt.place] = receipt
        self.commits = 0
        if receipt.round not in self.rounds:
            self.rounds[receipt.round] = receipt
            self.events[receipt.event, receipt.alone] += 1

    @property
    def last(self) -> tuple[int, int]:
        """(round, exchange) of the last receipt."""
        return next(reversed(self.lines))

    def spending(self, alone: bool, now: Assumed) -> Counter[Event]:
        """Returns the charges as counts of events that hold against the adversary `now`.

        All prepaid rounds are counted, if any.

        Args:
          alone: whether to count the events that hold if only this site is trusted.
          now: the adversary.

        Raises:
          Incomposable: if no bound against `now` is known.
        """
        charged: Counter[Event] = Counter()
        for (event, other), count in self.events.items():
            charged[other if alone and other else event] += self.first.prepaid_rounds or count
        return charges_restated(charged, self.first.assumes, self._party(alone), now)

    def _party(self, alone: bool) -> str | None:
        """Returns the argument `against` of `charges_restated` for this run's events."""
        if self.first.alone is None:
            return None
        return "others" if alone else "sites"

    def refuse_replay(self, receipt: Receipt) -> None:
        """Raises `Declined` if `receipt` cannot follow the earlier receipts of its run.

        It cannot if its exchange was answered or precedes the last one, if its federation,
        configuration or number of prepaid rounds differs from the first receipt's, if its charge
        differs from that of its round (or of all prepaid rounds), or if rounds are prepaid and its
        round is a later one.
        """
        first, where = self.first, f"run {receipt.run}, round {receipt.round}"
        if (first.federation, first.config) != (receipt.federation, receipt.config):
            reason = f"{where}: its federation or configuration differs from the run's first round"
            raise Declined(Refusal(Code.RUN, reason))
        if receipt.place in self.lines:
            reason = f"{where}: exchange {receipt.exchange} already answered another question"
            raise Declined(Refusal(Code.QUESTION, reason))
        if self.lines and receipt.place < self.last:
            last = "round {}, exchange {}".format(*self.last)
            raise Declined(Refusal(Code.ROUND, f"{where}: the site already answered {last}"))
        before = self.rounds.get(receipt.round, first if first.prepaid_rounds else None)
        charged = before and (before.event, before.alone)
        other = charged is not None and charged != (receipt.event, receipt.alone)
        if other or receipt.prepaid_rounds != first.prepaid_rounds:
            raise Declined(Refusal(Code.RUN, f"{where}: its event differs from the charged one"))
        if first.prepaid_rounds and receipt.round > first.prepaid_rounds:
            raise Declined(
                Refusal(Code.ROUND, f"{where}: only {first.prepaid_rounds} rounds were charged")
            )

    def note(self, commits: Commits) -> None:
        """Records the number of states that the site's party stored in the last exchange.

        Raises `LedgerBroken` if `commits` is of another exchange, or does not exceed the recorded
        number.
        """
        if not self.lines or commits.place != self.last or commits.count <= self.commits:
            raise LedgerBroken("states commits of an earlier state, or of another exchange")
        self.commits = commits.count
