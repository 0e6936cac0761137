"""The page about a claim, for those who sign it or whose data it concerns: one side of A4."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.statement import at_delta, ceiling
from privfed.claims.derived import derived_claim
from privfed.claims.document import document_at, document_of, parsed
from privfed.claims.evidence import evidence_of
from privfed.claims.schema import Claim, MembershipBounds, Unknown
from privfed.claims.verified import verify
from privfed.core.errors import Broken
from privfed.core.text import number
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

_SECRETS = {
    ADD_REMOVE: (
        "whether the data of one {unit} were used",
        "{unit}s whose data were used",
        "{unit}s whose data were not used",
    ),
    ZERO_OUT: (
        "whether one {unit} contributed, or sent nothing (who took part is public)",
        "{unit}s that contributed",
        "{unit}s that sent nothing",
    ),
    REPLACE_ONE: (
        "which of two versions of the data of one {unit} was used",
        "{unit}s with the first version",
        "{unit}s with the second version",
    ),
}
"""What an attacker may want to know, and its two cases, by adjacency relation."""
_SEEN = {
    "": "everything that was released",
    "server": "all messages that the server receives",
    "readers": "everything that was released",
    "sites": "all messages that the server and colluding sites receive",
    "others": "all messages that the other parties receive",
    "clients": "all messages that the server and colluding clients receive",
}
"""What the attacker sees, by the adversary of the guarantee."""


def write_claim_page(path: Path, out: Path | None = None) -> Written:
    """Writes the page about the claim of a run, or about the claim in a JSON file.

    Args:
      path: the run directory, or the claim's JSON file.
      out: the page; by default report/claim.html in the run, or next to the JSON file.

    Raises:
      Broken: if a run's files contradict each other, or a claim does not follow from its evidence.
      Refused: if `path` is neither, or the page cannot be written.
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
    return Written(page, path, simulation=False)


def claim_page(claim: Claim, digest: str, file: str) -> Page:
    """Returns the page about `claim`, whose JSON is in the file named `file`."""
    guarantee, subject = claim.guarantee, claim.subject
    chapters = [
        Chapter("meaning", "In plain words", list(_meaning(claim))),
        Chapter("terms", "The terms", [Facts(_terms(claim))]),
        Chapter("limits", "What is not covered", [BulletList(claim.not_covered)]),
        Chapter("quote", "To quote", [Quotation(text) for text in _quotations(claim)]),
        Chapter("check", "How to check this claim", list(_check(claim, digest, file))),
    ]
    banners = []
    if not guarantee.holds:
        banners = [Banner("This guarantee protects nobody", f"{guarantee.reason}.")]
    of = f"Run {subject.run} of {subject.framework}, {subject.releases} releases"
    written_by = ", ".join(f"{name} {version}" for name, version in claim.written_by.items())
    return Page("What is guaranteed about the data", of, banners, chapters, written_by)


def _secret(claim: Claim) -> tuple[str, str, str]:
    """Returns the attacker's question, and the two cases."""
    guarantee = claim.guarantee
    question, positives, negatives = _SECRETS[guarantee.adjacency]
    unit = guarantee.unit
    return question.format(unit=unit), positives.format(unit=unit), negatives.format(unit=unit)


def _view(claim: Claim) -> str:
    return _SEEN.get(claim.guarantee.reported.against, "everything that was released")


def _meaning(claim: Claim) -> Iterator[Block]:
    """Yields the explanation of the guarantee, with a picture of a membership guess."""
    guarantee = claim.guarantee
    members = guarantee.membership
    if isinstance(members, Unknown):
        yield Paragraph(f"Nothing finite is guaranteed: {members.unknown}.")
        return
    right, strict = _hundredths(members.correct_guess), members.rates[1]
    question, positives, negatives = _secret(claim)
    yield Paragraph(
        f"Suppose an attacker sees {_view(claim)}, knows the data of everybody else, and has to "
        f"guess {question}. A coin flip is right 50 times in 100. However clever the "
        f"attacker, the guess is right at most {right} times in 100."
    )
    yield _picture(members)
    yield Paragraph(
        f"An attacker who wrongly names at most {number(100 * strict.false_positive_rate)} in 100 "
        f"{negatives} correctly names at most {_hundredths(strict.true_positive_rate)} in 100 "
        f"{positives}."
    )


def _hundredths(probability: float) -> str:
    """Formats a probability as a number out of 100, rounded up."""
    hundredths = 100 * probability
    if hundredths > 99:
        return f"{min(math.ceil(1000 * hundredths) / 1000, 100):.5g}"
    return f"{math.ceil(hundredths - 1e-9)}"


def _picture(members: MembershipBounds) -> Picture:
    """Draws how often the attacker's guess is right: without the releases, and with them."""
    title = "Right guesses out of 100"
    bars = [
        ("no release: a coin flip", 50.0),
        ("with the releases: at most", math.ceil(100 * members.correct_guess - 1e-9)),
        ("without protection: up to", 100.0),
    ]
    with without_warnings(), canvas(1, 1, (6.6, 1.25)) as (figure, ((panel,),)):
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
    others = {
        f"also ({each.against or each.unit})": f"ε = {ceiling(each.epsilon)} {at_delta(each.delta)}"
        for each in guarantee.further
    }
    clients = "" if isinstance(sampling.clients, Unknown) else f" of {sampling.clients:,}"
    rate = "" if sampling.rate is None else f", rate {sampling.rate:.4g}"
    multiplier = claim.mechanism.noise_multiplier
    noise = "" if multiplier is None else f", noise multiplier {ceiling(multiplier)}"
    purposes: dict[str, int] = {}
    for each in claim.releases:
        purposes[each.purpose] = purposes.get(each.purpose, 0) + each.count
    counted = ", ".join(f"{purpose}: {count:,}" for purpose, count in purposes.items())
    audits = claim.audits
    tested = (
        audits.unknown
        if isinstance(audits, Unknown)
        else "; ".join(
            f"{each.by}, {'refuted' if each.result.get('refuted') else 'not contradicted'}"
            for each in audits
        )
    )
    return {
        "guarantee": f"ε = {ceiling(bound.epsilon)} {at_delta(bound.delta)}"
        + (f" ({bound.caveat})" if bound.caveat else ""),
        **others,
        "protects": f"one {guarantee.unit}{clients}, neighbours by {guarantee.adjacency}",
        "releases": f"{counted}; each {guarantee.unit} takes part {sampling.participation}",
        "mechanism": f"{claim.mechanism.name}{noise}; {sampling.sampler} sampling{rate}",
        "trust": trust.model,
        "a malicious server": f"learns {trust.malicious_server}"
        if not trust.malicious_server.startswith(("epsilon", "the issuer"))
        else trust.malicious_server,
        "tested": tested,
    }


def _quotations(claim: Claim) -> Iterator[str]:
    """Yields a sentence for a paper, and one for a consent form."""
    guarantee = claim.guarantee
    yield guarantee.quotations[0]
    if guarantee.holds and isinstance(guarantee.membership, MembershipBounds):
        question, _, _ = _secret(claim)
        success = _hundredths(guarantee.membership.correct_guess)
        yield (
            "For a consent form: the model was trained with differential privacy (ε = "
            f"{ceiling(guarantee.reported.epsilon)}, δ = {guarantee.reported.delta:g}). An "
            f"attacker who sees {_view(claim)} can guess {question} with a success of at most "
            f"{success} %; a coin flip has 50 %."
        )


def _check(claim: Claim, digest: str, file: str) -> Iterator[Block]:
    """Yields the command that verifies the claim, and the numbers that identify it."""
    yield ShellLine(shlex.join(["privfed", "verify", file]))
    head = claim.subject.ledger_head
    yield Facts(
        {
            **({"ledger head": head} if isinstance(head, str) else {}),
            "digest of the claim": digest,
            "issued by, date": "\u2026" * 30,
        }
    )
