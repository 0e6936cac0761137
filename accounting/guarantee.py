"""The guarantee of a list of events, and the check whether a further event fits a budget."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from accounting.accountants import ACCOUNTANTS, epsilon, supports
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event, Spending
from accounting.statement import each_epsilon, epsilon_at

TIGHTEST = "tightest"
_WORDS = {
    ("client", ADD_REMOVE): ("any one client", "whether it is in the population"),
    ("client", REPLACE_ONE): ("any one client", "replacing all its data by anything else"),
    ("client", ZERO_OUT): ("any one client", "whether it contributes, or sends zero each time,"),
    ("example", ADD_REMOVE): ("any one example of a silo", "whether the silo holds it"),
    ("record", ADD_REMOVE): ("any one record", "whether it is in the data"),
    ("record", REPLACE_ONE): ("any one record", "replacing it by any other"),
    ("record", ZERO_OUT): ("any one record", "whether it is used, or ignored each time,"),
}
"""Words by unit and relation: the protected unit, and the change that is hidden."""
_VIEWS = {
    "server": "the server's view",
    "sites": "the joint view of the server, all readers and colluding sites",
    "others": "the joint view of all parties except its own site",
    "clients": "the joint view of the server and colluding clients",
}
"""By adversary, the view about which an epsilon is a guarantee, in words."""
CHOICES = (TIGHTEST, *ACCOUNTANTS)


@dataclass(frozen=True)
class Guarantee:
    """A differential privacy guarantee with its meaning.

    (epsilon, delta)-differential privacy for one `unit` under the adjacency relation `relation`.

    Attributes:
      epsilon: the epsilon of the guarantee.
      delta: the delta of the guarantee.
      unit: unit of privacy.
      relation: adjacency relation.
      sampler: name of the sampler.
      rounds: number of charged events.
      accountant: the accountant that bounds `epsilon`.
      by_accountant: epsilon of every accountant; None if the accountant has no bound.
      against: the adversary whose view is bounded, if there are several; otherwise empty.
      uncovered: origin of the starting model, if the guarantee does not cover what that model
        reveals about the same clients; otherwise empty.
      missing: the reason why there is no bound; empty if there is one.
      clients: declared number of clients; 0 if unknown.
      caveat: what epsilon covers in addition to the charges, or why it is an odometer (the epsilon
        of adaptively many charges, which is no proved guarantee); otherwise empty.
    """

    epsilon: float
    delta: float
    unit: str
    relation: str
    sampler: str
    rounds: int
    accountant: str
    by_accountant: dict[str, float | None] = field(hash=False)
    against: str = ""
    uncovered: str = ""
    missing: str = ""
    clients: int = field(default=0, compare=False)
    caveat: str = ""

    @property
    def delta_warning(self) -> str:
        """Warning that delta is at least 1 / clients; otherwise empty.

        It is also empty if the number of clients is unknown, the unit is not a client, or epsilon
        is infinite.
        """
        promises = self.unit == "client" and self.epsilon < math.inf
        return large_delta(self.delta, self.clients) if promises else ""

    @property
    def left_out(self) -> str:
        """Note that the guarantee does not cover what the starting model reveals.

        It is meaningful only if `uncovered` is not empty.
        """
        return (
            f"this does not cover what the starting model ({self.uncovered}) reveals about the "
            "same clients"
        )

    def line(self, nominal: bool = False) -> str:
        """Returns both as text: "ε = 3.9987 at δ = 0.0001"; `nominal` appends " (nominal)"."""
        return f"ε = {epsilon_at(self.epsilon, self.delta, nominal)}"

    def rows(self, nominal: bool = False) -> dict[str, str]:
        """Returns the guarantee as table rows, by label; `nominal` marks a simulation's epsilon."""
        return {
            "ε": epsilon_at(self.epsilon, self.delta, nominal),
            "unit": f"one {self.unit}",
            "relation": f"{self.relation}, {self.sampler} sampling",
            "accountant": f"{self.accountant} ({each_epsilon(self.by_accountant)})",
        }

    def sentence(self) -> str:
        """Returns the guarantee in words, for readers who do not know differential privacy."""
        known = _WORDS.get((self.unit, self.relation))
        protected, change = known or (f"one {self.unit}", self.relation)
        if self.missing:
            return f"nothing is promised about {protected}: {self.missing}"
        if self.epsilon == math.inf:
            return f"nothing is promised about {protected}"
        factor = f"at most {_rounded_up(self.epsilon)}" if self.epsilon < 700 else "more than 1e300"
        view = _VIEWS.get(self.against, "all releases")
        return (
            f"for {protected}: {change} changes the probability of anything that can be concluded "
            f"from {view} by a factor of {factor} (and {self.delta:g} more)"
            + (f"; {self.delta_warning}" if self.delta_warning else "")
            + (f"; {self.left_out}" if self.uncovered else "")
            + (f"; {self.caveat}" if self.caveat else "")
        )

    def to_json(self, void: str | None = None) -> dict[str, Any]:
        """Returns the guarantee as `--json` prints it; `void` is the reason if it is invalid."""
        keys = ("unit", "relation", "epsilon", "delta", "sampler", "rounds", "accountant")
        remarks = {key: getattr(self, key) for key in ("against", "uncovered", "missing", "caveat")}
        return {
            **{key: getattr(self, key) for key in keys},
            "meaning": void or self.sentence(),
            **{key: remark for key, remark in remarks.items() if remark},
        }


class HasReleases(Protocol):
    """An object with released events, such as a ledger."""

    @property
    def spending(self) -> Spending:
        """Number of charges of each distinct event."""


def spent(ledger: HasReleases, delta: float, accountant: str = TIGHTEST) -> Guarantee:
    """Returns the guarantee of all of the ledger's charges together at `delta`. See `guarantee`."""
    return guarantee(ledger.spending, delta, accountant)


def guarantee(spending: Spending, delta: float, accountant: str = TIGHTEST) -> Guarantee:
    """Returns the guarantee of the composition of `spending`.

    Args:
      spending: events with their counts.
      delta: delta of the guarantee, in (0, 1).
      accountant: "rdp", "pld", or "tightest": the smallest epsilon of the accountants that support
        every event.

    Returns:
      The guarantee; its epsilon is infinite if the accountant has no bound.

    Raises:
      Unaccountable: if events differ in unit or relation, which no single epsilon covers, if
        `delta` is outside (0, 1), or if `accountant` is unknown.
    """
    if accountant not in CHOICES:
        raise Unaccountable(f"accountant is {accountant!r}; expected one of {', '.join(CHOICES)}")
    meanings = {(event.unit, event.relation) for event in spending}
    if len(meanings) > 1:
        raise Unaccountable(
            f"events have several units or relations, {sorted(meanings)}, but only events that "
            "agree in both can be composed; compose each group by itself"
        )
    unit, relation = meanings.pop() if meanings else ("client", "")
    sampler = ", ".join(sorted({event.sampler for event in spending}))
    by_accountant = {name: epsilon(spending, delta, name) for name in ACCOUNTANTS}
    chosen = ACCOUNTANTS if accountant == TIGHTEST else (accountant,)
    bounds = [bound for name in chosen if (bound := by_accountant[name]) is not None]
    return Guarantee(
        epsilon=min(bounds, default=math.inf),
        delta=delta,
        unit=unit,
        relation=relation,
        sampler=sampler,
        rounds=sum(spending.values()),
        accountant=accountant,
        by_accountant=by_accountant,
    )


def unbounded(spending: Spending, delta: float, why: str) -> Guarantee:
    """Returns a guarantee of infinite epsilon for `spending`; `why` is stated as the reason."""
    units, relations, samplers = (
        ", ".join(sorted({getattr(event, name) for event in spending}))
        for name in ("unit", "relation", "sampler")
    )
    return Guarantee(
        epsilon=math.inf,
        delta=delta,
        unit=units or "client",
        relation=relations,
        sampler=samplers,
        rounds=sum(spending.values()),
        accountant=TIGHTEST,
        by_accountant=dict.fromkeys(ACCOUNTANTS),
        missing=why,
    )


def stated(*bounds: Guarantee | None, void: str | None = None) -> list[dict[str, Any]]:
    """Returns the JSON of each guarantee that is not None.

    `void` is the reason why all of them are invalid; None if they are valid.
    """
    return [bound.to_json(void) for bound in bounds if bound]


def large_delta(delta: float, clients: int) -> str:
    """Returns the warning about a `delta` of at least 1 / `clients`; empty for smaller ones."""
    if not clients or delta < 1 / clients:
        return ""
    return (
        f"δ = {delta:g} is not below 1 / clients (1/{clients}), which allows the publication of "
        "one client's data in full"
    )


def _rounded_up(epsilon: float) -> str:
    """Returns exp(epsilon) rounded up to three significant digits."""
    factor = math.exp(epsilon)
    scale = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / scale) * scale:.3g}"


def refuse_unaccountable(event: Event, accountant: str) -> None:
    """Raises `Unaccountable` if `accountant` cannot bound `event`; call before a run starts."""
    names = ACCOUNTANTS if accountant == TIGHTEST else (accountant,)
    if not any(supports(event, name) for name in names):
        able = [name for name in ACCOUNTANTS if supports(event, name)]
        raise Unaccountable(
            f"accountant is {accountant!r}, but has no proof for {event.release.kind} under "
            f"{event.relation}; use {' or '.join(able) if able else 'another mechanism'}"
        )


class Gate:
    """Decides whether a further event fits a budget, before the event happens.

    Epsilon never decreases with more events: if a spending is affordable, so is any subset of it.
    The gate therefore accounts for several events ahead and caches the result, so that a run of T
    rounds takes about log T accountings, not T.

    Args:
      epsilon: the budget.
      delta: delta of the budget.
      accountant: "rdp", "pld" or "tightest".
      stride: number of events that the caller plans, which the gate first accounts for at once.
    """

    def __init__(self, epsilon: float, delta: float, accountant: str, stride: int = 1) -> None:
        self.epsilon, self.delta, self.accountant = epsilon, delta, accountant
        self._proven: Counter[Event] = Counter()
        self._stride = max(stride, 1)

    def affords(self, spending: Spending, event: Event) -> bool:
        """Whether `spending` followed by `event` remains within the budget."""
        after = Counter(spending)
        after[event] += 1
        if after <= self._proven:
            return True
        while not self._fits(ahead := after + Counter({event: self._stride - 1})):
            if self._stride == 1:
                return False
            self._stride //= 2
        self._proven = ahead
        self._stride *= 2
        return True

    def _fits(self, spending: Spending) -> bool:
        if self.epsilon == math.inf:
            return True
        return guarantee(spending, self.delta, self.accountant).epsilon <= self.epsilon
