"""The guarantees of a run composed over the earlier runs that it counts.

There is one against the party of the budget (`ledger_guarantee`), one against the other party of
distributed noise, one for the examples of silos, and one for all planned rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from accounting.errors import Unaccountable
from accounting.events import Spending
from accounting.guarantee import Guarantee, guarantee, spent, unbounded
from accounting.ledger import Ledger
from privfed.plan.assumed import Assumed
from privfed.plan.assumptions import Incomposable
from privfed.plan.prior_spending import Prior, Priors, if_stopped, planned_by, total
from privfed.privacy.shared_noise import PARTY_WORDS


def counted_priors(terms: Mapping[str, Any]) -> tuple[Priors, str]:
    """Returns the earlier runs that a ledger counts, and the reason why their charges are invalid.

    The reason is "" if each run was charged under the ledger's own assumptions, as privfed does. A
    charge against the other party of distributed noise is removed if it was made under other
    assumptions.

    Args:
      terms: the terms of the ledger.

    Raises:
      LedgerBroken: for terms of another form.
    """
    before, now = Priors.stated(terms), Assumed.stated(terms) or Assumed()
    why, runs = "", []
    for prior in before.runs:
        try:
            charged = prior.under(now)
            if charged.spending != prior.spending:
                raise Incomposable("it was charged under weaker assumptions than this ledger's")
        except Incomposable as error:
            charged, why = replace(prior, other=None), why or f"{prior.path}: {error}"
        runs.append(prior if charged.other == prior.other else replace(prior, other=None))
    return replace(before, runs=tuple(runs)), why


def ledger_guarantee(ledger: Ledger, accountant: str) -> Guarantee:
    """Returns the guarantee of a ledger's run together with all earlier runs that it counts.

    Its epsilon is infinite if the earlier runs were not charged under the ledger's assumptions.
    """
    terms = ledger.terms
    before, why = counted_priors(terms)
    bound = spent(ledger, terms["delta"], accountant)
    if why:
        bound = unbounded(ledger.spending, bound.delta, why)
    return replace(
        bound,
        against=terms.get("against") or "",
        uncovered=before.uncovered,
        clients=clients_of(terms),
    )


def clients_of(terms: Mapping[str, Any]) -> int:
    """Returns the declared number of clients in a ledger's `terms`; 0 if an old ledger lacks it."""
    return int(terms.get("clients", 0))


def planned_guarantee(rounds: int, ledger: Ledger, accountant: str) -> Guarantee | None:
    """Returns the guarantee of all planned `rounds` of a run and of its earlier runs.

    A run may end before its last round, because of a released value or by hand. It then states the
    epsilon of the completed rounds: an odometer, for which (epsilon, delta)-DP is not known to
    hold. It holds for the planned rounds, whose number was fixed in advance. If the budget is
    smaller, and no earlier run ended early, epsilon is the budget, which no charge exceeds.

    Args:
      rounds: the planned number of rounds.
      ledger: the run's ledger.
      accountant: the accountant to use.

    Returns:
      The guarantee; None if all planned rounds were completed, also in earlier runs, or if there is
      no guarantee.
    """
    ahead = if_stopped(rounds, ledger)
    before, why = counted_priors(ledger.terms)
    stopped = any(prior.planned for prior in before.runs)
    if why or (ahead is None and not stopped):
        return None
    charges = ledger.run_spending if ahead is None else planned_by(rounds, ledger)
    bound = guarantee(total([before.planned, charges]), ledger.terms["delta"], accountant)
    if ledger.budget is not None and not stopped:
        bound = replace(bound, epsilon=min(bound.epsilon, ledger.budget))
    against = ledger.terms.get("against") or ""
    clients = clients_of(ledger.terms)
    return replace(bound, against=against, uncovered=before.uncovered, clients=clients)


def other_guarantee(
    spending: Spending,
    against: str,
    runs: Sequence[Prior],
    delta: float,
    uncovered: str = "",
    clients: int = 0,
) -> Guarantee:
    """Returns the guarantee of distributed noise against the party that the budget does not limit.

    If an earlier run's ledger does not state its charges against that party, or has another
    adjacency relation, epsilon is infinite, and the guarantee states the reason.

    Args:
      spending: the run's charges against that party.
      against: the party.
      runs: the earlier runs that count.
      delta: the delta of the guarantee.
      uncovered: the reason why a starting model is not covered, if it is not.
      clients: the declared number of clients.
    """
    together = [spending, *(prior.other or {} for prior in runs)]
    silent = [prior.path for prior in runs if prior.other is None]
    why = f"no ledger states the charges against {PARTY_WORDS[against]} of {', '.join(silent)}"
    bound = _joint_bound(total(together), delta, why if silent else "")
    return replace(bound, against=against, uncovered=uncovered, clients=clients)


def examples_guarantee(
    spending: Spending, runs: Sequence[Prior], delta: float, uncovered: str = ""
) -> Guarantee:
    """Returns the guarantee of DP-SGD in silos for one example.

    A run without DP-SGD has no guarantee for single examples, even if it has one for clients. If
    there is such an earlier run, epsilon is infinite, and the guarantee states the reason.

    Args:
      spending: the run's charges for each example.
      runs: the earlier runs that count.
      delta: the delta of the guarantee.
      uncovered: the reason why a starting model is not covered, if it is not.
    """
    together = [spending, *(prior.examples or {} for prior in runs)]
    bare = [prior.path for prior in runs if prior.spending and prior.examples is None]
    why = f"no DP-SGD in {', '.join(bare)}"
    bound = _joint_bound(total(together), delta, why if bare else "")
    return replace(bound, unit="example", uncovered=uncovered)


def _joint_bound(together: Spending, delta: float, missing: str) -> Guarantee:
    """Returns the joint guarantee.

    Epsilon is infinite if there is a reason `missing`, or parts have different adjacency relations.
    """
    if missing:
        return unbounded(together, delta, missing)
    try:
        return guarantee(together, delta)
    except Unaccountable:
        return unbounded(
            together, delta, ("the guarantees of these runs differ in their adjacency relation")
        )
