"""One line of a site's receipts: what was answered, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting import chain
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import Event
from privfed.errors import Refused, public_text
from privfed.plan.assumed import Assumed

FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_ROUNDS = 10**9


@dataclass(frozen=True)
class Receipt:
    """One answered exchange, and what its round is charged.

    `federation`, `model`, `question` and `config` are digests, 64 hexadecimal digits: `question` is
    of all bytes that were asked, the invitation to the sum too, so that no second sum is answered
    by the receipt of the first. `event` is against the
    server with colluding sites, and `alone` trusts this site only; None where they are one. All
    exchanges of a round are of one cohort, and the event is that of the round. `at_once`: where
    clients are at several sites, every round of the run counts, and all so many of them are charged
    with the first (0: each round as it is answered). `population` is what the site calls the people
    who are charged.
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
    at_once: int = 0
    population: str = ""
    assumes: Assumed | None = None
    """The adversary that `event` holds against; None where a receipt does not state it."""

    def __post_init__(self) -> None:
        digests = (self.federation, self.model, self.question, self.config)
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise Refused("a receipt's digests are 64 hexadecimal digits each")
        if not re.fullmatch(r"[\w.:-]{1,128}", self.run):
            raise Refused("a receipt's run is a word of at most 128 letters")
        if not re.fullmatch(r"[\w.:-]{0,128}", self.population):
            raise Refused("a receipt's population is a word of at most 128 letters")
        counts = (self.round, self.exchange, self.at_once)
        if not all(type(count) is int and 0 <= count <= _MOST_ROUNDS for count in counts):
            raise Refused("a receipt's round, exchange and at_once are whole numbers from 0")

    @property
    def place(self) -> tuple[int, int]:
        """Where in its run it stands."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """The line's object, without its hash."""
        facts = {**asdict(self), "event": self.event.to_json(), "type": "answer", "format": FORMAT}
        facts["alone"] = self.alone.to_json() if self.alone else None
        facts["assumes"] = self.assumes.to_json() if self.assumes else None
        return facts

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Receipt:
        """The receipt that a line states. Raises `LedgerBroken` where it states none."""
        if link.get("type") != "answer" or link.get("format") != FORMAT:
            raise LedgerBroken("is of a kind that this version of privfed does not know; update it")
        digests = ("federation", "model", "question", "config")
        names = (*digests, "run", "round", "exchange", "at_once", "population")
        try:
            facts = {name: link[name] for name in names}
            alone = Event.from_json(link["alone"]) if link["alone"] is not None else None
            assumes = Assumed.from_json(link.get("assumes"))
            event = Event.from_json(link["event"])
            receipt = cls(**facts, event=event, alone=alone, assumes=assumes)
        except (AccountingError, Refused, KeyError, TypeError) as error:
            raise LedgerBroken(f"is no receipt ({public_text(error)})") from error
        if {**receipt.to_json(), "hash": link["hash"]} != {"assumes": None, **link}:
            raise LedgerBroken("is no receipt (it has keys or values that none has)")
        return receipt


@dataclass(frozen=True)
class Commits:
    """How often the party of an answered exchange had committed its state before it answered.

    An older state of it, or none, is then one that was rolled back, from which it would answer
    twice.
    """

    run: str
    round: int
    exchange: int
    count: int

    @property
    def place(self) -> tuple[int, int]:
        """Where in its run the exchange stands."""
        return self.round, self.exchange

    def to_json(self) -> dict[str, Any]:
        """The line's object, without its hash."""
        return {**asdict(self), "type": "commits", "format": FORMAT}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Commits:
        """What a line states. Raises `LedgerBroken` where that is nothing of the kind."""
        numbers = ("round", "exchange", "count")
        facts: dict[str, Any] = {name: link.get(name) for name in ("run", *numbers)}
        counted = all(type(facts[name]) is int for name in numbers)
        if not counted or {*link} != {*facts, "type", "format", "hash"}:
            raise LedgerBroken("does not state what a party committed")
        return cls(**facts)


def read_line(link: chain.Link) -> Receipt | Commits:
    """What a line of receipts states. Raises `LedgerBroken`."""
    if link.get("format") == FORMAT and link.get("type") == "commits":
        return Commits.from_json(link)
    return Receipt.from_json(link)
