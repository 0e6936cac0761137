"""The HTML page about a claim, one side of A4, for those who sign it or whose data it concerns."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.statement import NOMINAL, at_delta, ceiling
from privfed.claims.derived import derived_claim
from privfed.claims.document import document_at, document_of, parsed
from privfed.claims.evidence import evidence_of
from privfed.claims.schema import AuditSection, Bound, Claim, MembershipBounds, Unknown
from privfed.claims.verified import verify
from privfed.core.errors import Broken
from privfed.core.text import number
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.report.canvas import canvas
from privfed.report.page.blocks import (
    Banner,
    Block,
    BulletList,
    Chapter,
    Facts,
    Page,
    Paragraph,
    Picture,
    Quotation,
    ShellLine,
)
from privfed.report.page.drawing import as_svg, inline, without_warnings
from privfed.report.page.write import Written, own_place, render, write_page
from privfed.report.tables import counted


@dataclass(frozen=True)
class _Relation:
    """An adjacency relation, described by phrases for the page.

    Attributes:
      compares: the two datasets that epsilon compares.
      question: the question about one unit that an attacker tries to answer.
      cases: two phrases for units: those for which the answer to `question` is yes, and the others.
    """

    compares: str
    question: str
    cases: tuple[str, str]


_RELATIONS = {
    ADD_REMOVE: _Relation(
        "the data with and without one {unit}",
        "whether the data of one {unit} were used",
        ("{unit}s whose data were used", "{unit}s whose data were not used"),
    ),
    ZERO_OUT: _Relation(
        "one {unit} that contributes with one that sends zeros; that it took part is not hidden",
        "whether one {unit} contributed, or sent only zeros",
        ("{unit}s that contributed", "{unit}s that sent only zeros"),
    ),
    REPLACE_ONE: _Relation(
        "two versions of the data of one {unit}",
        "which of two versions of the data of one {unit} was used",
        ("{unit}s with the first version", "{unit}s with the second version"),
    ),
}
_SEEN = {
    "": "everything that was released",
    "server": "all messages that the server receives",
    "readers": "everything that was released",
    "sites": "all messages that the server and colluding sites receive",
    "others": "all messages that the other parties receive",
    "clients": "all messages that the server and colluding clients receive",
}
"""Descriptions of all that the attacker sees, by the adversary of the guarantee."""


_POWERFUL = 0.05
"""Probability of detection below which a test counts as unable to detect a fault."""


def write_claim_page(path: Path, out: Path | None = None) -> Written:
    """Writes the HTML page about the claim of a run, or about the claim in a JSON file.

    Args:
      path: the run directory, or the claim's JSON file.
      out: file for the page; by default report/claim.html in the run directory, or the JSON file's
        path with the suffix .html.

    Raises:
      Broken: if a run's files contradict each other, or a claim does not follow from its evidence.
      Refused: if `path` is neither a run nor a claim, or the page cannot be written.
    """
    if path.is_file():
        result = verify(path)
        if result.differences:
            first = result.differences[0]
            raise Broken(f"{path}: no page is written for an invalid claim: {first}")
        document, file = document_at(path), path.name
        claim, page = parsed(document, path), out or path.with_suffix(".html")
    else:
        claim, file = derived_claim(evidence_of(path)), "claim.json"
        document, page = document_of(claim), out or own_place(path, simulation=False, name="claim")
    write_page(page, render(claim_page(claim, str(document["digest"]), file), "claim.css"))
    audits = [] if isinstance(claim.audits, Unknown) else claim.audits
    refuted = any(bool(each.result.get("refuted")) for each in audits)
    return Written(page, path, simulation=False, refuted=refuted)


def claim_page(claim: Claim, digest: str, file: str) -> Page:
    """Returns the content of the page about `claim`.

    Args:
      claim: the claim.
      digest: the claim's digest, for the command that verifies the claim.
      file: name of the claim's JSON file, for the same command.
    """
    guarantee, subject = claim.guarantee, claim.subject
    chapters = [
        Chapter("meaning", "In plain words", list(_meaning(claim))),
        Chapter("terms", "The terms", [Facts(_terms(claim))]),
        Chapter("limits", "What is not covered", [BulletList(claim.not_covered)]),
    ]
    if quotations := [Quotation(text) for text in _quotations(claim)]:
        chapters.append(Chapter("quote", "To quote", quotations))
    chapters.append(Chapter("check", "How to check this claim", list(_check(claim, digest, file))))
    of = f"Run {subject.run} of {subject.framework}, {counted(subject.releases, 'release')}"
    written_by = ", ".join(f"{name} {version}" for name, version in claim.written_by.items())
    if guarantee.holds:
        return Page("What is guaranteed about the data", of, [], chapters, written_by)
    banner = Banner("No guarantee", f"{guarantee.reason}.")
    return Page("This run guarantees nothing", of, [banner], chapters, written_by)


def _relation(claim: Claim) -> _Relation:
    """Returns the phrases about the claim's adjacency relation, with its unit inserted."""
    words, unit = _RELATIONS[claim.guarantee.adjacency], claim.guarantee.unit
    first, second = (each.format(unit=unit) for each in words.cases)
    compares, question = (each.format(unit=unit) for each in (words.compares, words.question))
    return _Relation(compares, question, (first, second))


def _view(claim: Claim) -> str:
    return _SEEN.get(claim.guarantee.reported.against, "everything that was released")


def _meaning(claim: Claim) -> Iterator[Block]:
    """Yields the explanation of the guarantee by an attacker's guess, with a picture."""
    members = claim.guarantee.membership
    if isinstance(members, Unknown):
        yield Paragraph(f"No bound on what an attacker learns is proved: {members.unknown}.")
        return
    if not claim.guarantee.holds:
        yield Paragraph("Only as an example of the calculation:")
    right, strict = _hundredths(members.correct_guess), members.rates[1]
    words, wrong = _relation(claim), number(100 * strict.false_positive_rate)
    first, second = words.cases
    yield Paragraph(
        f"Suppose both answers to this question are equally likely beforehand: {words.question}. "
        f"An attacker sees {_view(claim)}, and knows the data of all others. Without the "
        "releases, a guess is right 50 times in 100. With them, no attacker is right more than "
        f"{right} times in 100, on average. An attacker who knew more beforehand starts from more."
    )
    yield _picture(members)
    yield Paragraph(
        f"An attacker who names wrongly, on average, {wrong} of 100 {second} names rightly, on "
        f"average, at most {_hundredths(strict.true_positive_rate)} of 100 {first}."
    )


def _hundredths(probability: float) -> str:
    """Formats a probability as a number out of 100, rounded up to an integer.

    A number above 99 is rounded up to three decimals instead.
    """
    hundredths = 100 * probability
    if hundredths > 99:
        return f"{min(math.ceil(1000 * hundredths) / 1000, 100):.5g}"
    return f"{math.ceil(hundredths - 1e-9)}"


def _picture(members: MembershipBounds) -> Picture:
    """Draws the largest rates of right guesses: without releases, with them, and unprotected."""
    title = "Right guesses out of 100, if both answers are equally likely beforehand"
    bars = [
        ("without the releases", 50.0),
        ("with the releases: at most", float(_hundredths(members.correct_guess))),
        ("without protection: up to", 100.0),
    ]
    with without_warnings(), canvas(1, 1, (6.6, 1.25), grid=False) as (figure, ((panel,),)):
        for place, (_, height) in enumerate(bars):
            colour = "#0072b2" if place == 1 else "#888888"
            panel.barh([place], [height], color=colour, height=0.6)
            panel.annotate(
                f"{height:g}", (height, place), (3, 0), textcoords="offset points", va="center"
            )
        panel.set_yticks(range(len(bars)), [label for label, _ in bars])
        panel.invert_yaxis()
        panel.set_xlim(0, 108)
        panel.set_xticks([0, 50, 100])
        drawn = as_svg(figure)
    words = "; ".join(f"{label} {height:g}" for label, height in bars)
    return Picture(inline(drawn, "guess", title, f"{words}."), title)


def _terms(claim: Claim) -> dict[str, str]:
    """Returns the terms of the guarantee, by label."""
    guarantee, trust, sampling = claim.guarantee, claim.trust, claim.sampling
    bound = guarantee.reported
    also = "; ".join(_line(each) for each in guarantee.further)
    clients = "" if isinstance(sampling.clients, Unknown) else f" of {sampling.clients:,}"
    rate = "" if sampling.rate is None else f", rate {sampling.rate:.4g}"
    multiplier = claim.mechanism.noise_multiplier
    noise = "" if multiplier is None else f", noise multiplier {ceiling(multiplier)}"
    purposes: dict[str, int] = {}
    for each in claim.releases:
        purposes[each.purpose] = purposes.get(each.purpose, 0) + each.count
    releases = ", ".join(f"{purpose}: {count:,}" for purpose, count in purposes.items())
    trusted = [] if isinstance(trust.trusts, Unknown) else trust.trusts
    return {
        "guarantee": _line(bound)
        + NOMINAL * (not guarantee.holds)
        + (f" ({bound.caveat})" if bound.caveat else ""),
        **({"also": also} if also else {}),
        "unit": f"one {guarantee.unit}{clients}; ε compares {_relation(claim).compares}",
        "releases": f"{releases}; each {guarantee.unit} takes part {sampling.participation}",
        "mechanism": f"{claim.mechanism.name}{noise}; {sampling.sampler} sampling{rate}",
        "trust": trust.model + (f" (trusted: {', '.join(trusted)})" if trusted else ""),
        "malicious server": trust.malicious_server
        if guarantee.holds
        else "nothing is guaranteed against it",
        "tested": _tested(claim),
    }


def _tested(claim: Claim) -> str:
    """Describes the empirical tests of the guarantee, and what they could have detected."""
    if isinstance(claim.audits, Unknown):
        return claim.audits.unknown
    return "; ".join(
        f"by {each.by}: {'REFUTED' if each.result.get('refuted') else 'not contradicted'}"
        + _detectable(each)
        for each in claim.audits
    )


def _detectable(audit: AuditSection) -> str:
    """Describes the power of a test: its largest probability of detecting too little noise."""
    noticed = [] if isinstance(audit.power, Unknown) else audit.power.get("noticed", [])
    most = max((float(fault["doubted"]) for fault in noticed), default=0.0)
    if most < _POWERFUL:
        return "; it could not have detected a missing noise"
    return f"; it would have detected the largest fault considered with probability {most:.0%}"


def _line(bound: Bound) -> str:
    """Formats a guarantee: epsilon, delta, the unit and, if it states one, the adversary."""
    against = f" against {PARTY_WORDS[bound.against]}" if bound.against else ""
    return f"ε = {ceiling(bound.epsilon)} {at_delta(bound.delta)}, one {bound.unit}{against}"


def _quotations(claim: Claim) -> Iterator[str]:
    """Yields the first quotation of the guarantee, for a paper, and a sentence for a consent form.

    The latter is left out if there is no quotation, no model was trained, no membership bounds are
    proved, or clients are or may be simulated (claims about other frameworks do not state it).
    """
    guarantee = claim.guarantee
    yield from guarantee.quotations[:1]
    members = guarantee.membership
    trained = any(each.purpose == "training" for each in claim.releases)
    if isinstance(members, Unknown) or not guarantee.quotations or not trained:
        return
    if claim.sampling.simulated is not False:
        return
    trusted = [] if isinstance(claim.trust.trusts, Unknown) else claim.trust.trusts
    more = f" {' and '.join(trusted)} sees more than this." if trusted else ""
    yield (
        "For a consent form: a model was trained with the data of participants such as you. A "
        f"guess {_relation(claim).question}, with both answers equally likely beforehand, is right "
        f"in at most {_hundredths(members.correct_guess)} of 100 cases for whoever sees "
        f"{_view(claim)}; without the model, in 50.{more[:2].upper()}{more[2:]} Not covered: see "
        "the list above."
    )


def _check(claim: Claim, digest: str, file: str) -> Iterator[Block]:
    """Yields the command that verifies the claim, and a line for the issuer and the date."""
    head = claim.subject.ledger_head
    heads = ["--head", head] if isinstance(head, str) else []
    yield ShellLine(shlex.join(["privfed", "verify", file, *heads, "--digest", digest]))
    yield Facts({"issued by, date": "\u2026" * 30})
