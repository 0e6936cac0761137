"""The joint guarantee of cells over the same population.

The results of a grid release something about every run, including the runs of its tuning, because
the chosen values are computed from them. The charges of all runs over one population are therefore
composed: the occurrences of each distinct event are counted over all cells, and accounted for
together.
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
    """Returns the runs to compose, each once: those of `charges`, and the earlier runs they
    include.

    The actual charges of every run are included, whether or not tuning chooses the run. Of a cell's
    planned runs, tuning will choose one; the largest number of each event over these runs is
    included.
    """
    ahead = [reduce(_either, left.values()) for left in remaining_charges(charges).values()]
    earlier = {
        (prior.run, prior.head): prior
        for entry in charges
        for prior in entry.prior
        if not any(other.counts(prior) for other in charges)
    }
    return Priors((*_spent(charges).values(), *ahead, *earlier.values())).traced()


def _spent(charges: Sequence[CellCharges]) -> dict[str, Prior]:
    """Returns every run with actual charges, by its key."""
    runs: dict[str, Prior] = {}
    for entry in charges:
        if not entry.planned:
            runs[entry.key] = _either(runs.get(entry.key, entry.run), entry.run)
    return runs


def remaining_charges(charges: Sequence[CellCharges]) -> dict[str, dict[str, Prior]]:
    """Returns the planned charges that are not yet made, by name of the cell and key of the run.

    Of the runs of one cell, tuning will choose one.
    """
    spent = _spent(charges)
    left: dict[str, dict[str, Prior]] = {}
    for entry in charges:
        if entry.planned:
            rest = _rest(entry.run, spent.get(entry.key))
            left.setdefault(entry.cell, {})[entry.key] = rest
    return left


def _rest(end: Prior, spent: Prior | None) -> Prior:
    """Returns the planned run `end` with only those charges that exceed the charges of `spent`."""
    if spent is None:
        return end
    rest = Counter(end.spending) - Counter(spent.spending)
    if end.examples is None or spent.examples is None:
        return replace(end, spending=rest)
    return replace(end, spending=rest, examples=Counter(end.examples) - Counter(spent.examples))


def _either(left: Prior, right: Prior) -> Prior:
    """Returns the run `left` with the larger count of each event, and with the lineages of both."""
    return replace(
        left,
        spending=_most(left.spending, right.spending),
        examples=_most_examples(left.examples, right.examples),
        lineage=left.lineage | right.lineage,
    )


def _most(left: Spending, right: Spending) -> Spending:
    """Returns the larger of the two counts of each event."""
    return Counter[Event](left) | Counter[Event](right)


def _most_examples(left: Spending | None, right: Spending | None) -> Spending | None:
    """Returns `_most` of the charges for single examples; None if a run has no guarantee for
    examples.
    """
    return None if left is None or right is None else _most(left, right)


NOT_CHOSEN = (
    "the ε of a single cell does not cover the choice of the best among these: state the joint ε, "
    "or choose with tune.private = true"
)
"""The note on several cells over real data."""
_UNIT = "unit (client column)"
"""Name of the term in which groups differ if cells divide the same data into different clients."""
_MEANING = {
    "unit": "unit",
    "relation": "adjacency relation",
    "against": "party",
    "delta": "δ",
    **ASSUMED,
}
"""Names of the terms that define an epsilon, by key; runs that differ in one are not composed."""


@dataclass(frozen=True)
class Group:
    """Cells with equal terms, and the guarantee `bound` that covers all their runs together.

    The guarantee includes the earlier runs that these runs include.
    """

    cells: frozenset[str]
    bound: Guarantee

    def to_json(self) -> dict[str, Any]:
        """Returns one of the objects under "groups" in the JSON of a `Joint`."""
        return {"cells": len(self.cells), **self.bound.to_json()}


@dataclass(frozen=True)
class Joint:
    """The joint guarantee of the cells over one population.

    Attributes:
      identity: identifier of the population; several identifiers if cells divide the same data into
        different clients.
      about: description of the population.
      cells: names of the cells.
      groups: groups of cells with equal terms, each with a guarantee; no epsilon covers two groups.
      differ: names of the terms in which groups differ.
      void: reasons why some cells have no guarantee. Then all cells together have no guarantee, and
        `groups` covers only the other cells.
      examples: the guarantee for one example of a client (silo); None unless all cells use DP-SGD
        in clients.
      nominal: whether some of the cells are simulations, whose epsilon is nominal.
      at_most: whether the choice of a tuning is still open, so epsilon is an upper bound.
      notes: sentences on the limits of the guarantee.
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
        """The ε over all cells: infinite if a cell has no guarantee, else None unless there is one
        group.
        """
        if self.void:
            return math.inf
        return self.groups[0].bound.epsilon if len(self.groups) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """Returns one of the objects under "joint" that `privfed experiment --json` prints."""
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
        """Returns a table's columns about the joint guarantee: of the group of `cell`, or if some
        cell has no guarantee, of all cells.
        """
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
    """Returns a `Joint` for each population with an actual or planned release.

    Args:
      charges: the charges of the cells.
      uncounted: by identifier of the population, the number of runs in the folder of cells that
        belong to none of the cells.
    """
    released = [entry for entry in charges if entry.run.spending or entry.unread]
    return tuple(_joint(population, uncounted) for population in _populations(released))


def _populations(charges: Sequence[CellCharges]) -> list[list[CellCharges]]:
    """Returns `charges` by population; populations with a common source of data are merged."""
    names: dict[str, set[str]] = {}
    for entry in charges:
        names.setdefault(entry.population, {entry.population}).update(entry.sources)
    disjoint: list[set[str]] = []
    for sources in names.values():
        same = [other for other in disjoint if other & sources]
        disjoint = [other for other in disjoint if not other & sources] + [sources.union(*same)]
    populations: dict[int, list[CellCharges]] = {}
    for entry in charges:
        place = next(n for n, population in enumerate(disjoint) if entry.population in population)
        populations.setdefault(place, []).append(entry)
    return [*populations.values()]


def _joint(charges: Sequence[CellCharges], uncounted: Mapping[str, int]) -> Joint:
    """Returns the joint guarantee of the runs `charges` over one population."""
    whose = {entry.population: entry.about for entry in charges}
    cells = frozenset(entry.cell for entry in charges)
    void = [*_void_reasons(charges, cells)]
    meanings: dict[tuple[Any, ...], list[CellCharges]] = {}
    for entry in charges:
        if entry.void is None:
            meaning = (entry.population, *map(entry.meaning, _MEANING))
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
        tuple(_notes(charges, sum(uncounted.get(population, 0) for population in whose))),
    )


def _void_reasons(charges: Sequence[CellCharges], cells: frozenset[str]) -> Iterator[str]:
    """Yields the reasons why some of the cells have no guarantee, each with the number of cells."""
    reasons: dict[str, set[str]] = {}
    for entry in charges:
        if entry.void is not None:
            reasons.setdefault(entry.void, set()).add(entry.cell)
    for reason, without in reasons.items():
        yield f"{reason} in {_share(without, cells)}"


def _share(part: Collection[str], cells: Collection[str]) -> str:
    return f"{len(part)} of {len(cells)} cells" if len(cells) > 1 else "the one cell"


def _group(charges: Sequence[CellCharges]) -> Group:
    """Returns the group of cells with equal terms, with their guarantee.

    The accountant is that of all cells, or "tightest" if theirs differ. Epsilon is infinite if
    earlier runs cannot be composed.
    """
    terms = charges[0].terms
    accountants = {entry.terms.get("accountant") for entry in charges}
    accountant = str(accountants.pop()) if len(accountants) == 1 else TIGHTEST
    composed = composition(charges)
    try:
        bound = guarantee(composed.spending, terms["delta"], accountant)
    except AccountingError:  # their earlier runs have other terms
        nothing = guarantee({}, terms["delta"], accountant)
        bound = replace(nothing, epsilon=math.inf, unit=terms["unit"], relation=terms["relation"])
    cells = frozenset(entry.cell for entry in charges)
    against = str(terms.get("against") or "")
    return Group(cells, replace(bound, against=against, uncovered=composed.uncovered))


def _examples(charges: Sequence[CellCharges]) -> Guarantee | None:
    """Returns the guarantee for one example of a client; None unless every cell uses DP-SGD in
    clients.
    """
    deltas = [entry.terms["examples"]["delta"] for entry in charges if entry.terms.get("examples")]
    hidden = any(entry.unread or entry.terms.get("guarantee") for entry in charges)
    if hidden or len(deltas) < len(charges):
        return None
    composed = composition(charges)
    return examples_guarantee({}, composed.runs, max(deltas), composed.uncovered)


def _undecided(charges: Sequence[CellCharges]) -> bool:
    """Whether some cell's run is still to be chosen by tuning, from runs with different charges."""
    left = remaining_charges(charges)
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
    """Yields notes on the limits of the guarantee, and on the number `uncounted` of other runs in
    the folder.
    """
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
        yield (
            "the influence of the same population on the initial model is not covered (the model "
            f"is {uncovered})"
        )
    if uncounted:
        yield (
            f"{uncounted} runs under cells/ over the same population are not cells of this grid, "
            "and are not counted (privfed audit composes runs that you name)"
        )
