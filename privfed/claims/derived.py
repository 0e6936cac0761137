"""Computes every section of a claim that follows from the claim's evidence.

The functions here read the rebuilt ledger, the configuration and the stated facts, and nothing
else: whoever has the claim computes the same sections (`privfed.claims.verified`).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from accounting.curves import gaussian_mu
from accounting.documents import encoded
from accounting.events import CHANGE, Event
from accounting.guarantee import Guarantee
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from privfed.claims.evidence import ClaimedRun
from privfed.claims.profile import profile_of, reported_spending
from privfed.claims.schema import (
    AuditSection,
    Bound,
    Claim,
    ClaimEvidence,
    CompositionSection,
    GuaranteeSection,
    MechanismSection,
    ReleaseSection,
    SamplingSection,
    SecureSumsSection,
    SubjectSection,
    TrustSection,
    Unknown,
)
from privfed.core import __version__
from privfed.core.text import with_numbers
from privfed.plan.assumed import SERVER, Assumed
from privfed.plan.composed_guarantees import added_later
from privfed.plan.prior_spending import Priors
from privfed.report.page.promise import quotations, reservations_of, seen_text, trust_text

_LIBRARIES = ("numpy", "scipy", "dp-accounting")
_NOT_STATED = "the issuer did not state it"
_NO_CONFIGURATION = "the claim has no configuration of privfed"


def derived_claim(evidence: ClaimEvidence) -> Claim:
    """Returns the claim that follows from `evidence`, without its digest.

    Raises:
      LedgerBroken: if the ledger's chain does not hold, or the ledger contradicts the configuration
        or its own charges.
      AccountingError: if no accountant bounds the charges.
      AttributeError, KeyError, TypeError, ValueError: if the evidence is malformed.
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
    """Returns `value`, or an `Unknown` with the `reason` if `value` is None or ""."""
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
    if run.seeded and not terms.get("note"):
        reasons.append("noise and cohorts follow from a seed")
    if (run.stated.get("canaries") or {}).get("refuted"):
        reasons.append("the canaries refute the claim")
    if not reported.epsilon < math.inf:
        reasons.append(reported.missing or "no finite ε is proved")
    why = "; ".join(filter(None, reasons))
    profile, membership = profile_of(run, reported)
    others = audit.planned_others or (audit.examples, audit.other)
    return GuaranteeSection(
        holds=not why,
        reason=why,
        unit=reported.unit,
        adjacency=reported.relation,
        reported=_bound(reported),
        charged=_bound(charged),
        further=[_bound(each) for each in others if each is not None],
        mu=profile
        if isinstance(profile, Unknown)
        else _stated(
            gaussian_mu(reported_spending(run)),
            "the releases do not compose to a Gaussian mechanism; use the profile",
        ),
        profile=profile,
        membership=membership,
        quotations=list(quotations(run)) if not why else [],
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
    terms = run.ledger.terms
    trust, secure = terms.get("trust"), terms.get("secure") or {}
    if terms.get("against") == "clients":
        return f"no more than ε permits, if at most {terms['colluders']} clients collude"
    if trust == "client":
        party = "site" if "parties" in (terms.get("sites") or {}) else "client"
        return f"no more than ε permits: each {party} adds its noise before it sends"
    if trust == "sum" and not assumed.trusted_parties:
        return (
            "no more than ε permits, if no more parties collude with it than are assumed: "
            "noise is added before it sees a sum"
        )
    if SERVER in assumed.trusts and not secure.get("cryptography"):
        seen = seen_text(run.audit)
        return f"all that it sees: {seen}; ε is for parties that do not collude with it"
    return "nothing is proved about what a server that breaks the protocol learns"


def _releases(run: ClaimedRun) -> Iterator[ReleaseSection]:
    """Yields the releases about the population by event: of this run, then of earlier runs.

    For a run chosen by private tuning, one event, the choice, takes the place of the run's events.
    """
    ledger, terms = run.ledger, run.ledger.terms
    purposes = _purposes(run)
    for event, count in ledger.run_spending.items():  # of a chosen run: the choice alone
        purpose = "tuning" if event == ledger.chosen else purposes.get(event, "further release")
        yield _release(str(terms["id"]), purpose, event, count)
    for prior in Priors.from_terms(terms).runs:
        for event, count in prior.spending.items():
            yield _release(prior.run, "earlier run", event, count)


def _purposes(run: ClaimedRun) -> dict[Event, str]:
    """Returns the purpose, such as "training", of each event that was planned or imported."""
    terms = run.ledger.terms
    if "purposes" in terms:  # of another framework
        return {Event.from_json(event): str(purpose) for event, purpose in terms["purposes"]}
    stated = (terms.get("planned") or {}).get("events", [])
    return {
        Event.from_json(event): purpose
        for event, purpose in reversed([*zip(stated, (run.purpose, "evaluation"), strict=False)])
    }


def _release(run: str, purpose: str, event: Event, count: int) -> ReleaseSection:
    return ReleaseSection(run=run, purpose=purpose, event=encoded(event), count=count)


def _composition(run: ClaimedRun) -> CompositionSection:
    ledger, audit = run.ledger, run.audit
    assert audit.alone is not None
    rule = (
        "the events of all releases, of this run and of the counted earlier runs, are accounted "
        "for together; ε are never added"
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
    clip = run.key("privacy", "clip") if run.keys else run.stated.get("clip")
    if not run.private:
        clip = None
    factor = (terms.get("secure") or {}).get("encoded", 1.0)
    factor *= (terms.get("sites") or {}).get("per_client", 1)
    sensitivity = clip * CHANGE[str(terms["relation"])] * factor if clip else None
    no_clip = _NOT_STATED if run.private else "no noise is added"
    return MechanismSection(
        name=str(terms.get("mechanism", "gaussian")),
        noise_multiplier=audit.noise_multiplier,
        clip=_stated(clip, no_clip),
        adaptive_clip=_stated(run.key("privacy", "adaptive_clip") if clip else None, no_clip),
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
        simulated=run.synthetic if run.keys else _stated(None),
    )


def _participation(events: Iterable[Event]) -> str:
    """Describes how often one client takes part in releases, by the kind of release."""
    words = []
    for event in dict.fromkeys(events):
        match event.release:
            case RandomAllocation(slots=b):
                words.append(f"once in each epoch of {b} releases, in a secret one")
            case Separated(separation=b) | BufferedToeplitz(separation=b):
                words.append(f"at most once in any {b} successive releases")
            case _:
                words.append("at most once in each release")
    return "; by kind of release: ".join(dict.fromkeys(words))


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
    """Yields sentences on what the claim about a run of another framework does not cover."""
    yield (
        f"Nothing here was measured: every fact is a statement about {run.stated['framework']} by "
        "the issuer, from which the guarantee was computed."
    )
    yield "Releases that the issuer did not list, such as tuning or evaluation, are not included."


def _audits(run: ClaimedRun) -> list[AuditSection] | Unknown:
    result = run.stated.get("canaries")
    if result is None:
        return Unknown(unknown="no empirical test of this run is on record")
    power = _stated(with_numbers(run.stated.get("power")), "the run's parts were not available")
    return [AuditSection(by="canaries", result=with_numbers(result), power=power)]
