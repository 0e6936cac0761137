"""A site's own ledger, `receipts.jsonl`: one line for each exchange, durable before the answer.

The lines are hash-chained (`accounting.chain`). Each states whose question it was (federation, run,
round, exchange), what was asked (digests of the model, of all bytes of the question, and of the
configuration), and the event that the round costs a client of this site: against the server with
colluding sites, and where nobody else is trusted (PRIVACY, section 9.6). No time, no count and
nothing of anybody's data is in it.

Order: a line is durable before coins are drawn, and the answer leaves after that. So a line that a
crash tore was never answered and nobody was drawn for it: it is cut off, and counts for nothing. A
line that is whole is spent, whatever became of its answer. All lines of a file are about the people
of one table: another table has a folder of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from accounting import chain, durable
from accounting.errors import AccountingError, LedgerBroken, Unaccountable
from accounting.events import Event, Spending, apart
from accounting.guarantee import Gate, Guarantee, guarantee, stated
from privfed.deploy.policies.codes import Code, Declined, Refusal
from privfed.deploy.policies.policy import SpendingLimit
from privfed.errors import Refused, public_text

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
    with the first (0: each round as it is answered).
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

    def __post_init__(self) -> None:
        digests = (self.federation, self.model, self.question, self.config)
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise Refused("a receipt's digests are 64 hexadecimal digits each")
        if not re.fullmatch(r"[\w.:-]{1,128}", self.run):
            raise Refused("a receipt's run is a word of at most 128 letters")
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
        return {**facts, "alone": self.alone.to_json() if self.alone else None}

    @classmethod
    def from_json(cls, link: Mapping[str, Any]) -> Receipt:
        """The receipt that a line states. Raises `LedgerBroken` where it states none."""
        if link.get("type") != "answer" or link.get("format") != FORMAT:
            raise LedgerBroken("is of a kind that this version of privfed does not know; update it")
        digests = ("federation", "model", "question", "config")
        names = (*digests, "run", "round", "exchange", "at_once")
        try:
            facts = {name: link[name] for name in names}
            alone = Event.from_json(link["alone"]) if link["alone"] is not None else None
            receipt = cls(**facts, event=Event.from_json(link["event"]), alone=alone)
        except (AccountingError, Refused, KeyError, TypeError) as error:
            raise LedgerBroken(f"is no receipt ({public_text(error)})") from error
        if {**receipt.to_json(), "hash": link["hash"]} != link:
            raise LedgerBroken("is no receipt (it has keys or values that none has)")
        return receipt


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


@dataclass
class _Run:
    """What the lines of one run add up to."""

    first: Receipt
    lines: dict[tuple[int, int], Receipt] = field(default_factory=dict)
    rounds: dict[int, Receipt] = field(default_factory=dict)
    events: Counter[tuple[Event, Event | None]] = field(default_factory=Counter)

    def take(self, receipt: Receipt) -> None:
        self.lines[receipt.place] = receipt
        if receipt.round not in self.rounds:
            self.rounds[receipt.round] = receipt
            self.events[receipt.event, receipt.alone] += 1

    @property
    def last(self) -> tuple[int, int]:
        return next(reversed(self.lines))

    def spending(self, alone: bool) -> Counter[Event]:
        """How often each event was charged, in a form that adds to other runs'."""
        charged: Counter[Event] = Counter()
        for (event, other), count in self.events.items():
            charged[other if alone and other else event] += self.first.at_once or count
        return Counter(apart(charged))


class Receipts:
    """The receipts in the file at `path`, which one process at a time appends to.

    Use `Receipts.load` to look, and `Receipts.recover` to go on.
    """

    def __init__(self, path: Path, links: Iterable[chain.Link], torn: bool = False) -> None:
        self.path = path
        self.torn = torn
        self.head = chain.START
        self._runs: dict[str, _Run] = {}
        self._heads: dict[Receipt, str] = {}
        self._gates: dict[SpendingLimit, Gate] = {}
        self._failed = False
        for number, link in enumerate(links, start=1):
            try:
                self._take(Receipt.from_json(link), link["hash"])
            except (Declined, LedgerBroken) as error:
                why = error.refusal.reason if isinstance(error, Declined) else error
                raise LedgerBroken(f"{path}, line {number}: {why}") from None
        self._size = path.stat().st_size

    @classmethod
    def load(cls, path: Path) -> Receipts:
        """Read and verify, changing nothing; a torn last line is left out.

        Raises `LedgerBroken` where the chain does not hold, or lines contradict each other.
        """
        try:
            links, torn = chain.read(path)
        except OSError as error:
            raise LedgerBroken(f"receipts cannot be read: {public_text(error)}") from error
        return cls(path, links, torn)

    @classmethod
    def recover(cls, path: Path) -> Receipts:
        """`load`, and cut a torn last line off, whose question was never answered."""
        receipts = cls.load(path)
        if receipts.torn:
            lines, newline, _ = path.read_bytes().rpartition(b"\n")
            mode = path.stat().st_mode & 0o777
            durable.write_atomically(path, lines + newline)
            path.chmod(mode)
            return cls.load(path)
        return receipts

    @property
    def runs(self) -> tuple[AnsweredRun, ...]:
        """What was answered, by run, oldest first."""
        return tuple(
            AnsweredRun(
                federation=run.first.federation,
                run=run.first.run,
                rounds=len(run.rounds),
                exchanges=len(run.lines),
                last_round=run.last[0],
                charged=run.first.at_once or len(run.rounds),
            )
            for run in self._runs.values()
        )

    def last(self, run: str) -> Receipt | None:
        """The last receipt of `run`; None where nothing of it was answered."""
        answered = self._runs.get(run)
        return answered.lines[answered.last] if answered else None

    def spending(self, alone: bool = False) -> Spending:
        """What a client of this site was charged over all runs.

        It is against the server with colluding sites, or `alone`, trusting this site only.
        """
        return sum((run.spending(alone) for run in self._runs.values()), Counter())

    def guarantees(self, delta: float) -> tuple[Guarantee, Guarantee | None]:
        """What holds for this site's clients at `delta`: with colluders, and trusting nobody else.

        The second is None where no line tells them apart.
        """
        both = any(each.alone for run in self._runs.values() for each in run.lines.values())
        bound = guarantee(self.spending(), delta)
        if not both:
            return bound, None
        alone = guarantee(self.spending(alone=True), delta)
        return replace(bound, against="sites"), replace(alone, against="others")

    def affords(self, limit: SpendingLimit, receipt: Receipt, rounds: int = 1) -> bool:
        """Whether what `receipt` charges stays within `limit`, by the composition of all runs.

        Epsilon against the server with colluding sites counts. `rounds` is how many more are
        expected, so that a run's rounds are not accounted for one by one.
        """
        run = self._runs.get(receipt.run)
        if run is not None and (run.first.at_once or receipt.round in run.rounds):
            return True
        gate = self._gates.setdefault(
            limit, Gate(limit.epsilon, limit.delta, "tightest", max(1, rounds))
        )
        total = Counter(self.spending())
        try:
            if not receipt.at_once:
                once = apart({receipt.event: 1})
                (event,) = once
                return gate.affords(total + Counter(once) - Counter({event: 1}), event)
            total.update(apart({receipt.event: receipt.at_once}))
            return guarantee(total, limit.delta).epsilon <= limit.epsilon
        except Unaccountable:  # of another unit or relation than before: no epsilon covers both
            return False

    def charged(self, receipt: Receipt, limit: SpendingLimit, rounds: int = 1) -> str:
        """Charge `receipt`, durably, before coins are drawn; returns the head after its line.

        The identical line is charged once: its head is returned again. Raises `Declined`, charging
        nothing, for any other question of an exchange that was answered, for a round or exchange
        at or before the run's last, for a run that goes on under another federation or
        configuration, and where it would spend more than `limit`. Raises `LedgerBroken` where
        another process wrote to the file, or an earlier line could not be written.
        """
        if self._failed or self.torn or self.path.stat().st_size != self._size:
            raise LedgerBroken(
                f"{self.path}: another process wrote to it, or a line could not be written; start "
                "the site again"
            )
        if (head := self._head_of(receipt)) is not None:
            return head
        self._refuse_replay(receipt)
        if not self.affords(limit, receipt, rounds):
            raise Declined(
                Refusal(
                    Code.BUDGET,
                    f"round {receipt.round} of run {receipt.run} would take epsilon above "
                    f"{limit.epsilon:g} at delta {limit.delta:g}, by this site's own count",
                )
            )
        line, link = chain.sealed(self.head, receipt.to_json())
        self._failed = True  # until the line is durable: a part of it may be in the file
        durable.append(self.path, line)
        self._take(receipt, link["hash"])
        self._size += len(line)
        self._failed = False
        return self.head

    def to_json(self, limit: SpendingLimit) -> dict[str, Any]:
        """The object that `privfed site receipts --json` prints."""
        bound, alone = self.guarantees(limit.delta)
        return {
            "runs": [asdict(run) for run in self.runs],
            "guarantees": stated(bound, alone) if self.runs else [],
            "budget": limit.model_dump(),
            "head": self.head,
            "torn": self.torn,
        }

    def _head_of(self, receipt: Receipt) -> str | None:
        """The head after the line of an identical receipt; None where there is none."""
        run = self._runs.get(receipt.run)
        return self._heads[receipt] if run and run.lines.get(receipt.place) == receipt else None

    def _refuse_replay(self, receipt: Receipt) -> None:
        """Raises `Declined` where `receipt` cannot follow the lines of its run."""
        run = self._runs.get(receipt.run)
        if run is None:
            return
        first, where = run.first, f"run {receipt.run}, round {receipt.round}"
        if (first.federation, first.config) != (receipt.federation, receipt.config):
            reason = f"{where}: another federation or configuration than the run began with"
            raise Declined(Refusal(Code.RUN, reason))
        if receipt.place in run.lines:
            reason = f"{where}: exchange {receipt.exchange} was answered to another question"
            raise Declined(Refusal(Code.QUESTION, reason))
        if receipt.place < run.last:
            last = "round {}, exchange {}".format(*run.last)
            raise Declined(Refusal(Code.ROUND, f"{where}: the run was answered up to {last}"))
        before = run.rounds.get(receipt.round, first if first.at_once else None)
        charged = before and (before.event, before.alone)
        other = charged is not None and charged != (receipt.event, receipt.alone)
        if other or receipt.at_once != first.at_once:
            raise Declined(Refusal(Code.RUN, f"{where}: another event than what was charged"))
        if first.at_once and receipt.round > first.at_once:
            raise Declined(Refusal(Code.ROUND, f"{where}: {first.at_once} rounds were charged"))

    def _take(self, receipt: Receipt, head: str) -> None:
        self._refuse_replay(receipt)
        self._runs.setdefault(receipt.run, _Run(receipt)).take(receipt)
        self.head = self._heads[receipt] = head
