"""The guarantees of a run composed over the earlier runs that it counts.

They are against the party of the budget (`ledger_guarantee`), against the other party of noise that
clients share, for examples of silos, and of all rounds that were planned.
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
    """The runs that a ledger with these `terms` counts as earlier, and why none of them is bounded.

    The reason is empty where each was charged under the ledger's own assumptions, as every run is
    that privfed counts. Where the charge against the other party was not, none is stated.
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
    """The guarantee of a ledger's run and of all that it counts as earlier; infinite where these
    were not charged under its own assumptions.
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
    """The declared number of clients in a ledger's `terms`, 0 in older ones without it."""
    return int(terms.get("clients", 0))


def planned_guarantee(rounds: int, ledger: Ledger, accountant: str) -> Guarantee | None:
    """The guarantee of all planned `rounds` of a run, and of all that its earlier runs planned.

    A run that ends before its last round by what was released, or by hand, states the epsilon of
    the rounds that were done. That is an odometer, of which (epsilon, delta)-privacy is not known
    to hold; it does for the planned rounds, which were fixed before. Where the budget is less, and
    all rounds before it were fixed, too, epsilon is the budget: no round is charged beyond it.

    Returns:
      None where all planned rounds were done, of earlier runs too, and where nothing is promised.
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
    """What distributed noise guarantees against `against`, whom the budget does not gate.

    `clients` is their declared number. The guarantee covers `spending` and what `runs` were charged
    against that party. Where one of their ledgers does not state that, or means another relation,
    no joint bound exists, and the guarantee says so.
    """
    together = [spending, *(prior.other or {} for prior in runs)]
    silent = [prior.path for prior in runs if prior.other is None]
    why = f"no ledger states what was charged against {PARTY_WORDS[against]} by {', '.join(silent)}"
    bound = _joint_bound(total(together), delta, why if silent else "")
    return replace(bound, against=against, uncovered=uncovered, clients=clients)


def examples_guarantee(
    spending: Spending, runs: Sequence[Prior], delta: float, uncovered: str = ""
) -> Guarantee:
    """What DP-SGD in silos guarantees one example: over `spending`, and what `runs` were charged.

    A run without DP-SGD bounds no example, whatever it promises whole clients: no joint bound
    exists then, and the guarantee says so.
    """
    together = [spending, *(prior.examples or {} for prior in runs)]
    bare = [prior.path for prior in runs if prior.spending and prior.examples is None]
    why = f"no DP-SGD in {', '.join(bare)}"
    bound = _joint_bound(total(together), delta, why if bare else "")
    return replace(bound, unit="example", uncovered=uncovered)


def _joint_bound(together: Spending, delta: float, missing: str) -> Guarantee:
    """The guarantee of all `together`; none where a part is `missing`, or of another relation."""
    if missing:
        return unbounded(together, delta, missing)
    try:
        return guarantee(together, delta)
    except Unaccountable:
        return unbounded(together, delta, "what these runs guarantee differs in its relation")
