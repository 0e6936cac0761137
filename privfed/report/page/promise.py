"""The chapter of a page on the guarantee: sentences to quote, terms, and limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from accounting.guarantee import Guarantee
from accounting.statement import NOMINAL, each_epsilon
from privfed.auditing.audited_run import RunAudit
from privfed.core.text import ceiling, number
from privfed.plan.byzantine import COUNTS_ON_OTHERS
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.report.page.blocks import Block, BulletList, Chapter, Facts, Paragraph, Quotation
from privfed.report.tables import (
    budget_rows,
    chosen_row,
    counted,
    disjoint_row,
    party_rows,
    planned_row,
)

_TRUSTED = {
    "server": "the server, which adds the noise, is trusted with the values that it sums",
    "sum": "no party is trusted with an exact sum: clients add the noise themselves",
    "client": "no party is trusted: each client adds the noise to its own row",
    "nobody": "no noise is added",
}
"""The trusted parties, by the party that adds the noise."""
_TRUSTED_AT_SITES = {
    "sum": (
        "a client's own site is trusted with its rows, and no party with an exact sum: sites "
        "add the noise"
    ),
    "client": "only a client's own site is trusted; it adds all of the noise to its own sum",
}
"""The trusted parties if sites are the parties of sums."""
_TRUSTED_IN_PAIRS = (
    "all other clients except {colluders} are trusted to add their noise; the server is not "
    "trusted: each client adds noise of its own, and noise that it shares with each other client"
)
"""The trusted parties if pairs of clients share noise."""


class Promised(Protocol):
    """The facts, of a run or of a claim, on which the texts about a guarantee depend."""

    @property
    def audit(self) -> RunAudit:
        """The audit of the run's ledger, with the guarantees that the ledger proves."""

    @property
    def nominal(self) -> bool:
        """Whether ε is nominal: the run was a simulation, or its guarantee is void."""

    @property
    def synthetic(self) -> bool:
        """Whether a partition assigned the examples to clients."""

    @property
    def purpose(self) -> str:
        """The purpose of the run's rounds: "training" of a model, or "statistics"."""

    @property
    def lost_claims(self) -> Sequence[str]:
        """A sentence for each guarantee that too many parties proved Byzantine have made void."""

    @property
    def proof(self) -> str:
        """A text that summarises the proof of the guarantee; "" without a proof.

        Also "" if the proof cannot be derived, because the run's parts are not available.
        """

    @property
    def budget(self) -> float | None:
        """The run's current budget, as an ε at the ledger's δ; None without a budget."""


def promise_chapter(facts: Promised) -> Chapter:
    """Returns the page's chapter with the guarantees of the run, their terms, and their limits."""
    blocks: list[Block] = [*map(Quotation, quotations(facts)), Facts(_terms(facts))]
    if reservations := list(reservations_of(facts)):
        blocks += [Paragraph("Not covered:"), BulletList(reservations)]
    return Chapter("guarantee", "Guarantee", blocks)


def _simulated(facts: Promised) -> str:
    """Returns "simulated " if a partition assigned examples to clients; else ""."""
    return "simulated " if facts.synthetic else ""


def headline(facts: Promised) -> str:
    """Returns one line with the ε of the run and what it refers to.

    These are δ, unit, relation, sampling, accountant, the party it is against, and any exceptions.
    """
    bound = facts.audit.guarantee
    assert bound is not None
    return (
        f"{bound.line(facts.nominal)}, one {_simulated(facts)}"
        f"{bound.unit}, {bound.relation}, {bound.sampler} sampling, accountant {bound.accountant}"
        + (f", against {PARTY_WORDS[bound.against]}" if bound.against else "")
        + ("; the starting model is not covered" if bound.uncovered else "")
        + (
            "; it does not hold, since too many parties were proved to be Byzantine in sums"
            if facts.lost_claims
            else ""
        )
    )


def quotations(facts: Promised) -> Iterator[str]:
    """Yields the sentences that readers may quote: one for each guarantee that holds.

    They follow a sentence for each guarantee that is void because of Byzantine parties. If the run
    has no guarantee at all, the only sentence states the reason.
    """
    if why := facts.audit.terms.get("guarantee"):
        yield f"Nothing is guaranteed: {why}. Every ε on this page is nominal."
        return
    yield from facts.lost_claims
    audit = facts.audit
    further = audit.planned_others if audit.planned else (audit.other, audit.examples)
    for bound in (audit.planned or audit.guarantee, *further):
        if bound and not (facts.lost_claims and bound.against in COUNTS_ON_OTHERS):
            yield _quotation(bound, facts)


def _quotation(bound: Guarantee, facts: Promised) -> str:
    """Formats one guarantee as a sentence to quote: its formal statement, and its meaning."""
    if bound.missing or bound.epsilon == math.inf:
        return f"{_capital(bound.sentence())}."
    view = f" against {PARTY_WORDS[bound.against]}" if bound.against else ""
    nominal = "nominally " if facts.nominal else ""
    unit = f"one {_simulated(facts)}{bound.unit} under {bound.relation}"
    rounds = counted(bound.rounds, "round")
    subject = "Training" if facts.purpose == "training" else "The release"
    return (
        f"{subject} was {nominal}(ε, δ)-differentially private{view} with ε "
        f"= {ceiling(bound.epsilon)} and δ = {bound.delta:g}, for {unit}, over {rounds} with "
        f"{bound.sampler} sampling (accountant: {bound.accountant}): {bound.sentence()}."
    )


def _terms(facts: Promised) -> dict[str, str]:
    """Returns the terms of the guarantee, by label."""
    audit, bound, rate = facts.audit, facts.audit.guarantee, facts.audit.sampling_rate
    assert bound is not None
    against = party_rows(bound.against, audit.other, audit.terms.get("colluders"))
    return {
        "ε": ceiling(bound.epsilon) + NOMINAL * facts.nominal,
        **planned_row(audit.planned),
        "δ": f"{bound.delta:g}",
        "unit": f"one {_simulated(facts)}{bound.unit} with all its examples (partition "
        f"{audit.terms['partition']})",
        "adjacency": bound.relation,
        "sampler": bound.sampler + (f", q = {rate:.4g}" if rate is not None else ""),
        "accountants": f"{bound.accountant} ({each_epsilon(audit.accountants)})",
        "noise": _noise(audit),
        "randomness": str(audit.terms["randomness"]),
        **_trust_rows(facts),
        **_sites(audit),
        "messages": seen_text(audit),
        **against,
        "budget": number(facts.budget) if facts.budget else "none",
        **budget_rows(audit.budgets),
        **chosen_row("chosen" in audit.terms),
        **_earlier(facts),
        **disjoint_row(tuple(run["run"] for run in audit.terms.get("disjoint", ()))),
    }


def _sites(audit: RunAudit) -> dict[str, str]:
    """Returns table rows on the declared sites and the survivors needed; empty without sites."""
    stated = audit.terms.get("sites")
    if not stated:
        return {}
    most = stated["per_client"]
    several = f"a client has rows at up to {most} of them" if most > 1 else ""
    parties = "not parties of sums"
    if "parties" in stated:
        parties = f"parties of sums; at least {stated['minimum']} have to survive"
        if audit.terms.get("trust") == "client":
            parties = "each site releases a noised sum of its own"
    return {"sites": ", ".join(filter(None, [f"{stated['declared']} declared", several, parties]))}


def seen_text(audit: RunAudit) -> str:
    """Describes the rows and sums that each party sees; a dash if the ledger does not state it."""
    trust, sites = audit.terms.get("trust"), audit.terms.get("sites") or {}
    site = " except a client's own site" if "parties" in sites else ""
    rows = f"no party{site} sees a row"
    if trust == "sum":
        return f"the party that opens a sum sees it with its noise; {rows}"
    if trust == "client" and "parties" in sites:
        return f"the server sees each site's sum with that site's noise; {rows}"
    return str((audit.terms.get("secure") or {}).get("seen", "—"))


def _noise(audit: RunAudit) -> str:
    """Describes the noise multiplier, and the arithmetic in which noise is sampled."""
    z, arithmetic = audit.noise_multiplier, str(audit.terms["arithmetic"])
    return arithmetic if z is None else f"multiplier {ceiling(z)}, {arithmetic}"


def _earlier(facts: Promised) -> dict[str, str]:
    prior, alone = facts.audit.terms.get("prior", []), facts.audit.alone
    if not prior or alone is None:
        return {}
    names = ", ".join(str(run.get("run")) for run in prior)
    return {"earlier runs": f"{names}; this run alone spent ε = {ceiling(alone.epsilon)}"}


def _trust_rows(facts: Promised) -> dict[str, str]:
    """Returns table rows on the trusted parties and the proof; empty without a guarantee."""
    if facts.audit.terms.get("guarantee"):
        return {}
    proof = {"proof": facts.proof} if facts.proof else {}
    return {"trust model": trust_text(facts.audit), **proof}


def trust_text(audit: RunAudit) -> str:
    """Describes the trusted parties."""
    terms = audit.terms
    if terms.get("against") == "clients":
        return _TRUSTED_IN_PAIRS.format(colluders=terms["colluders"])
    trust = str(terms.get("trust"))
    by_sites = "parties" in (terms.get("sites") or {})
    trusted = _TRUSTED_AT_SITES if by_sites else _TRUSTED
    return trusted.get(trust, _TRUSTED.get(trust, trust))


def reservations_of(facts: Promised) -> Iterator[str]:
    """Yields sentences on what the guarantee does not cover."""
    terms, bound = facts.audit.terms, facts.audit.guarantee
    if note := terms.get("note"):
        yield f"{note}."
    if bound and bound.uncovered:
        yield f"{bound.left_out}."
    if count := terms.get("public_clients"):
        yield f"{count} clients were declared public; no guarantee covers them."
    if _simulated(facts):
        yield f"Clients are simulated (partition {terms['partition']}): none of them is a person."
    if "parties" in (sites := terms.get("sites") or {}):
        yield (
            "A site's other messages, their timing and the site's failures must not depend on its "
            "clients' data or on which clients are sampled; a ledger cannot show this."
        )
        if sites["per_client"] > 1:
            yield (
                "No ε covers the rows that a client has at a site that colludes with the server: "
                "each ε is for the client's rows at other sites."
            )
        if colluders := terms.get("colluders"):
            yield (
                "No guarantee covers clients of sites that collude with the server; at most "
                f"{colluders} such sites are assumed."
            )
    if terms.get("against") == "clients":
        yield (
            f"If more than {terms['colluders']} clients collude with the server, or are "
            "Byzantine, ε does not hold."
        )
        yield (
            "The noise that two clients share is pseudorandom to all other parties only under a "
            "computational assumption, which ε does not include."
        )
    if (terms.get("secure") or {}).get("cryptography"):
        yield (
            "Secure sums hide rows only from adversaries who cannot break the cryptography; ε does "
            "not include this assumption."
        )
    yield (
        "Other runs over the same population are not included; privfed audit RUN RUN composes runs."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
