"""Verification: computes a claim again from its evidence, and compares it with the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from accounting.documents import Encoded
from accounting.errors import AccountingError
from accounting.statement import epsilon_at
from privfed.claims.derived import derived_claim
from privfed.claims.document import digest_of, document_at, parsed
from privfed.claims.evidence import LEDGER, evidence_of
from privfed.claims.schema import Claim, ClaimEvidence
from privfed.core.errors import Refused, public_text
from privfed.core.text import with_numbers
from privfed.report.tables import rows

_ACCURACY = 1e-6
"""Relative difference allowed between numbers that different versions of libraries compute."""
_WRITTEN = frozenset({"written_by", "digest"})
"""Keys of a claim that do not follow from its evidence."""


@dataclass(frozen=True)
class ClaimDifference(Encoded):
    """A place of a claim that does not follow from the evidence, or differs from the run.

    Attributes:
      place: keys and positions, separated by dots.
      stated: the value in the claim.
      expected: the value that follows.
      reason: why no value follows; empty if one does.
    """

    place: str
    stated: Any
    expected: Any
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.place}: {self.reason}"
        return f"{self.place} is {_short(self.stated)}, but should be {_short(self.expected)}"


@dataclass(frozen=True)
class Verification:
    """The result of verifying a claim.

    Attributes:
      path: the claim's file.
      claim: the claim; None if it is too damaged to be read.
      run: the run that it was compared with; None if only its evidence was used.
      differences: every difference, those with a known place first.
    """

    path: Path
    claim: Claim | None
    run: Path | None
    differences: tuple[ClaimDifference, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed verify --json` prints."""
        claim = self.claim
        return {
            "verified": not self.differences,
            "claim": str(self.path),
            "run": None if self.run is None else str(self.run),
            "digest": claim.digest if claim else None,
            "epsilon": claim.guarantee.reported.epsilon if claim else None,
            "delta": claim.guarantee.reported.delta if claim else None,
            "holds": claim.guarantee.holds if claim else False,
            "stated_only": self.stated_only,
            "differences": [each.to_json() for each in self.differences],
        }

    @property
    def stated_only(self) -> list[str]:
        """The facts of the evidence that were compared with nothing, so the issuer vouches."""
        if self.claim is None or self.run is not None:
            return []
        return [f"evidence.stated.{key}" for key in self.claim.evidence.stated]


def verify(path: Path, run: Path | None = None, head: str | None = None) -> Verification:
    """Verifies a claim.

    The ledger's chain and every section are computed again from the evidence in the claim. With
    `run`, the evidence is also compared with the files of that run. No code that the claim names
    is imported.

    Args:
      path: the claim's file.
      run: the run directory; None to use the evidence in the claim alone.
      head: a head of the run's ledger that was recorded elsewhere.

    Returns:
      The verification, with every difference.

    Raises:
      Refused: if the file is not a claim of this version, or `run` is no run.
      Broken: if the files of the run contradict each other.
    """
    document = document_at(path)
    edited = list(_edited(document))
    try:
        claim = parsed(document, path)
    except Refused as error:
        if not edited:
            raise
        place = ClaimDifference("form", None, None, public_text(error))
        return Verification(path, None, run, (place, *edited))
    differences = [*_against_evidence(claim), *_against_head(claim, head)]
    if run is not None:
        differences += _compared("evidence", claim.evidence, evidence_of(run))
    return Verification(path, claim, run, (*differences, *edited))


def _edited(document: Mapping[str, Any]) -> Iterator[ClaimDifference]:
    """Yields a difference if the digest is not that of the document."""
    digest = digest_of(document)
    if digest != document["digest"]:
        yield ClaimDifference("digest", document["digest"], digest)


def _against_evidence(claim: Claim) -> Iterator[ClaimDifference]:
    """Yields each difference between the claim and what follows from its own evidence."""
    try:
        expected = derived_claim(claim.evidence)
    except (
        AccountingError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        place, _, why = public_text(error).partition(": ")
        known = place if place.startswith("evidence.") else "evidence"
        yield ClaimDifference(known, None, None, why or place)
        return
    yield from _compared("", claim, expected)


def _against_head(claim: Claim, head: str | None) -> Iterator[ClaimDifference]:
    """Yields a difference if the claim's ledger ends at another head than the recorded one."""
    stated = claim.evidence.ledger.get("head")
    if head is not None and head != stated:
        yield ClaimDifference(f"{LEDGER}.head", stated, head)


def _compared(
    name: str, stated: Claim | ClaimEvidence, expected: Claim | ClaimEvidence
) -> Iterator[ClaimDifference]:
    """Yields each difference between two claims or two pieces of evidence."""
    left, right = (
        dict(_leaves(with_numbers(each.model_dump(exclude=set(_WRITTEN))), name))
        for each in (stated, expected)
    )
    for place in dict.fromkeys([*left, *right]):
        first, second = left.get(place, "nothing"), right.get(place, "nothing")
        if not _same(first, second):
            yield ClaimDifference(place, first, second)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields each number, text and empty list in `value`, with its place."""
    if isinstance(value, Mapping) and value:
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list) and value:
        items = list(enumerate(value))
    else:
        yield place, value
        return
    for key, item in items:
        yield from _leaves(item, f"{place}.{key}" if place else str(key))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=_ACCURACY, abs_tol=1e-14)
    return type(first) is type(second) and bool(first == second)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}…"


def verification_table(result: Verification) -> Table:
    """Returns the verdict, and what it depends on."""
    if result.differences:
        first, *others = result.differences
        more = {"further": f"{len(others)} differences"} if others else {}
        return rows({"claim": "REFUTED", "difference": str(first), **more})
    assert result.claim is not None
    stated = ", ".join(place.rpartition(".")[2] for place in result.stated_only)
    return rows(
        {
            "claim": "verified: every section follows from the ledger"
            + (" in the claim" if stated else ""),
            **_facts(result.claim, result.claim.digest),
            "run": str(result.run) if result.run else "not compared: no run directory was given",
            **({"not verified": f"{stated}: stated by the issuer only"} if stated else {}),
        }
    )


def claim_table(claim: Claim, digest: str) -> Table:
    """Returns the guarantee that a claim states, and what identifies it."""
    unknown = ", ".join(_unknown(claim))
    return rows(
        {**_facts(claim, digest), **({"unknown": unknown} if unknown else {})},
    )


def _facts(claim: Claim, digest: str) -> dict[str, str]:
    guarantee, subject = claim.guarantee, claim.subject
    bound = guarantee.reported
    return {
        "ε": epsilon_at(bound.epsilon, bound.delta, nominal=not guarantee.holds),
        "meaning": bound.meaning if guarantee.holds else f"none: {guarantee.reason}",
        "about": f"run {subject.run} of {subject.framework}, {subject.releases} releases",
        **({"ledger head": subject.ledger_head} if isinstance(subject.ledger_head, str) else {}),
        "digest": digest,
    }


def _unknown(claim: Claim) -> Iterator[str]:
    """Yields the place of each fact that is unknown."""
    for place, _ in _leaves(claim.model_dump(exclude={"evidence"}), ""):
        fact, _, last = place.rpartition(".")
        if last == "unknown":
            yield fact
