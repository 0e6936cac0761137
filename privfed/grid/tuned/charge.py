"""The one line that a tuning charges, before its first candidate, whatever their number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accounting.guarantee import Gate
from accounting.ledger import Ledger
from privfed.config.population_identity import population_identity
from privfed.errors import Refused
from privfed.grid.tuned.proposal import Proposal
from privfed.run.ledger_terms import mark_counted


def charge_tuning(proposal: Proposal, path: Path) -> Ledger:
    """The ledger at `path` with the charge of this tuning, made now where it is not there.

    Raises `Refused` where it is of another tuning, and `BudgetExceeded` as a run would.
    """
    ledger = Ledger.recover(path) if path.exists() else None
    if ledger is None or not ledger.opened:
        path.unlink(missing_ok=True)
        mark_counted(proposal.before, path.parent)
        ledger = Ledger.create(path, _terms(proposal))
    if ledger.terms.get("config") != proposal.digest:
        raise Refused(
            f"{path} is of another tuning: combinations, law or score are not those that were "
            "fixed when it was charged. Restore the grid and run files, or name another --out"
        )
    if not ledger.charges:
        budget, delta = proposal.plan.budget, proposal.config.privacy.delta
        if budget is not None:
            ledger.gate = Gate(budget, delta, proposal.config.privacy.accountant)
        ledger.charge(1, proposal.event)
    return ledger


def _terms(proposal: Proposal) -> dict[str, Any]:
    """What the ledger's first line states: all that a reader needs to know what epsilon means."""
    plan, config, event = proposal.plan, proposal.config, proposal.event
    identity = proposal.digest[:16] if proposal.seeded else os.urandom(8).hex()
    combinations = [dict(cell.values) for cell in proposal.cells]
    return {
        "id": identity,
        "unit": event.unit,
        "relation": event.relation,
        "sampler": event.sampler,
        "clients": config.data.clients,
        "delta": config.privacy.delta,
        "accountant": config.privacy.accountant,
        "randomness": config.run.randomness,
        "note": plan.simulation,
        "population": population_identity(config),
        "config": proposal.digest,
        "tuning": {
            "combinations": [{k: str(v) for k, v in each.items()} for each in combinations],
            "repetitions": proposal.repetitions.to_json(),
            "measure": proposal.measure,
            "lower_is_better": proposal.lower,
        },
        "budget": plan.budget,
        "lineage": proposal.before.lineage.to_json(),
        "prior": [prior.to_json() for prior in proposal.before.runs],
    }
