"""The ε that a run spent, as its files state it where they are up to date, else as accounted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.errors import Broken, public_text
from privfed.overview.run_facts import RunFacts, epsilon_in


def epsilon_of(facts: RunFacts) -> float | None:
    """The ε spent, earlier runs that the ledger counts included; None before a ledger is open.

    It is infinite where nothing is promised. The summary's and the metrics' figure is taken where
    they are about all charges of the ledger. Raises `Broken` where the ledger cannot be accounted.
    """
    ledger = facts.ledger
    if ledger is None:
        return None
    if facts.terms.get("guarantee"):
        return math.inf
    for line in (facts.summary if facts.summarised else {}, _last_line(facts)):
        if (epsilon := epsilon_in(line)) is not None:
            return epsilon
    if not ledger.spending:
        return 0.0
    return float(guarantees_of(ledger)[0]["epsilon"])


def uncovered_of(facts: RunFacts) -> str:
    """Why no ε covers what the starting model tells of the same people; "" where it does."""
    lineage = facts.terms.get("lineage")
    fresh = isinstance(lineage, dict) and not (lineage.get("runs") or lineage.get("unknown"))
    if facts.ledger is None or fresh:
        return ""
    from privfed.plan.prior_spending import Priors  # which imports accountants

    try:
        return Priors.stated(facts.terms).uncovered
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger's terms cannot be read: {public_text(error)}") from None


def guarantees_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Each guarantee of a run, re-computed from its ledger: the headline is the first.

    What single examples of silos were charged is bounded as if one silo had always taken part:
    their own ledgers are private. Raises `Broken` where the ledger cannot be accounted.
    """
    try:
        return _accounted(ledger)
    except (AccountingError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger cannot be accounted: {public_text(error)}") from None


def _accounted(ledger: Ledger) -> list[dict[str, Any]]:
    from accounting.guarantee import stated
    from privfed.plan import composed_guarantees, prior_spending

    terms = ledger.terms
    before, _ = composed_guarantees.counted_priors(terms)
    bounds = [composed_guarantees.ledger_guarantee(ledger, terms["accountant"])]
    if silos := terms.get("examples"):
        charged = prior_spending.charged_under(ledger, "examples")
        bounds.append(
            composed_guarantees.examples_guarantee(
                charged, before.runs, silos["delta"], before.uncovered
            )
        )
    if other := terms.get("other"):
        charged, party = prior_spending.charged_under(ledger, "other"), str(other["against"])
        bounds.append(
            composed_guarantees.other_guarantee(
                charged, party, before.runs, terms["delta"], before.uncovered
            )
        )
    void = terms.get("guarantee")
    if void:
        bounds = [replace(each, epsilon=math.inf) for each in bounds]
    return stated(*bounds, void=void)


def _last_line(facts: RunFacts) -> dict[str, Any]:
    """The metrics at the last charge; nothing where that round was not evaluated."""
    charges = facts.ledger.charges if facts.ledger else ()
    return dict(facts.evaluated.get(charges[-1].round, {})) if charges else {}
