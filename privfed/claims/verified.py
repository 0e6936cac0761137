"""Verification: computes a claim again from its evidence, and compares it with the run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from accounting.errors import AccountingError
from accounting.statement import epsilon_at
from privfed.claims.compact import compact, rebuilt
from privfed.claims.derived import derived_claim
from privfed.claims.document import digest_of, document_at, parsed
from privfed.claims.evidence import LEDGER, evidence_of
from privfed.claims.schema import Claim, ClaimEvidence
from privfed.core.errors import Refused, public_text
from privfed.core.text import visible
from privfed.report.tables import counted, rows
from privfed.store.run_record import RunRecord

_ACCURACY, _LEAST = 1e-6, 1e-12
"""Relative and absolute difference allowed between numbers that two machines compute."""
_ACCOUNTED = frozenset({"guarantee", "composition"})
"""Sections with numbers that accountants compute; all others have to agree exactly."""
_WRITTEN = {"written_by", "digest"}
"""Keys of a claim that do not follow from its evidence."""


Place = tuple[str, ...]
"""The place of a value in a claim: keys of objects and positions in lists, from the top."""


@dataclass(frozen=True)
class ClaimDifference:
    """A value of a claim that does not follow from the claim's evidence, or differs from the run.

    Attributes:
      place: the place of the value in the claim.
      stated: the value in the claim.
      expected: the value computed from the evidence, or read from the run.
      reason: why no value could be computed; empty if one was.
    """

    place: Place
    stated: Any
    expected: Any
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of `privfed verify --json`; absent values are left out."""
        values = {"stated": self.stated, "expected": self.expected}
        known = {key: value for key, value in values.items() if value is not _ABSENT}
        return {"place": ".".join(self.place), **known, "reason": self.reason}

    def __str__(self) -> str:
        place = _short(".".join(self.place))
        if self.reason:
            return f"{place}: {self.reason}"
        return f"{place} is {_short(self.stated)}, but should be {_short(self.expected)}"


@dataclass(frozen=True)
class Verification:
    """The result of verifying a claim.

    Attributes:
      path: the claim's file.
      claim: the claim; None if it is too damaged to be read.
      run: the run directory that was given for comparison; None if there was none.
      differences: every difference, those of the digest last; empty if the claim is verified.
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
        """The places of the claim's facts that were not verified: only the issuer states them.

        Empty if the claim could not be read.
        """
        if self.claim is None:
            return []
        stated = [] if self.run is not None else self.claim.evidence.stated
        return [*(f"evidence.stated.{key}" for key in stated), "written_by"]


def verify(
    path: Path, run: Path | None = None, head: str | None = None, digest: str | None = None
) -> Verification:
    """Verifies the claim in the file `path`.

    The ledger's chain and every section are computed again from the evidence in the claim. No code
    that the claim names is imported. If `run` is given and no difference was found so far, the
    evidence is also compared with the files of that run; the parts that the run names are imported
    if its ledger and configuration are those of the claim.

    Args:
      path: the claim's file.
      run: the run directory; None to use the evidence in the claim alone.
      head: hash of a line of the run's ledger, in hexadecimal digits, that was recorded elsewhere
        at the end of the run or before; the claim's ledger must contain it. None for no such check.
      digest: the claim's digest, as the issuer published it; None for no such check.

    Returns:
      The verification, with every difference.

    Raises:
      Refused: if the file is not the JSON object of a claim; if the object is no claim of this
        version (with a wrong digest, this is returned as a difference instead); if `head` is not
        hexadecimal; or if `run` is no run.
      Broken: if the files of the run contradict each other.
    """
    document = document_at(path)
    edited = list(_edited(document, digest))
    try:
        claim = parsed(document, path)
    except Refused as error:
        if not edited:
            raise
        form = ClaimDifference(("form",), None, None, public_text(error))
        return Verification(path, None, run, (form, *edited))
    differences = [*_against_evidence(claim), *_against_head(claim, head)]
    if run is not None and not differences:
        differences += _against_run(claim.evidence, run)
    return Verification(path, claim, run, (*differences, *edited))


def _against_run(evidence: ClaimEvidence, run: Path) -> Iterator[ClaimDifference]:
    """Yields each difference between the evidence of a claim and a run.

    Ledger and configuration are compared first: if they differ, no part of the run is imported.
    """
    place, record = ("evidence",), RunRecord.open(run)
    ledger = {"ledger": compact(record.directory.ledger), "configuration": record.digest}
    stated = {"ledger": evidence.ledger, "configuration": evidence.ledger["terms"].get("config")}
    differences = [*_compared(place, stated, ledger)]
    if differences:
        yield from differences
    else:
        yield from _compared(place, evidence.model_dump(), evidence_of(run).model_dump())


def _edited(document: Mapping[str, Any], published: str | None) -> Iterator[ClaimDifference]:
    """Yields a difference for each expected digest that is not the one in the document.

    Expected are the digest computed from the document and, unless None, the `published` one.
    """
    for expected in dict.fromkeys([digest_of(document), published or document["digest"]]):
        if expected.lower() != document["digest"]:
            yield ClaimDifference(("digest",), document["digest"], expected)


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
        yield ClaimDifference((known,), None, None, why or place)
        return
    yield from _compared((), *(each.model_dump(exclude=_WRITTEN) for each in (claim, expected)))


def _against_head(claim: Claim, head: str | None) -> Iterator[ClaimDifference]:
    """Yields a difference if the claim's ledger never had the `head`; nothing if `head` is None.

    Raises `Refused` if `head` is not hexadecimal.
    """
    if head is None:
        return
    try:
        recorded = bytes.fromhex(head)
    except ValueError:
        raise Refused(f"--head is {head!r}; expected hexadecimal digits") from None
    with contextlib.suppress(AccountingError):
        if rebuilt(claim.evidence.ledger, LEDGER).holds(recorded):
            return
    yield ClaimDifference((LEDGER, "head"), claim.evidence.ledger.get("head"), head)


_ABSENT = object()
"""A marker for a value that is missing in one of two claims that are compared."""


def _compared(place: Place, stated: Any, expected: Any) -> Iterator[ClaimDifference]:
    """Yields each difference between two JSON values, with its place."""
    match stated, expected:
        case (dict(), dict()):
            for key in dict.fromkeys([*stated, *expected]):
                values = stated.get(key, _ABSENT), expected.get(key, _ABSENT)
                yield from _compared((*place, key), *values)
        case (list(), list()) if len(stated) == len(expected):
            for number, values in enumerate(zip(stated, expected, strict=True)):
                yield from _compared((*place, str(number)), *values)
        case _ if not _same(stated, expected, exact=not _ACCOUNTED & {*place[:1]}):
            yield ClaimDifference(place, stated, expected)


def _same(first: Any, second: Any, exact: bool) -> bool:
    if isinstance(first, float) and isinstance(second, float) and not exact:
        return math.isclose(first, second, rel_tol=_ACCURACY, abs_tol=_LEAST)
    return type(first) is type(second) and bool(first == second)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = " ".join(visible(str(value)).split())
    return text if len(text) <= 100 else f"{text[:97]}…"


def verification_table(result: Verification) -> Table:
    """Returns a console table with the verdict, the guarantee, and what was not verified."""
    if result.differences:
        first, *others = result.differences
        more = {"further": counted(len(others), "difference")} if others else {}
        return rows({"claim": "REFUTED", "difference": str(first), **more})
    claim = result.claim
    assert claim is not None
    imported = not claim.evidence.configuration
    source = "the issuer's statements" if imported else "the ledger and the configuration in it"
    vouched = ", ".join(place.rpartition(".")[2] for place in result.stated_only)
    return rows(
        {
            "claim": f"consistent: every section follows from {source}",
            **_facts(claim, claim.digest),
            "run": "not compared: no run directory was given"
            if result.run is None
            else f"{result.run}: ledger, configuration and files are those of the claim",
            "not verified": f"{vouched}: only stated by the issuer",
        }
    )


def claim_table(claim: Claim, digest: str) -> Table:
    """Returns a console table with the guarantee that a claim states, and its identifiers."""
    unknown = ", ".join(_unknown(claim.model_dump(exclude={"evidence"}), ()))
    return rows({**_facts(claim, digest), **({"unknown": unknown} if unknown else {})})


def _facts(claim: Claim, digest: str) -> dict[str, str]:
    """Returns a claim's guarantee, subject, ledger head and digest as texts, by label."""
    guarantee, subject = claim.guarantee, claim.subject
    bound = guarantee.reported
    about = f"run {subject.run} of {subject.framework}, {counted(subject.releases, 'release')}"
    facts = {
        "ε": epsilon_at(bound.epsilon, bound.delta, nominal=not guarantee.holds),
        "meaning": bound.meaning if guarantee.holds else f"none: {guarantee.reason}",
        "about": about,
        **({"ledger head": subject.ledger_head} if isinstance(subject.ledger_head, str) else {}),
        "digest": digest,
    }
    return {label: " ".join(visible(text).split()) for label, text in facts.items()}


def _unknown(value: Any, place: Place) -> Iterator[str]:
    """Yields the place ("section.key") of each fact in a JSON value that is `Unknown`."""
    if isinstance(value, dict) and value.keys() == {"unknown"}:
        yield ".".join(place)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown(item, (*place, key))
