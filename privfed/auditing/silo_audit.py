"""What DP-SGD inside of silos guarantees one example, by the silos' own ledgers."""

from __future__ import annotations

from accounting.events import Event, Spending
from accounting.guarantee import Guarantee
from accounting.ledger import Ledger
from privfed.plan.composed_guarantees import examples_guarantee
from privfed.plan.prior_spending import Priors, charged_under
from privfed.store.run_directory import RunDirectory


def audit_silos(
    directory: RunDirectory, ledger: Ledger, earlier: Priors
) -> tuple[Guarantee | None, list[str]]:
    """The guarantee for one example of the silo that spent most, and what is wrong with ledgers.

    None without DP-SGD in silos. By the silos' own ledgers, where all are at hand and who took part
    is no secret: else as if one had taken part in every round. Earlier runs are included.
    """
    stated = ledger.terms.get("examples")
    if stated is None:
        return None, []
    event, delta = Event.from_json(stated["event"]), float(stated["delta"])
    in_every_round = _example_bound(charged_under(ledger, "examples"), earlier, delta)
    opened = (Ledger.load(path) for path in sorted(directory.silos.glob("*.jsonl")))
    # Before the first round, one may be torn as it was begun: nothing was charged to it.
    silos = [silo for silo in opened if silo.opened or ledger.charges]
    rounds = {charge.round for charge in ledger.charges}
    problems = [
        f"{silo.path} is not the ledger of a silo of this run"
        for silo in silos
        if silo.terms.get("id") != ledger.terms["id"]
        or silo.terms.get("delta") != delta
        or any(charge.event != event or charge.round not in rounds for charge in silo.charges)
    ]
    secret = ledger.terms.get("trust") != "nobody"
    if secret or problems or len(silos) != stated.get("silos"):
        return in_every_round, problems
    bounds = [_example_bound(silo.run_spending, earlier, delta) for silo in silos]
    return max(bounds, key=lambda bound: bound.epsilon), problems


def _example_bound(spending: Spending, earlier: Priors, delta: float) -> Guarantee:
    return examples_guarantee(spending, earlier.runs, delta, earlier.uncovered)
