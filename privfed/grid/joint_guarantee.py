"""What cells over the same people guarantee together.

Who releases the models of a grid has released all of them, and those that it was tuned on by what
was chosen. So their charges are composed, once for each population: one accounting of how often
each distinct event happened, whatever cell it happened in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from accounting.documents import encoded
from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import TIGHTEST, Guarantee, guarantee
from accounting.statement import at_delta
from privfed.grid.cell_charges import CellCharges
from privfed.plan.assumed import ASSUMED
from privfed.plan.composed_guarantees import examples_guarantee
from privfed.plan.prior_spending import Prior, Priors


def composition(charges: Sequence[CellCharges]) -> Priors:
    """What is composed: every run of `charges` once, and every run that they count as earlier once.

    What was charged counts, whichever run of a cell is chosen; of what is still to be charged for
    one, as much as any choice takes.
    """
    ahead = [reduce(_either, left.values()) for left in still_to_charge(charges).values()]
    earlier = {
        (prior.run, prior.head): prior
        for entry in charges
        for prior in entry.prior
        if not any(other.counts(prior) for other in charges)
    }
    return Priors((*_spent(charges).values(), *ahead, *earlier.values())).traced()


def _spent(charges: Sequence[CellCharges]) -> dict[str, Prior]:
    """Every run that was charged, by its key, once."""
    runs: dict[str, Prior] = {}
    for entry in charges:
        if not entry.planned:
            runs[entry.key] = _either(runs.get(entry.key, entry.run), entry.run)
    return runs


def still_to_charge(charges: Sequence[CellCharges]) -> dict[str, dict[str, Prior]]:
    """What is still to be charged, by cell, for each of the runs of which one will be chosen."""
    spent = _spent(charges)
    left: dict[str, dict[str, Prior]] = {}
    for entry in charges:
        if entry.planned:
            rest = _rest(entry.run, spent.get(entry.key))
            left.setdefault(entry.cell, {})[entry.key] = rest
    return left


def _rest(end: Prior, spent: Prior | None) -> Prior:
    """What `end` will be charged beyond `spent`."""
    if spent is None:
        return end
    rest = Counter(end.spending) - Counter(spent.spending)
    if end.examples is None or spent.examples is None:
        return replace(end, spending=rest)
    return replace(end, spending=rest, examples=Counter(end.examples) - Counter(spent.examples))


def _either(left: Prior, right: Prior) -> Prior:
    """Each event as often as in whichever of the two holds more of it; and the starts of both."""
    return replace(
        left,
        spending=_most(left.spending, right.spending),
        examples=_most_examples(left.examples, right.examples),
        lineage=left.lineage | right.lineage,
    )


def _most(left: Spending, right: Spending) -> Spending:
    """Each event as often as in whichever of the two holds more of it."""
    return Counter[Event](left) | Counter[Event](right)


def _most_examples(left: Spending | None, right: Spending | None) -> Spending | None:
    """The same of spendings on examples; None where either run bounds no example."""
    return None if left is None or right is None else _most(left, right)


NOT_CHOSEN = (
    "a cell's own ε does not cover that it was chosen among these: state the joint one, or choose "
    "with tune.private = true"
)
"""A note on cells over real people, of which somebody may take the best."""
_UNIT = "unit (client column)"
"""The term in which cells about other clients of the same data differ."""
_MEANING = {
    "unit": "unit",
    "relation": "relation",
    "against": "party",
    "delta": "δ",
    **ASSUMED,
}
"""What an epsilon says, by its term in a ledger: no composition is over several values of one."""


@dataclass(frozen=True)
class Group:
    """The guarantee `bound` of a client over `cells`, and over the runs they count as earlier."""

    cells: frozenset[str]
    bound: Guarantee

    def to_json(self) -> dict[str, Any]:
        """One of the objects under "groups" in the JSON of a `Joint`."""
        return {"cells": len(self.cells), **self.bound.to_json()}


@dataclass(frozen=True)
class Joint:
    """What the cells `cells` over the people `identity` (`about`, in words) guarantee together.

    Where the clients of some cells are other groups of the same people, `identity` names them all.

    There is one guarantee for each of `groups`, which differ in what an epsilon says (`differ`): no
    epsilon is over two of them. Where any cell promises nothing, neither do all together; `void`
    says why, and `groups` are of the other cells. `examples` is the guarantee for one example of a
    silo, under DP-SGD in all cells. `nominal` says that some of the cells are simulations;
    `at_most` that what tuning will choose is not known, and no choice takes more. `notes` say whom
    or what this does not cover.
    """

    identity: str
    about: str
    cells: frozenset[str]
    groups: tuple[Group, ...]
    differ: tuple[str, ...]
    void: tuple[str, ...]
    examples: Guarantee | None
    nominal: bool
    at_most: bool
    notes: tuple[str, ...]

    @property
    def epsilon(self) -> float | None:
        """The epsilon over all cells; None where there is no one composition."""
        if self.void:
            return math.inf
        return self.groups[0].bound.epsilon if len(self.groups) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """One of the objects under "joint" that `privfed experiment --json` prints."""
        return {
            "population": self.about,
            "identity": self.identity,
            "cells": len(self.cells),
            "epsilon": self.epsilon,
            "groups": encoded(self.groups),
            "differ": list(self.differ),
            "void": list(self.void),
            "examples": encoded(self.examples),
            "simulation": self.nominal,
            "at_most": self.at_most,
            "notes": list(self.notes),
        }

    def columns(self, cell: str) -> Mapping[str, Any]:
        """The columns of the table that say this in the row of `cell`: of the group it is in."""
        apart = f"these cells differ in {', '.join(self.differ)}" if self.differ else ""
        group = next((group for group in self.groups if cell in group.cells), None)
        epsilon = math.inf if self.void or group is None else group.bound.epsilon
        cells = self.cells if self.void or group is None else group.cells
        return {
            "joint_epsilon": epsilon,
            "joint_cells": len(cells),
            "joint_note": "; ".join(filter(None, [*self.void, apart, *self.notes])),
        }


def joints(charges: Iterable[CellCharges], uncounted: Mapping[str, int]) -> tuple[Joint, ...]:
    """A `Joint` for each population of which anything was, or will be, released.

    `uncounted` says, by the people they are about, how many runs lie beside these cells and are of
    none of them.
    """
    released = [entry for entry in charges if entry.run.spending or entry.unread]
    return tuple(_joint(population, uncounted) for population in _populations(released))


def _populations(charges: Sequence[CellCharges]) -> list[list[CellCharges]]:
    """`charges` by whom they are about; those that may be about the same people stand together."""
    names: dict[str, set[str]] = {}
    for entry in charges:
        names.setdefault(entry.people, {entry.people}).update(entry.sources)
    disjoint: list[set[str]] = []
    for sources in names.values():
        same = [other for other in disjoint if other & sources]
        disjoint = [other for other in disjoint if not other & sources] + [sources.union(*same)]
    populations: dict[int, list[CellCharges]] = {}
    for entry in charges:
        place = next(n for n, people in enumerate(disjoint) if entry.people in people)
        populations.setdefault(place, []).append(entry)
    return [*populations.values()]


def _joint(charges: Sequence[CellCharges], uncounted: Mapping[str, int]) -> Joint:
    """What the runs `charges` of one population guarantee together."""
    whose = {entry.people: entry.about for entry in charges}
    cells = frozenset(entry.cell for entry in charges)
    void = [*_void(charges, cells)]
    meanings: dict[tuple[Any, ...], list[CellCharges]] = {}
    for entry in charges:
        if entry.void is None:
            meaning = (entry.people, *map(entry.meaning, _MEANING))
            meanings.setdefault(meaning, []).append(entry)
    groups = tuple(map(_group, meanings.values()))
    void += [
        f"no accountant bounds {_share(group.cells, cells)} {at_delta(group.bound.delta)}"
        for group in groups
        if group.bound.epsilon == math.inf
    ]
    values = zip(*meanings, strict=True)
    names = (_UNIT, *_MEANING.values())
    differ = [name for name, terms in zip(names, values, strict=False) if len({*terms}) > 1]
    return Joint(
        ", ".join(whose),
        ", ".join(dict.fromkeys(whose.values())),
        cells,
        groups,
        tuple(differ),
        tuple(void),
        _examples(charges),
        any(entry.terms.get("note") for entry in charges),
        _undecided(charges),
        tuple(_notes(charges, sum(uncounted.get(people, 0) for people in whose))),
    )


def _void(charges: Sequence[CellCharges], cells: frozenset[str]) -> Iterator[str]:
    """Why some of the cells promise nothing, and how many."""
    reasons: dict[str, set[str]] = {}
    for entry in charges:
        if entry.void is not None:
            reasons.setdefault(entry.void, set()).add(entry.cell)
    for reason, without in reasons.items():
        yield f"{reason} in {_share(without, cells)}"


def _share(part: Collection[str], cells: Collection[str]) -> str:
    return f"{len(part)} of {len(cells)} cells" if len(cells) > 1 else "the one cell"


def _group(charges: Sequence[CellCharges]) -> Group:
    """The guarantee of cells whose epsilons say the same.

    It is by the accountant that all are gated by, or the tightest where these differ.
    """
    terms = charges[0].terms
    accountants = {entry.terms.get("accountant") for entry in charges}
    accountant = str(accountants.pop()) if len(accountants) == 1 else TIGHTEST
    composed = composition(charges)
    try:
        bound = guarantee(composed.spending, terms["delta"], accountant)
    except AccountingError:  # what they count as earlier means something else
        nothing = guarantee({}, terms["delta"], accountant)
        bound = replace(nothing, epsilon=math.inf, unit=terms["unit"], relation=terms["relation"])
    cells = frozenset(entry.cell for entry in charges)
    against = str(terms.get("against") or "")
    return Group(cells, replace(bound, against=against, uncovered=composed.uncovered))


def _examples(charges: Sequence[CellCharges]) -> Guarantee | None:
    """The guarantee for one example of a silo, which only DP-SGD in every cell protects."""
    deltas = [entry.terms["examples"]["delta"] for entry in charges if entry.terms.get("examples")]
    hidden = any(entry.unread or entry.terms.get("guarantee") for entry in charges)
    if hidden or len(deltas) < len(charges):
        return None
    composed = composition(charges)
    return examples_guarantee({}, composed.runs, max(deltas), composed.uncovered)


def _undecided(charges: Sequence[CellCharges]) -> bool:
    """Whether a run that is planned may be one of several that are charged differently."""
    left = still_to_charge(charges)
    ended = {
        entry.cell
        for entry in charges
        if entry.ledger and entry.key not in (entry.run.run, *left.get(entry.cell, ()))
    }
    return any(
        cell in ended or len({frozenset(run.spending.items()) for run in runs.values()}) > 1
        for cell, runs in left.items()
    )


def _notes(charges: Sequence[CellCharges], uncounted: int) -> Iterator[str]:
    """Notes on whom or what the guarantee does not cover, and `uncounted` runs beside the cells."""
    cells = {entry.cell for entry in charges}
    dp = {entry.cell for entry in charges if entry.terms.get("examples")}
    if dp and dp != cells:
        yield f"no ε covers single examples: no client.privacy in {_share(cells - dp, cells)}"
    public = {name for entry in charges for name in entry.public or ()}
    if any(entry.public is None for entry in charges):
        yield "clients that any of these cells declares public are not covered"
    elif public:
        yield f"{len(public)} clients that any of these cells declared public are not covered"
    if len(cells) > 1 and any(entry.sources for entry in charges):
        yield NOT_CHOSEN
    if uncovered := composition(charges).uncovered:
        yield f"what the starting model tells of the same people is not covered (it is {uncovered})"
    if uncounted:
        yield (
            f"{uncounted} runs under cells/ about the same people are none of these cells, and not "
            "counted (privfed audit composes runs that you name)"
        )
