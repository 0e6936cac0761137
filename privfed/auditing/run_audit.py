"""The audit of a run: re-computes the spent privacy budget from the run's ledger alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accounting.empirical.claimed_profile import refutable_claims
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import Event, Spending, summable
from accounting.guarantee import CHOICES, Guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import (
    PoissonSampled,
)
from accounting.slack import with_slack
from privfed.auditing.audited_run import RunAudit, uncounted_charges
from privfed.auditing.canaries.evidence import Evidence
from privfed.auditing.canaries.log import CanaryLog
from privfed.auditing.contradictions import (
    file_contradictions,
    lower_claims,
    lower_example_claims,
    lower_other_claims,
)
from privfed.auditing.ledger_audit import audit_ledger, example_bound, other_of
from privfed.core.errors import MISPLACED, Broken, Refused, public_text
from privfed.plan.composed_guarantees import (
    counted_priors,
)
from privfed.plan.prior_spending import Priors, charged_under
from privfed.store.kept_heads import charges_since, check_heads
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord

CROSS_CHECKS = ("opacus_rdp", "opacus_prv")


def opacus_epsilon(spending: Spending, delta: float, accountant: str) -> float | None:
    """Returns the epsilon of `spending` by opacus' RDP or PRV accountant, as a cross-check.

    Opacus' GDP accountant is never used: it underestimates epsilon.

    Args:
      spending: the number of charges of each event.
      delta: delta of the guarantee.
      accountant: "opacus_rdp" or "opacus_prv".

    Returns:
      Epsilon; infinite without noise; 0 without charges; None if opacus has no accountant for one
      of the events.

    Raises:
      Refused: if opacus is not installed or fails.
    """
    history = []
    for event, count in summable(spending).items():
        match event.release:
            case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)) if z > 0:
                history.append((z, q, count))
            case Gaussian(noise_multiplier=z) if z > 0:
                history.append((z, 1.0, count))
            case PoissonSampled(of=Gaussian()) | Gaussian():
                return math.inf
            case _:
                return None
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError as error:
        raise Refused(
            f"{accountant} needs opacus, which is not installed: pip install 'privfed[opacus]'"
        ) from error
    opacus = RDPAccountant() if accountant == "opacus_rdp" else PRVAccountant()
    opacus.history = history
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opacus warns about its range of orders
            slack = sum(event.slack * count for event, count in spending.items())
            epsilon = with_slack(lambda left: float(opacus.get_epsilon(delta=left)), delta, slack)
            return epsilon if history else 0.0
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        raise Refused(
            f"{accountant} cannot account for this run: {error}; use another accountant"
        ) from error


def audit_silos(
    directory: RunDirectory, ledger: Ledger, earlier: Priors
) -> tuple[Guarantee | None, list[str]]:
    """Returns the guarantee for an example of the silo that spent most, and problems of ledgers.

    The silos' own ledgers are used if all of them are available without problems, and participation
    is not secret. Otherwise the guarantee is that of a silo that took part in every round.

    Args:
      directory: the run.
      ledger: the run's ledger.
      earlier: earlier runs, which are included.

    Returns:
      The guarantee (None without DP-SGD in silos), and the problems of the silos' ledgers.
    """
    stated = ledger.terms.get("examples")
    if stated is None:
        return None, []
    event, delta = Event.from_json(stated["event"]), float(stated["delta"])
    in_every_round = example_bound(charged_under(ledger, "examples"), earlier, delta)
    opened = (Ledger.load(path) for path in sorted(directory.silos.glob("*.jsonl")))
    # Before the first round a ledger may be incomplete: nothing was charged to it yet.
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
    bounds = [example_bound(silo.run_spending, earlier, delta) for silo in silos]
    return max(bounds, key=lambda bound: bound.epsilon), problems


ALL = "all"
"""Name that selects every accountant that applies, including the cross-checks."""
_GRID, _GRID_ABSOLUTE = 1.02, 0.02
"""Tolerance of PLD's grid over RDP's bound: a factor, and an additive term."""


def audit(
    run: Path | RunDirectory | RunRecord, accountant: str | None = None, head: str | None = None
) -> RunAudit:
    """Audits a run and changes nothing.

    If the run keeps its ledger heads elsewhere (`run.heads`), the ledger is also compared with that
    file.

    Args:
      run: the run's directory, or the run as opened or read.
      accountant: rdp, pld or tightest, or an independent cross-check: opacus_rdp, opacus_prv, or
        "all" for both. Cross-checks are reported separately and never replace the stated epsilon.
        None: the run's own accountant.
      head: an earlier head of the ledger; the audit then verifies that no line before it was
        removed or changed.

    Returns:
      The audit. A broken or contradictory run yields an infinite epsilon and its problems.

    Raises:
      Refused: if the path is not a run, if the accountant is unknown, if `head` is not 12 to 64
        hexadecimal digits, or if a cross-check needs opacus and it is not installed or fails.
    """
    if accountant is not None and accountant not in (*CHOICES, *CROSS_CHECKS, ALL):
        names = ", ".join((*CHOICES, *CROSS_CHECKS, ALL))
        raise Refused(f"accountant is {accountant!r}; expected one of {names}")
    path = RunRecord.path_of(run)
    # The ledger is read last, so that it holds every charge the other files of a live run cite.
    try:
        record = RunRecord.open(run)
        _ = record.releases, [*record.claims], record.digest, record.companions
        _ = record.checkpoint_head
        ledger = record.ledger
    except (Broken, LedgerBroken) as error:
        return _broken(path, {}, str(error))
    except MISPLACED as error:
        return _broken(path, {}, f"the run is incomplete: {public_text(error)}")
    broken = partial(_broken, path, dict(ledger.terms))
    if problems := file_contradictions(record):
        return broken(*problems)
    since = None if head is None else charges_since(ledger, head)
    if head is not None and since is None:
        return broken(f"this ledger was never at the head {head}: lines were cut off or changed")
    heads = check_heads(ledger, record.directory.config.heads_file())
    if heads and heads.problems:
        return broken(*heads.problems)
    headline = accountant if accountant in CHOICES else ledger.terms["accountant"]
    try:
        audited = _accounted(record, headline)
    except (AccountingError, AttributeError, KeyError, TypeError, ValueError) as error:
        return broken(f"{ledger.path}: {public_text(error)}")
    except Broken as error:
        return broken(str(error))
    checks = [name for name in CROSS_CHECKS if accountant in (name, ALL)]
    delta = ledger.terms["delta"]
    opinions = {name: opacus_epsilon(ledger.spending, delta, name) for name in checks}
    return replace(audited, opinions=opinions, charges_since=since, heads=heads)


def _accounted(record: RunRecord, accountant: str) -> RunAudit:
    """Returns the audit of the ledger; claims below the ledger's guarantees are `problems` of it.

    Raises:
      Broken: if a file of the run is damaged.
      AccountingError, AttributeError, KeyError, TypeError, ValueError: see `audit_ledger`.
    """
    directory, ledger = record.directory, record.ledger
    audited = audit_ledger(ledger, directory.config.rounds(), accountant)
    assert audited.guarantee is not None
    assert audited.alone is not None
    before, _ = counted_priors(ledger.terms)
    examples, foreign = audit_silos(directory, ledger, before)
    problems = [
        *lower_claims(record),
        *uncounted_charges(ledger.terms),
        *(() if ledger.chosen else _crossed(audited.guarantee)),  # a selection has loose bounds
        *foreign,
        *lower_example_claims(record, examples),
        *lower_other_claims(record, partial(other_of, ledger, before)),
    ]
    return replace(
        audited,
        path=directory.path,
        problems=tuple(problems),
        examples=examples,
        canaries=_canaries(directory, ledger, audited.alone),
        excluded=len(directory.exclusions.culprits()),
    )


def _canaries(directory: RunDirectory, ledger: Ledger, alone: Guarantee) -> Evidence | None:
    """Returns the evidence of the run's canaries about its own charges, whose guarantee is `alone`.

    Returns None without canaries, without their log in `directory`, before the run has ended,
    without charges, and where `weigh` returns None.
    """
    count = ledger.terms.get("canaries", 0)
    record = CanaryLog(directory.canaries, count).read() if count else None
    if record is None or not record.ended or not ledger.run_spending:
        return None
    # Imported lazily: few runs have canaries, and these modules import torch.
    from privfed.auditing.canaries.scores import Scale, weigh

    config = directory.config.read()
    (event, *_) = ledger.run_spending
    claims, slack = refutable_claims(ledger.run_spending, alone.delta, alone.accountant)
    scale = Scale.of(config, record.dimension) if len(record.rounds) else None
    return weigh(record, event, scale, claims, config.audit.confidence, slack)


def _crossed(bound: Guarantee) -> Iterator[str]:
    """Yields a problem's text if PLD's bound exceeds RDP's by more than the error of PLD's grid.

    PLD is the exact composition on a grid. If its bound exceeds RDP's, one of the two is wrong.
    """
    rdp, pld = bound.by_accountant["rdp"], bound.by_accountant["pld"]
    if rdp is not None and pld is not None and pld > rdp * _GRID + _GRID_ABSOLUTE:
        yield (
            f"the accountants contradict each other: pld {pld:g} is above rdp {rdp:g}; report this "
            "as a bug of privfed, with the ledger"
        )


def _broken(path: Path, terms: dict[str, Any], *problems: str) -> RunAudit:
    """Returns the audit of a run that proves no guarantee because of `problems`."""
    return RunAudit(path, None, None, 0, terms, None, None, problems)
