"""What is composed over several cells: what they were charged, and are still to be charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from accounting.events import Event, Spending
from privfed.grid.cell_charges import CellCharges
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
