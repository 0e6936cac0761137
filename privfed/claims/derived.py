"""Every section of a claim that follows from its evidence.

The functions here read the rebuilt ledger, the configuration and the stated facts, and nothing
else: whoever has the claim computes the same sections (`privfed.claims.verified`).
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from accounting.curves import delta_at, gaussian_mu
from accounting.documents import encoded
from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.events import CHANGE, Event, Spending
from accounting.guarantee import Guarantee
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from privfed.claims.evidence import ClaimedRun
from privfed.claims.schema import (
    AuditSection,
    Bound,
    Claim,
    ClaimEvidence,
    CompositionSection,
    GuaranteeSection,
    MechanismSection,
    MembershipBounds,
    Point,
    Rates,
    ReleaseSection,
    SamplingSection,
    SecureSumsSection,
    SubjectSection,
    TrustSection,
    Unknown,
)
from privfed.core import __version__
from privfed.plan.assumed import SERVER, Assumed
from privfed.plan.composed_guarantees import added_later
from privfed.plan.prior_spending import Priors, planned_by, total
from privfed.report.page.promise import quotations, reservations_of, seen_text, trust_text

_EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The epsilons at which a claim states the privacy profile."""
_FALSE_POSITIVES = (0.001, 0.01, 0.1)
_LIBRARIES = ("numpy", "scipy", "dp-accounting")
_NOT_STATED = "the issuer did not state it"
_NO_CONFIGURATION = "the claim has no configuration of privfed"


def derived_claim(evidence: ClaimEvidence) -> Claim:
    """Returns the claim that follows from `evidence`, without its digest.

    Raises:
      LedgerBroken: if the ledger's chain does not hold, or it states another configuration.
      AccountingError: if no accountant bounds the charges.
      AttributeError, KeyError, TypeError, ValueError: if the evidence has another form.
    """
    run = ClaimedRun.of(evidence)
    return Claim(
        subject=_subject(run),
        guarantee=_guarantee(run),
        trust=_trust(run),
        releases=list(_releases(run)),
        composition=_composition(run),
        mechanism=_mechanism(run),
        sampling=_sampling(run),
        secure_sums=_secure_sums(run),
        not_covered=list(reservations_of(run)) if run.keys else list(_not_covered_elsewhere(run)),
        audits=_audits(run),
        evidence=evidence,
        written_by={
            "privfed": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    )


def _stated(value: Any, reason: str = _NOT_STATED) -> Any:
    """Returns `value`; if it is None or "", an unknown fact with the `reason`."""
    return Unknown(unknown=reason) if value is None or value == "" else value


def _subject(run: ClaimedRun) -> SubjectSection:
    terms, model = run.ledger.terms, run.stated.get("model") or {}
    no_model = "the run has released no model" if run.keys else _NOT_STATED
    return SubjectSection(
        framework=str(run.stated["framework"]),
        run=str(terms["id"]),
        releases=len(run.ledger.charges),
        planned_rounds=_stated(run.key("run", "rounds"), _NO_CONFIGURATION),
        ended=_stated(run.stated.get("ended")),
        ledger_head=run.ledger.head().hex() if run.keys else _stated(None, "there is no ledger"),
        configuration_sha256=_stated(terms.get("config"), _NO_CONFIGURATION),
        model_sha256=_stated(model.get("sha256"), no_model),
        parameters=_stated(model.get("parameters"), no_model),
    )


def _guarantee(run: ClaimedRun) -> GuaranteeSection:
    audit, terms = run.audit, run.ledger.terms
    charged = audit.guarantee
    assert charged is not None
    reported = audit.planned or charged
    reasons = [terms.get("guarantee"), terms.get("note"), *run.lost_claims]
    if not reported.epsilon < math.inf:
        reasons.append(reported.missing or "no finite epsilon is proved")
    why = "; ".join(filter(None, reasons))
    profile, membership = _profile(run, reported)
    others = audit.planned_others or (audit.examples, audit.other)
    return GuaranteeSection(
        holds=not why,
        reason=why,
        unit=reported.unit,
        adjacency=reported.relation,
        reported=_bound(reported),
        charged=_bound(charged),
        further=[_bound(each) for each in others if each is not None],
        mu=_stated(
            gaussian_mu(_spending(run)),
            "the releases do not compose to a Gaussian mechanism; use the profile",
        ),
        profile=profile,
        membership=membership,
        quotations=list(quotations(run)),
    )


def _bound(bound: Guarantee) -> Bound:
    return Bound(
        unit=bound.unit,
        adjacency=bound.relation,
        against=bound.against,
        epsilon=bound.epsilon,
        delta=bound.delta,
        accountant=bound.accountant,
        accountants=bound.by_accountant,
        meaning=bound.sentence(),
        caveat=bound.caveat,
    )


def _spending(run: ClaimedRun) -> Spending:
    """Returns the charges that the reported guarantee composes: of all planned rounds, if any."""
    if run.audit.planned is None:
        return run.ledger.spending
    done = run.ledger.run_spending if run.ledger.chosen else planned_by(run.rounds, run.ledger)
    return total([Priors.from_terms(run.ledger.terms).planned, done])


def _profile(
    run: ClaimedRun, reported: Guarantee
) -> tuple[list[Point] | Unknown, MembershipBounds | Unknown]:
    """Returns the privacy profile, and its bounds on membership inference."""
    spending, accountant = _spending(run), reported.accountant
    if not reported.epsilon < math.inf or not spending:
        none = Unknown(unknown=reported.missing or "nothing finite is proved")
        return none, none
    points = [
        Point(epsilon=epsilon, delta=delta_at(spending, epsilon, accountant))
        for epsilon in _EPSILONS
    ]
    curve = ClaimedCurve(
        [
            *((point.epsilon, point.delta) for point in points),
            *claimed_profile(spending, reported.delta, accountant),
        ]
    )
    positives = 1 - curve.reflected(1 - np.array(_FALSE_POSITIVES))
    rates = [
        Rates(false_positive_rate=false, true_positive_rate=min(float(true), 1.0))
        for false, true in zip(_FALSE_POSITIVES, positives, strict=True)
    ]
    return points, MembershipBounds(correct_guess=(1 + points[0].delta) / 2, rates=rates)


def _trust(run: ClaimedRun) -> TrustSection:
    terms = run.ledger.terms
    assumed = Assumed.from_terms(terms) if run.keys else None
    if assumed is None:
        unknown = Unknown(unknown=_NOT_STATED)
        model = str(run.stated.get("trust") or _NOT_STATED)
        return TrustSection(
            model=model,
            trusts=unknown,
            relies_on=unknown,
            colluders=unknown,
            byzantine=unknown,
            messages=_NOT_STATED,
            malicious_server=_NOT_STATED,
        )
    return TrustSection(
        model=trust_text(run.audit),
        trusts=list(assumed.trusts),
        relies_on=list(assumed.trusted_parties),
        colluders=assumed.colluders,
        byzantine=assumed.byzantine,
        messages=seen_text(run.audit),
        malicious_server=_malicious_server(run, assumed),
    )


def _malicious_server(run: ClaimedRun, assumed: Assumed) -> str:
    """Describes what a server that deviates from the protocol could learn."""
    if SERVER in assumed.trusts:
        return f"all that it sees ({seen_text(run.audit)}); epsilon bounds all other parties' views"
    if assumed.trusted_parties:
        relied = " and ".join(assumed.trusted_parties)
        return f"epsilon relies on {relied}; without that, no bound on what it learns is proved"
    if run.ledger.terms.get("trust") == "nobody":
        return f"all that it sees ({seen_text(run.audit)})"
    return "no more than epsilon permits: noise is added before it sees a value"


def _releases(run: ClaimedRun) -> Iterator[ReleaseSection]:
    """Yields every kind of release about the population, of this run and of earlier ones."""
    ledger, terms = run.ledger, run.ledger.terms
    purposes = _purposes(run)
    for event, count in Counter(charge.event for charge in ledger.charges).items():
        purpose = purposes.get(event, "further release")
        yield _release(str(terms["id"]), purpose, event, count)
    if ledger.chosen is not None:
        yield _release(str(terms["id"]), "tuning", ledger.chosen, 1)
    for prior in Priors.from_terms(terms).runs:
        for event, count in prior.spending.items():
            yield _release(prior.run, "earlier run", event, count)


def _purposes(run: ClaimedRun) -> dict[Event, str]:
    """Returns the purpose of each event of the run that was planned."""
    terms = run.ledger.terms
    if "purposes" in terms:  # of another framework
        return {Event.from_json(event): str(purpose) for event, purpose in terms["purposes"]}
    stated = (terms.get("planned") or {}).get("events", [])
    training = "statistics" if run.stated.get("statistics") else "training"
    return {
        Event.from_json(event): purpose
        for event, purpose in reversed([*zip(stated, (training, "evaluation"), strict=False)])
    }


def _release(run: str, purpose: str, event: Event, count: int) -> ReleaseSection:
    return ReleaseSection(run=run, purpose=purpose, event=encoded(event), count=count)


def _composition(run: ClaimedRun) -> CompositionSection:
    ledger, audit = run.ledger, run.audit
    assert audit.alone is not None
    rule = (
        "the events of all releases, of this run and of the counted earlier runs, are accounted "
        "for together; epsilons are never added"
    )
    if ledger.chosen is not None:
        rule += "; the choice among candidate runs is one event, which covers their releases"
    if run.keys and (later := added_later(run.rounds, ledger)):
        rule += f"; {later}"
    return CompositionSection(
        rule=rule,
        budget=ledger.budget,
        budget_changes=encoded(ledger.budgets),
        epsilon_of_this_run=audit.alone.epsilon,
        earlier_runs=[prior.run for prior in Priors.from_terms(ledger.terms).runs],
        disjoint_runs=[str(each["id"]) for each in ledger.terms.get("disjoint", ())],
    )


def _mechanism(run: ClaimedRun) -> MechanismSection:
    terms, audit = run.ledger.terms, run.audit
    clip = run.stated.get("clip")
    encoding = (terms.get("secure") or {}).get("encoded", 1.0)
    change = CHANGE.get(str(terms["relation"]))
    sensitivity = clip * change * encoding if clip and change else None
    no_clip = "no noise is added" if terms.get("trust") == "nobody" else _NOT_STATED
    return MechanismSection(
        name=str(terms.get("mechanism", "gaussian")),
        noise_multiplier=audit.noise_multiplier,
        clip=_stated(clip, no_clip),
        adaptive_clip=_stated(run.key("privacy", "adaptive_clip") if run.keys else None, no_clip),
        sensitivity=_stated(sensitivity, no_clip),
        arithmetic=_stated(terms.get("arithmetic")),
        randomness=_stated(terms.get("randomness")),
        proof=_stated(run.proof, "the parts that the configuration names were not available"),
    )


def _sampling(run: ClaimedRun) -> SamplingSection:
    terms = run.ledger.terms
    examples = "all examples of a client" + (
        f" (partition {terms['partition']})" if "partition" in terms else ""
    )
    return SamplingSection(
        sampler=str(terms["sampler"]),
        rate=run.audit.sampling_rate,
        clients=_stated(terms.get("clients") or None),
        participation=_participation(charge.event for charge in run.ledger.charges),
        examples=examples if run.keys else _stated(None),
    )


def _participation(events: Iterable[Event]) -> str:
    """Describes how often one client takes part in releases."""
    apart = {
        release.slots if isinstance(release, RandomAllocation) else release.separation
        for release in (event.release for event in dict.fromkeys(events))
        if isinstance(release, Separated | BufferedToeplitz | RandomAllocation)
    }
    if not apart:
        return "at most once in each release"
    return f"at most once in any {min(apart)} successive releases"


def _secure_sums(run: ClaimedRun) -> SecureSumsSection | Unknown:
    terms = run.ledger.terms
    secure = terms.get("secure")
    if secure is None:
        return Unknown(unknown=_NOT_STATED)
    return SecureSumsSection(
        protocol=str(secure["protocol"]),
        cryptography=bool(secure["cryptography"]),
        keys=dict(run.keys.get("secure", {})),
        sites=terms.get("sites"),
    )


def _not_covered_elsewhere(run: ClaimedRun) -> Iterator[str]:
    """Yields the limits of a guarantee of another framework."""
    yield (
        f"Nothing here was measured: every fact is a statement about {run.stated['framework']} by "
        "the issuer, from which the guarantee was computed."
    )
    yield "Releases that the issuer did not list, such as tuning or evaluation, are not included."


def _audits(run: ClaimedRun) -> list[AuditSection] | Unknown:
    result = run.stated.get("canaries")
    if result is None:
        return Unknown(unknown="no empirical test of this run is on record")
    power = _stated(run.stated.get("power"), "the run's parts were not available")
    return [AuditSection(by="canaries", result=result, power=power)]
