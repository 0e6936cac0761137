"""Verifies claims, and states claims about runs of other frameworks."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from privfed.api.answer import Answer, as_path, from_here

if TYPE_CHECKING:
    from privfed.claims.schema import Claim


def verify(
    claim: str | PathLike[str],
    run: str | PathLike[str] | None = None,
    *,
    head: str | None = None,
    digest: str | None = None,
) -> Answer:
    """Computes a claim again from its evidence, and compares both, as `privfed verify` does.

    Args:
      claim: the claim's JSON file.
      run: the run directory to compare it with; None to use the evidence in the claim alone.
      head: the hash of a line of the run's ledger that was recorded elsewhere.
      digest: the claim's digest, as its issuer published it.

    Returns:
      `verified`, and the `differences` if it is false.

    Raises:
      Refused: if the file is not a claim, `head` is not hexadecimal, or `run` is not a run.
      Broken: if the files of the run contradict each other.
    """
    from privfed.claims.verified import verification_table
    from privfed.claims.verified import verify as verified

    directory = None if run is None else from_here(as_path(run, "run"))
    result = verified(from_here(as_path(claim, "claim")), directory, head, digest)
    return Answer.of(result, verification_table)


def import_claim(
    description: str | PathLike[str], out: str | PathLike[str] | None = None
) -> Answer:
    """States the guarantee of a run of another framework, as `privfed claim import` does.

    Args:
      description: a TOML file that describes the run's releases and their sampling.
      out: a file to write the claim to.

    Returns:
      The claim, as its JSON file states it.

    Raises:
      Refused: if the description is incomplete, or no accountant bounds a release.
    """
    from privfed.claims.imported import import_claim as imported

    return claim_answer(imported(from_here(as_path(description, "description"))), out)


def claim_answer(claim: Claim, out: str | PathLike[str] | None) -> Answer:
    """Returns the claim's document with its digest, and writes it to `out` if that is given."""
    from privfed.claims.document import document_of, write_document
    from privfed.claims.verified import claim_table

    document = document_of(claim)
    if out is not None:
        write_document(document, from_here(as_path(out, "out")))
    return Answer(document, lambda: claim_table(claim, str(document["digest"])), claim)
