"""The audit of a run: re-computes the spent privacy budget from the run's ledger alone."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accounting.empirical.claimed_profile import refutable_claims
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import CHANGE, Event, Spending, summable
from accounting.guarantee import CHOICES, Guarantee, guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
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
from privfed.core.errors import MISPLACED, Broken, Refused, public_text
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
      Epsilon; None if opacus has no accountant for one of the events.

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

    The silos' own ledgers are used if all of them are available and participation is not secret.
    Otherwise the guarantee is that of a silo that took part in every round.

    Args:
      directory: the run.
      ledger: the run's ledger.
      earlier: earlier runs, which are included.

    Returns:
      The guarantee, None without DP-SGD in silos; and the problems found.
    """
    stated = ledger.terms.get("examples")
    if stated is None:
        return None, []
    event, delta = Event.from_json(stated["event"]), float(stated["delta"])
    in_every_round = _example_bound(charged_under(ledger, "examples"), earlier, delta)
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
    bounds = [_example_bound(silo.run_spending, earlier, delta) for silo in silos]
    return max(bounds, key=lambda bound: bound.epsilon), problems


def _example_bound(spending: Spending, earlier: Priors, delta: float) -> Guarantee:
    return examples_guarantee(spending, earlier.runs, delta, earlier.uncovered)


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
      Refused: if the path is not a run, if the accountant is unknown, or if a cross-check needs
        opacus and it is not installed or fails.
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
    """Computes every guarantee of the ledger, and lists claims that are below it as problems.

    Raises:
      AccountingError: if no accountant bounds the charges, or a guarantee cannot be computed.
      Broken: if a file of the run is damaged.
      AttributeError, KeyError, TypeError, ValueError: if the ledger's terms have an unknown form.
    """
    directory, ledger = record.directory, record.ledger
    terms, charges = ledger.terms, len(ledger.charges)
    before, _ = counted_priors(terms)
    bound = ledger_guarantee(ledger, accountant)
    problems = [
        *lower_claims(record),
        *uncounted_charges(terms),
        *(() if ledger.chosen else _crossed(bound)),  # both bounds of a selection are loose
    ]
    examples, foreign = audit_silos(directory, ledger, before)
    problems += [*foreign, *lower_example_claims(record, examples)]
    problems += lower_other_claims(record, partial(_other, ledger, before))
    alone = guarantee(ledger.run_spending, terms["delta"], accountant) if ledger.prior else bound
    canaries = _canaries(directory, ledger, alone)
    rounds = directory.config.rounds()
    planned = planned_guarantee(rounds, ledger, accountant)
    noise_multiplier, sampling_rate = _noise_and_rate(Counter(c.event for c in ledger.charges))
    return RunAudit(
        path=directory.path,
        guarantee=bound,
        alone=alone,
        charges=charges,
        terms=dict(terms),
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        problems=tuple(problems),
        examples=examples,
        other=_other(ledger, before, charges),
        planned=planned,
        planned_others=planned_others(rounds, ledger) if planned else (),
        canaries=canaries,
        budgets=ledger.budgets,
        ledger_head=ledger.head().hex(),
        excluded=len(directory.exclusions.culprits()),
    )


def _canaries(directory: RunDirectory, ledger: Ledger, alone: Guarantee) -> Evidence | None:
    """Returns the evidence of the run's canaries about its own charges, whose guarantee is `alone`.

    Returns None without canaries, without their secrets, before the run has ended, or for too few
    canaries.
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
    """Yields a problem if PLD's bound is above RDP's.

    PLD is the exact composition on a grid. If its bound exceeds RDP's, one of the two is wrong.
    """
    rdp, pld = bound.by_accountant["rdp"], bound.by_accountant["pld"]
    if rdp is not None and pld is not None and pld > rdp * _GRID + _GRID_ABSOLUTE:
        yield (
            f"the accountants contradict each other: pld {pld:g} is above rdp {rdp:g}; report this "
            "as a bug of privfed, with the ledger"
        )


def _other(ledger: Ledger, before: Priors, charges: int) -> Guarantee | None:
    """Returns the guarantee against the party other than `privacy.against`.

    It covers the first `charges` charges and the runs `before`. Returns None without distributed
    noise. The budget is not enforced for this guarantee.
    """
    stated = ledger.terms.get("other")
    if stated is None:
        return None
    spending, against = charged_under(ledger, "other", charges), str(stated["against"])
    delta, clients = ledger.terms["delta"], clients_of(ledger.terms)
    return other_guarantee(spending, against, before.runs, delta, before.uncovered, clients)


def _noise_and_rate(spending: Spending) -> tuple[float | None, float | None]:
    """Returns the noise multiplier and the sampling rate if all rounds share one event.

    Both are None if rounds have different events. The noise multiplier is the standard deviation of
    the noise over the clipping norm.
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


def _broken(path: Path, terms: dict[str, Any], *problems: str) -> RunAudit:
    """Returns the audit of a run that proves no guarantee because of `problems`."""
    return RunAudit(path, None, None, 0, terms, None, None, problems)
