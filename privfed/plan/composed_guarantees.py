"""The guarantees of a run composed over the earlier runs that it counts.

There are four: the guarantee that the budget limits (`ledger_guarantee`), the guarantee against the
other party of distributed noise (`privfed.privacy.shared_noise.OTHER_PARTY`), that for examples of
silos, and that for all planned rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from accounting.errors import Unaccountable
from accounting.events import Spending, summable
from accounting.guarantee import Guarantee, guarantee, spent, unbounded
from accounting.ledger import Ledger
from privfed.plan.assumed import Assumed
from privfed.plan.assumptions import Incomposable
from privfed.plan.prior_spending import (
    Prior,
    Priors,
    charged_under,
    planned_by,
    total,
    unplanned,
)
from privfed.privacy.shared_noise import PARTY_WORDS


def counted_priors(terms: Mapping[str, Any]) -> tuple[Priors, str]:
    """Returns the earlier runs that a ledger counts, and the reason why their charges are invalid.

    The reason is "" if each run was charged under the ledger's own assumptions, as privfed does.
    Charges against the other party of distributed noise are removed if they were not made under
    the ledger's assumptions.

    Args:
      terms: the terms that the ledger's first line states.

    Raises:
      LedgerBroken: for malformed terms.
    """
    before, now = Priors.from_terms(terms), Assumed.from_terms(terms) or Assumed()
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

    A run that ends before its last round because of a released value, or by hand, states the
    epsilon of the completed rounds. That is an odometer, for which (epsilon, delta)-DP is not known
    to hold. (epsilon, delta)-DP does hold for the planned rounds, which were fixed in advance, and
    for the budget if that was fixed as well (`_budget_bounds`). If rounds were added after releases
    were seen, it holds only for a budget that was fixed, which is then the stated epsilon. If
    evaluations were added, or there is no such budget, it is not known to hold. The `caveat` of the
    guarantee states which.

    Args:
      rounds: the planned number of rounds.
      ledger: the run's ledger.
      accountant: the accountant to use.

    Returns:
      The guarantee; None if the charges of earlier runs are invalid (`counted_priors`), or if this
      run and all earlier runs completed exactly their planned rounds, or ended at their budgets.
    """
    before, why = counted_priors(ledger.terms)
    caveat = _caveat(rounds, ledger, before)
    if why or not caveat:
        return None
    done = _completed(rounds, ledger)
    charges = ledger.run_spending if done else planned_by(rounds, ledger)
    bound = guarantee(total([before.planned, charges]), ledger.terms["delta"], accountant)
    if _budget_bounds(rounds, ledger):
        budget = float(ledger.budget or 0)
        epsilon = budget if _raised(rounds, ledger) else min(bound.epsilon, budget)
        bound = replace(bound, epsilon=epsilon)
    against = ledger.terms.get("against") or ""
    clients = clients_of(ledger.terms)
    return replace(
        bound, against=against, uncovered=before.uncovered, clients=clients, caveat=caveat
    )


def planned_others(rounds: int, ledger: Ledger) -> tuple[Guarantee, ...]:
    """Returns the guarantees for examples and against the other party, for all planned `rounds`.

    Each is left out if the run does not have it. No budget limits these guarantees, and earlier
    runs state no planned charges for them.
    """
    terms, (before, _) = ledger.terms, counted_priors(ledger.terms)
    caveat = _caveat(rounds, ledger, before, headline=False)
    bounds = []
    if "examples" in terms:
        spending = charged_under(ledger, "examples", rounds=rounds)
        delta = float(terms["examples"]["delta"])
        bounds.append(examples_guarantee(spending, before.runs, delta, before.uncovered))
    if "other" in terms:
        spending, against = charged_under(ledger, "other", rounds=rounds), terms["other"]["against"]
        clients, delta = clients_of(terms), terms["delta"]
        bounds.append(
            other_guarantee(spending, against, before.runs, delta, before.uncovered, clients)
        )
    return tuple(replace(bound, caveat=caveat) for bound in bounds)


_ODOMETER = "is an odometer without a proved (ε, δ)"


def _caveat(rounds: int, ledger: Ledger, before: Priors, headline: bool = True) -> str:
    """Returns a text on charges that were not fixed in advance; empty if all were.

    The text also states the rounds that epsilon counts. `headline` is whether the text is for the
    guarantee that the budget limits.
    """
    says, bounded = [], headline and _budget_bounds(rounds, ledger)
    if not _completed(rounds, ledger):
        says.append(
            "all planned rounds are counted, since the run ended early or has not ended: the ε of "
            f"the rounds done {_ODOMETER}"
        )
    added = added_later(rounds, ledger)
    if added and not (bounded and _at_budget(rounds, ledger)):
        says.append(
            f"{added}, so that ε is the budget, which bounds every number of rounds"
            if bounded
            else f"{added}: unless that was decided before any release was seen, ε {_ODOMETER}"
        )
    if stopped := [prior.path for prior in before.runs if prior.planned is not None]:
        counted = "all planned rounds of it are counted, and the ε of the rounds done"
        says.append(
            f"{', '.join(stopped)}, counted as earlier, ended early: "
            f"{counted if headline else 'its rounds done are counted, so that ε'} {_ODOMETER}"
        )
    if odometers := [prior.path for prior in before.runs if prior.odometer]:
        says.append(
            f"the charges of {', '.join(odometers)}, counted as earlier, were not all planned: ε "
            f"{_ODOMETER}"
        )
    return "; ".join(says)


def planned_otherwise(rounds: int, ledger: Ledger) -> bool:
    """Whether rounds or charges were added after the run began, unless its budget ended it."""
    return bool(added_later(rounds, ledger)) and not _at_budget(rounds, ledger)


def added_later(rounds: int, ledger: Ledger) -> str:
    """Returns a text on rounds and evaluations added after the run began; empty without any.

    An unplanned first charge is not counted, since no release was seen before it.
    """
    says = []
    if _raised(rounds, ledger):
        says.append(f"rounds were raised from {_stated_rounds(ledger)} to {rounds}")
    further = unplanned(rounds, ledger)
    count = sum(further.values()) - (bool(further) and ledger.charges[0].event in further)
    if count:
        says.append(f"unplanned releases, such as evaluations, were charged ({count})")
    return f"{' and '.join(says)} after the run began" if says else ""


def if_stopped(rounds: int, ledger: Ledger) -> Spending | None:
    """Returns the planned charges of a run that ended early, in the form of `summable`.

    None if all rounds were completed, or if the run ended at its budget: the number of rounds then
    follows from public constants.
    """
    return None if _completed(rounds, ledger) else summable(planned_by(rounds, ledger))


def _completed(rounds: int, ledger: Ledger) -> bool:
    """Whether all planned charges were made, or the run ended at its budget (`_at_budget`)."""
    done = sum(planned_by(rounds, ledger).values()) == len(ledger.charges)
    return done or _at_budget(rounds, ledger)


def _stated_rounds(ledger: Ledger) -> int | None:
    """Returns the number of rounds planned when the run began; None if the ledger lacks it."""
    return (ledger.terms.get("planned") or {}).get("rounds")


def _raised(rounds: int, ledger: Ledger) -> bool:
    stated = _stated_rounds(ledger)
    return stated is not None and rounds > stated


def _budget_bounds(rounds: int, ledger: Ledger) -> bool:
    """Whether the budget bounds the run, however many rounds it has.

    Everything that the check of the budget composes has to be fixed in advance: the budget, all
    events, and the charges of earlier runs. A later evaluation is charged as a separate event, and
    may raise the budget.
    """
    runs = Priors.from_terms(ledger.terms).runs
    fixed = all(prior.planned is None and not prior.odometer for prior in runs)
    changed = ledger.budgets or unplanned(rounds, ledger)
    return fixed and ledger.budget is not None and not changed


def _at_budget(rounds: int, ledger: Ledger) -> bool:
    """Whether the budget bounds the run, and one more round would exceed it."""
    if not ledger.charges or not _budget_bounds(rounds, ledger):
        return False
    after = planned_by(ledger.charges[-1].round + 1, ledger)  # as no charge is unplanned
    one_more = total([ledger.prior, after])
    bound = guarantee(one_more, ledger.terms["delta"], ledger.terms["accountant"])
    return bound.epsilon > float(ledger.budget or 0)


def other_guarantee(
    spending: Spending,
    against: str,
    runs: Sequence[Prior],
    delta: float,
    uncovered: str = "",
    clients: int = 0,
) -> Guarantee:
    """Returns the guarantee of distributed noise against the party other than `privacy.against`.

    If an earlier run's ledger does not state its charges against that party, or has another
    adjacency relation, epsilon is infinite, and the guarantee states the reason.

    Args:
      spending: the run's charges against that party.
      against: the party.
      runs: the earlier runs that count.
      delta: the delta of the guarantee.
      uncovered: the reason why a starting model is not covered, if it is not.
      clients: the declared number of clients, which the guarantee states; 0 if unknown.
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
    """Returns the guarantee of all the charges `together`.

    Epsilon is infinite if `missing` states a reason, or if the charges differ in adjacency
    relation.
    """
    if missing:
        return unbounded(together, delta, missing)
    try:
        return guarantee(together, delta)
    except Unaccountable:
        return unbounded(
            together, delta, ("the guarantees of these runs differ in their adjacency relation")
        )
