"""The guarantees that a ledger proves by itself, without other files of the run."""

from __future__ import annotations

from accounting.events import CHANGE, Spending
from accounting.guarantee import Guarantee, guarantee
from accounting.ledger import Ledger
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)
from privfed.auditing.audited_run import RunAudit
from privfed.plan.composed_guarantees import (
    clients_of,
    counted_priors,
    examples_guarantee,
    ledger_guarantee,
    other_guarantee,
    planned_guarantee,
    planned_others,
)
from privfed.plan.prior_spending import Priors, charged_under


def audit_ledger(ledger: Ledger, rounds: int, accountant: str) -> RunAudit:
    """Returns every guarantee that a run's ledger proves by itself, without other files.

    Args:
      ledger: the ledger.
      rounds: the planned number of rounds.
      accountant: "rdp", "pld" or "tightest".

    Returns:
      The audit, without problems and canaries. The guarantee for examples of silos is the bound
      for a silo that took part in every round.

    Raises:
      AccountingError: if no accountant bounds the charges, or a guarantee cannot be computed.
      AttributeError, KeyError, TypeError, ValueError: if the terms have an unknown form.
    """
    terms, charges = ledger.terms, len(ledger.charges)
    before, _ = counted_priors(terms)
    bound = ledger_guarantee(ledger, accountant)
    alone = guarantee(ledger.run_spending, terms["delta"], accountant) if ledger.prior else bound
    planned = planned_guarantee(rounds, ledger, accountant)
    noise_multiplier, sampling_rate = _noise_and_rate(ledger.counts)
    stated = terms.get("examples")
    examples = stated and example_bound(
        charged_under(ledger, "examples"), before, float(stated["delta"])
    )
    return RunAudit(
        path=ledger.path.parent,
        guarantee=bound,
        alone=alone,
        charges=charges,
        terms=dict(terms),
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        problems=(),
        examples=examples,
        other=other_of(ledger, before, charges),
        planned=planned,
        planned_others=planned_others(rounds, ledger) if planned else (),
        budgets=ledger.budgets,
        ledger_head=ledger.head().hex(),
    )


def example_bound(spending: Spending, earlier: Priors, delta: float) -> Guarantee:
    """Returns the guarantee for an example of a silo, over `spending` and the `earlier` runs."""
    return examples_guarantee(spending, earlier.runs, delta, earlier.uncovered)


def other_of(ledger: Ledger, before: Priors, charges: int) -> Guarantee | None:
    """Returns the guarantee against the party for which the budget is not enforced.

    It covers the first `charges` charges of the ledger and the runs `before`. Returns None if the
    ledger states no such party: that is the case without distributed noise.
    """
    stated = ledger.terms.get("other")
    if stated is None:
        return None
    spending, against = charged_under(ledger, "other", charges), str(stated["against"])
    delta, clients = ledger.terms["delta"], clients_of(ledger.terms)
    return other_guarantee(spending, against, before.runs, delta, before.uncovered, clients)


def _noise_and_rate(spending: Spending) -> tuple[float | None, float | None]:
    """Returns the noise multiplier and the sampling rate if all rounds share one event.

    Both are None if rounds have different events, or none was charged. The multiplier is also None
    without noise, and the rate if clients are not sampled. The noise multiplier is the standard
    deviation of the noise over the clipping norm.
    """
    if len(spending) != 1:
        return None, None
    (event,) = spending
    noise = event.noise
    z = None if noise is None else noise.noise_multiplier * CHANGE[event.relation]
    match event.release:
        case PoissonSampled(rate=q) | TruncatedPoisson(rate=q) | SeveralSites(rate=q):
            return z, q
        case Repeated(of=PoissonSampled(rate=q)):
            return z, q
        case WithoutReplacement(cohort=m, clients=n):
            return z, m / n
        case Separated(separation=b) | BufferedToeplitz(separation=b) | RandomAllocation(slots=b):
            return z, 1 / b
    return z, None
