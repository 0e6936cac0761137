"""Makes the single charge of private tuning, before the first candidate is drawn.

The ledger contains a commitment to the secret from which all draws derive. The secret is stored
durably before the charge and is never drawn again, so one charge can release the best of only one
set of candidates.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.durable import make_folder
from accounting.guarantee import Gate
from accounting.ledger import Ledger, terms_at
from privfed.config.population_identity import population_identity
from privfed.core.errors import Broken, Refused
from privfed.grid.tuning_proposal import Proposal
from privfed.plan.prior_spending import Priors
from privfed.run.ledger_terms import mark_counted
from privfed.store.run_files import PrivateKey


@dataclass(frozen=True)
class Places:
    """The paths of a private tuning's files in the folder `grid`; only `best` and `ledger` are
    public.
    """

    grid: Path

    @property
    def best(self) -> Path:
        """The directory of the released run."""
        return self.grid / "best"

    @property
    def ledger(self) -> Path:
        """The ledger with the single charge; its file name differs from that of a run's ledger."""
        return self.grid / "tuning.jsonl"

    @property
    def private(self) -> Path:
        """The folder of secret files, which only its owner may read.

        The candidates are one level further down, because the number of a folder's subfolders is
        visible even without permission to read it.
        """
        return self.grid / "private"

    @property
    def candidates(self) -> Path:
        """The folder that contains a folder for each candidate."""
        return self.private / "candidates"

    @property
    def key(self) -> PrivateKey:
        """The secret from which all draws derive."""
        return PrivateKey(self.private / "key")

    @property
    def log(self) -> Path:
        """The file with the output of candidates and the causes of interruptions.

        It reveals the number of candidates.
        """
        return self.private / "log.txt"


def charge_tuning(proposal: Proposal, places: Places) -> Ledger:
    """Returns the ledger with the charge of this tuning, after charging it if it is not yet
    charged.

    Args:
      proposal: the accepted tuning.
      places: the paths of the tuning's files.

    Raises:
      Refused: if the folder has runs that this ledger did not charge, or another tuning's ledger.
      BudgetExceeded: if earlier runs left too little of the budget.
    """
    ledger = Ledger.recover(places.ledger) if places.ledger.exists() else None
    if ledger is None or not ledger.charges:
        ledger = _opened(proposal, places)
        budget, delta = proposal.plan.budget, proposal.config.privacy.delta
        if budget is not None:
            ledger.gate = Gate(budget, delta, proposal.config.privacy.accountant)
        ledger.charge(1, proposal.event)
    _refuse_another(proposal, ledger)
    if places.best.exists():
        refuse_uncharged_candidate(places.best, ledger)
    return ledger


def secret(proposal: Proposal, places: Places, ledger: Ledger) -> bytes | None:
    """Returns the 32 secret bytes from which all draws derive; None in a seeded simulation.

    Args:
      proposal: the accepted tuning.
      places: the paths of the tuning's files.
      ledger: the ledger with the charge and the commitment to the bytes.

    Raises:
      Broken: if the bytes are lost or differ from the commitment, or if the folder of candidates is
        lost. New draws would release the best of more runs than were charged.
    """
    if proposal.seeded:
        return None
    spent = (
        f"the charge in {ledger.path} is spent, but its random draws are lost, and new draws would "
        f"need a new charge; restore {places.private}, or name another --out"
    )
    try:
        key = places.key.read_or_draw(str(ledger.terms["id"]), fresh=False)
    except Broken as error:
        raise Broken(
            f"{places.key.path} is missing, or belongs to another tuning; {spent}"
        ) from error
    if ledger.terms["tuning"].get("secret") != _commitment(key):
        raise Broken(f"{places.key.path} differs from the ledger's commitment; {spent}")
    if not places.candidates.is_dir():
        raise Broken(f"{places.candidates} is missing; {spent}")
    return key


def refuse_uncharged_candidate(run: Path, ledger: Ledger) -> None:
    """Raises `Refused` unless the run directory `run` is a candidate's that `ledger` charged."""
    chosen = terms_at(run / "ledger.jsonl").get("chosen", {})
    if not ledger.charges or chosen.get("charge") != ledger.charges[0].hash:
        raise Refused(
            f"{run} is not a run of this tuning, so the charge in {ledger.path} does not cover it; "
            f"move {run} away, or name another --out"
        )


def _opened(proposal: Proposal, places: Places) -> Ledger:
    """Draws a new secret, and creates and returns a ledger that commits to it and has no charge
    yet.

    Files of a tuning that was interrupted before its charge are replaced. Raises `Refused` if runs
    exist although there is no charge.
    """
    for place in (places.best, places.candidates):
        if place.exists() and any(place.iterdir()):
            raise Refused(
                f"{place} exists, but {places.ledger} has no charge for this tuning; restore that "
                "ledger, or name another --out"
            )
    places.ledger.unlink(missing_ok=True)
    places.key.path.unlink(missing_ok=True)  # of a tuning that was interrupted before its charge
    mark_counted(proposal.before, places.grid)
    make_folder(places.candidates, 0o700)
    identity, stated = proposal.digest[:16], {}
    if not proposal.seeded:
        identity = os.urandom(8).hex()
        stated = {"secret": _commitment(places.key.read_or_draw(identity, fresh=True))}
    return Ledger.create(places.ledger, _terms(proposal, identity, stated))


def _commitment(key: bytes) -> str:
    """Returns a commitment to the secret `key`: a hash, which does not reveal the key."""
    return hashlib.sha256(b"privfed tuning secret " + key).hexdigest()


def _refuse_another(proposal: Proposal, ledger: Ledger) -> None:
    """Raises `Refused` if `ledger` is the ledger of another tuning."""
    if ledger.terms.get("config") != proposal.digest:
        differs = "the combinations, the expected number of candidates, or the score"
    elif Priors.from_terms(ledger.terms).runs != proposal.before.runs:
        differs = "the runs in privacy.prior"
    elif ledger.charges[0].event != proposal.event:
        differs = "the rounds, cohort or noise of a candidate"
    else:
        return
    raise Refused(
        f"{ledger.path} belongs to another tuning: since its charge, {differs} changed; restore "
        "the grid file, the run file and the earlier runs, or name another --out"
    )


def _terms(proposal: Proposal, identity: str, stated: dict[str, str]) -> dict[str, Any]:
    """Returns the terms of the ledger's first line: all that is needed to interpret the epsilon of
    its charge.

    `stated` holds the commitment to the secret, if there is one.
    """
    plan, config, event = proposal.plan, proposal.config, proposal.event
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
        "trust": plan.mechanism.trust,
        "assumes": plan.assumed.to_json(),
        "population": population_identity(config),
        "config": proposal.digest,
        "tuning": {
            "combinations": [{k: str(v) for k, v in each.items()} for each in combinations],
            "repetitions": proposal.repetitions.to_json(),
            "measure": proposal.measure,
            "lower_is_better": proposal.lower,
            **stated,
        },
        "budget": plan.budget,
        "lineage": proposal.before.lineage.to_json(),
        "prior": [prior.to_json() for prior in proposal.before.runs],
    }
