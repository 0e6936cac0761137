"""The ledger: every release of a run, charged before it happens.

A file of hash-chained lines (`accounting.chain`): one `open` line that states the meaning of the
guarantee (and the spending of earlier runs over the same population), one `define` line per
distinct event, one `charge` line per round. A change of the budget during a run is stated by a
further `define` line of the run's own event with a `budget`. Older versions read that line as an
event that is never charged. The ledger holds only rules (the sampling rate, never the cohort), so
publishing the ledger reveals nothing about clients. The ledger holds everything that an accountant
needs, so epsilon can be recomputed from it years later.

The head may be stored in a separate file (`accounting.heads`), by which truncation is detected.

Guarantee: a charge is durable before `charge` returns, and a charged round is spent whether or not
it was ever released. A crash can therefore only overstate the spending.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from accounting import chain, durable, regular
from accounting.choosing.choice import Choice
from accounting.documents import budget_value, written
from accounting.errors import AccountingError, BudgetExceeded, LedgerBroken
from accounting.events import Event, Spending
from accounting.heads import Head, HeadsFile, place_of
from accounting.noises import number

if TYPE_CHECKING:
    from accounting.guarantee import Gate

FORMAT = 1
ILL_FORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that Python raises for content of an unexpected form."""


@dataclass(frozen=True)
class BudgetChange:
    """A change of the budget from `before` to `epsilon`, effective from `round` on."""

    round: int
    before: float
    epsilon: float


@dataclass(frozen=True)
class Charge:
    """The charge of `event` to `round`. `hash` is the ledger's head after it; releases state it."""

    round: int
    event: Event
    hash: str


class Ledger:
    """An append-only ledger at `path`. Use `Ledger.create`, `Ledger.load` or `Ledger.recover`."""

    def __init__(self, path: Path, links: list[chain.Link]) -> None:
        self.path = path
        self.gate: Gate | None = None
        self.heads_file: HeadsFile | None = None
        self.reexecutes = False
        self._failed = False
        self._events: list[Event] = []
        self._charges: list[Charge] = []
        self._budgets: list[BudgetChange] = []
        self._prior: Counter[Event] = Counter()
        self._counts: Counter[Event] = Counter()
        self.counts: Spending = MappingProxyType(self._counts)  # charges of each event
        self._choice = Choice()
        self._hashes: list[str] = []
        self._terms: Mapping[str, Any] = {}
        for line, link in enumerate(links, start=1):
            try:
                self._take(link)
            except (AccountingError, *ILL_FORMED) as error:
                raise LedgerBroken(f"{path}, line {line}: {error}") from error

    @classmethod
    def create(cls, path: Path, terms: Mapping[str, Any]) -> Ledger:
        """Creates a ledger whose first line states `terms` (delta, unit, arithmetic, …).

        Raises `FileExistsError` if the file exists: a ledger is never started twice.
        """
        line, link = chain.sealed(
            chain.START, {"type": "open", "format": FORMAT, "terms": written(terms)}
        )
        durable.create(path, line)
        return cls(path, [link])

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Reads and verifies a ledger without changing it. Raises `LedgerBroken` if it is invalid.

        An incomplete last line counts as a charge of the most expensive event that the ledger
        defines. It is ignored if none is defined, and in seeded simulations, which charge it again.
        """
        links, torn = chain.read(path)
        ledger = cls(path, links)
        if torn and ledger._counts_torn:
            ledger._take(ledger._charge_of_a_torn_line()[1])
        return ledger

    @classmethod
    def recover(cls, path: Path) -> Ledger:
        """Loads a ledger; an incomplete last line becomes the charge that `load` counts, if any."""
        links, torn = chain.read(path)
        ledger = cls(path, links)
        if torn:
            lines, newline, _ = regular.read_bytes(path).rpartition(b"\n")
            line, link = ledger._charge_of_a_torn_line() if ledger._counts_torn else (b"", None)
            durable.write_atomically(path, lines + newline + line)
            if link is not None:
                ledger._take(link)
        return ledger

    @property
    def opened(self) -> bool:
        """Whether the first line is complete; otherwise nothing can have been charged."""
        return bool(self._hashes)

    @property
    def terms(self) -> Mapping[str, Any]:
        """Terms stated by the first line, of type "open"; empty if it is incomplete."""
        return MappingProxyType(dict(self._terms))

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge, oldest first."""
        return tuple(self._charges)

    @property
    def budgets(self) -> tuple[BudgetChange, ...]:
        """Every change of the budget, oldest first."""
        return tuple(self._budgets)

    @property
    def budget(self) -> float | None:
        """Current budget, an epsilon; None without one, or if an older ledger does not state it."""
        stated = self._terms.get("budget")
        return self._budgets[-1].epsilon if self._budgets else budget_value(stated)

    @property
    def run_spending(self) -> Spending:
        """Number of charges of each distinct event by this ledger's run."""
        return MappingProxyType(self._choice.spent(self._counts))

    @property
    def chosen(self) -> Event | None:
        """Event of choosing this run among several candidates; None if there was no choice."""
        return self._choice.event

    @property
    def prior(self) -> Spending:
        """Events of earlier runs over the same population, as the ledger's first line states."""
        return MappingProxyType(self._prior)

    @property
    def spending(self) -> Spending:
        """Total spending of the population: `prior` and `run_spending`."""
        return MappingProxyType(self._prior + self._choice.spent(self._counts))

    def spending_until(self, round: int) -> Spending:
        """Returns `prior` plus the spending of the rounds up to and including `round`."""
        past = Counter(charge.event for charge in self._charges if charge.round <= round)
        return self._prior + self._choice.spent(past)

    def head(self) -> bytes:
        """Returns the hash of the last line. A copy kept elsewhere reveals truncation (`holds`)."""
        return bytes.fromhex(self._hashes[-1] if self._hashes else chain.START)

    def trail(self) -> tuple[Head, ...]:
        """Returns the head of the ledger after each of its lines, oldest first."""
        rounds = {charge.hash: charge.round for charge in self._charges}
        place = place_of(self.path)
        return tuple(
            Head(self._hashes[0], place, line, rounds.get(head), head)
            for line, head in enumerate(self._hashes, start=1)
        )

    def holds(self, head: bytes) -> bool:
        """Whether `head` was ever this ledger's head."""
        return head.hex() in self._hashes

    def passed(self, head: bytes, by: bytes) -> bool:
        """Whether `head` was a head of this ledger, and `by` was the same or a later head."""
        until = self._hashes[: self._hashes.index(by.hex()) + 1] if self.holds(by) else []
        return head.hex() in until

    def charge(self, round: int, event: Event) -> Charge:
        """Charges `event` to `round` before its cohort is sampled; durable when this returns.

        Refuses a round that is not later than every charged round: its cohort may have been sampled
        already, and the charge covers one sample. But if `reexecutes` is set (seeded simulations,
        which repeat the same draws), the earlier charge of the same event to it is returned.

        Raises:
          BudgetExceeded: if the event exceeds the budget; nothing is charged.
          LedgerBroken: if the round is not later than every charged round, if an earlier line could
            not be written, or if the charge exceeds what a choice among runs covers.
        """
        if self._charges and round <= self._charges[-1].round:
            return self._charged_before(round, event)
        added = self._choice.added(event, self._counts)
        if added and self.gate and not self.gate.affords(self.spending, added):
            raise BudgetExceeded(
                f"round {round} would raise epsilon above {self.gate.epsilon:g} "
                f"at delta {self.gate.delta:g}"
            )
        if event not in self._events:
            self._append(
                {"type": "define", "id": len(self._events), "event": event.to_json()},
            )
        self._append({"type": "charge", "round": round, "event": self._events.index(event)})
        return self._charges[-1]

    def change_budget(self, before: float, epsilon: float, event: Event) -> None:
        """Writes a line: the budget is `epsilon`, no longer `before`, from the next round on.

        The write is durable and atomic. The line also defines `event`, to be charged from then on.
        """
        change = {"round": self._next_round(), "before": before, "epsilon": epsilon}
        body = {"type": "define", "id": len(self._events), "event": event.to_json()}
        line, link = chain.sealed(self.head().hex(), {**body, "budget": written(change)})
        durable.write_atomically(self.path, regular.read_bytes(self.path) + line)
        self._take(link)
        self._keep_head(link)

    def charged(self, round: int) -> Charge | None:
        """Returns the charge of `round`; None if it was not charged."""
        place = bisect.bisect_left(self._charges, round, key=lambda charge: charge.round)
        charge = self._charges[place] if place < len(self._charges) else None
        return charge if charge is not None and charge.round == round else None

    def _charged_before(self, round: int, event: Event) -> Charge:
        past = self.charged(round)
        if not self.reexecutes or past is None or past.event != event:
            raise LedgerBroken(
                f"{self.path}: round {round} cannot be charged, since the ledger is at round "
                f"{self._charges[-1].round} and no round is sampled twice; charge a later round"
            )
        return past

    @property
    def _counts_torn(self) -> bool:
        """Whether an incomplete line is charged: an event is defined, and the run is not seeded."""
        return bool(self._events) and self._terms.get("randomness") != "seeded"

    def _charge_of_a_torn_line(self) -> tuple[bytes, chain.Link]:
        """Returns a line and its object; it charges the most expensive event to the next round."""
        from accounting.most_expensive import (
            most_expensive,  # imported lazily, since listing runs needs no accountant
        )

        event = most_expensive(self._events, self._terms.get("delta", 1e-6))
        body = {"type": "charge", "round": self._next_round(), "event": event}
        return chain.sealed(self.head().hex(), body)

    def _next_round(self) -> int:
        return self._charges[-1].round + 1 if self._charges else 1

    def _append(self, body: Mapping[str, Any]) -> None:
        if self._failed:
            raise LedgerBroken(f"{self.path}: an earlier line could not be written; resume the run")
        line, link = chain.sealed(self.head().hex(), body)
        self._failed = True  # until line and head are durable
        durable.append(self.path, line)
        self._take(link)
        self._keep_head(link)
        self._failed = False

    def _keep_head(self, link: chain.Link) -> None:
        """Stores the head after the last line, `link`, in the heads file, if there is one."""
        if self.heads_file is not None:
            round = link["round"] if link["type"] == "charge" else None
            self.heads_file.add(
                [Head(self._hashes[0], place_of(self.path), len(self._hashes), round, link["hash"])]
            )

    def _take(self, link: chain.Link) -> None:
        if link["type"] != "open" and not self.opened:
            raise LedgerBroken("the first line is not of type 'open'; restore the ledger")
        match link["type"]:
            case "open" if not self.opened and isinstance(link["terms"], dict):
                if link["format"] != FORMAT:
                    raise LedgerBroken(
                        f"ledger format {link['format']} is unknown, but this version of privfed "
                        f"reads only format {FORMAT}; update privfed"
                    )
                self._terms = link["terms"]
                self._prior = _prior(link["terms"])
                self._choice = Choice.from_terms(link["terms"])
            case "define" if link["id"] == len(self._events):
                self._events.append(Event.from_json(link["event"]))
                if "budget" in link:
                    self._budgets.append(_budget_change(link["budget"]))
            case "charge" if _is_count(link["round"]) and _is_count(link["event"]):
                if self._charges and link["round"] <= self._charges[-1].round:
                    raise LedgerBroken(f"round {link['round']} is out of order; restore the ledger")
                event = self._events[link["event"]]
                self._charges.append(Charge(link["round"], event, link["hash"]))
                self._counts[event] += 1
                self._choice.refuse_beyond(self._counts)
            case kind:
                reason = f"a line of type {kind!r} is unknown, out of place or invalid"
                raise LedgerBroken(f"{reason}; restore the ledger")
        self._hashes.append(link["hash"])


def terms_at(path: Path) -> Mapping[str, Any]:
    """Returns the terms in the first line of the ledger at `path`; reads no other line.

    The terms are empty if there is no ledger, or its first line cannot be read or verified.
    """
    try:
        terms = chain.first(path).get("terms")
    except (OSError, LedgerBroken):
        return {}
    return MappingProxyType(terms if isinstance(terms, dict) else {})


def _budget_change(stated: Mapping[str, Any]) -> BudgetChange:
    before, epsilon = (
        number(budget_value(stated[key]), key, 0.0, math.inf) for key in ("before", "epsilon")
    )
    if not _is_count(stated["round"]):
        raise LedgerBroken(f"a budget's round is {stated['round']!r}; expected an integer")
    return BudgetChange(stated["round"], before, epsilon)


def _prior(terms: Mapping[str, Any]) -> Counter[Event]:
    """Returns the events of earlier runs, from the pairs of event and count in `terms["prior"]`."""
    spending: Counter[Event] = Counter()
    for run in terms.get("prior", []):
        for event, count in run["charges"]:
            if not _is_count(count):
                raise LedgerBroken(f"a prior run's count is {count!r}; expected an integer")
            spending[Event.from_json(event)] += count
    return spending


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
