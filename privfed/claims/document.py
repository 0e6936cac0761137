"""Claims as files: written with a digest, and read as untrusted input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from accounting import durable, regular
from accounting.documents import from_json
from privfed.claims.schema import VERSION, Claim
from privfed.core.errors import Refused, public_text
from privfed.core.text import dump, with_numbers

_EVIDENCE = "evidence"
"""The key of the evidence in a claim. Texts in the evidence, such as "inf", stay texts."""
_LARGEST = 50_000_000
"""Largest size in bytes of a claim that is read."""


def document_of(claim: Claim) -> dict[str, Any]:
    """Returns the JSON object of `claim`, with its digest."""
    document: dict[str, Any] = from_json(dump(claim.model_dump()))
    return {**document, "digest": digest_of(document)}


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Writes the JSON object of a claim, and replaces a claim that exists at `path`.

    Raises:
      Refused: if a file exists at `path` that is not a claim, or the folder of `path` does not
        exist or is a run directory.
    """
    if path.exists() and not _is_claim(path):
        raise Refused(
            f"the claim's file is {path}, but that exists and is not a claim; nothing was changed; "
            "name another file"
        )
    if not path.parent.is_dir():
        raise Refused(
            f"the claim's file is {path}, but its folder does not exist; create the folder, or "
            "name another file"
        )
    if any((path.parent / name).exists() for name in ("ledger.jsonl", "config.toml")):
        raise Refused(
            f"the claim's file is {path}, but its folder is a run directory, whose files have "
            "meanings; name a file in its folder report/, or elsewhere"
        )
    durable.write_atomically(path, (dump(document, indent=2) + "\n").encode())


def _is_claim(path: Path) -> bool:
    try:
        document_at(path)
    except (Refused, OSError):
        return False
    return True


def digest_of(document: Mapping[str, Any]) -> str:
    """Returns the digest of a claim: the SHA-256, in hexadecimal digits, of its canonical JSON.

    The JSON has sorted keys and no blanks, and leaves out the entry `digest`.
    """
    body = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(dump_canonical(body).encode()).hexdigest()


def dump_canonical(value: Any) -> str:
    """Returns `value` as canonical JSON, which has sorted keys and no blanks.

    Raises `ValueError` for NaN and infinities.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object from its keys and values. Raises `ValueError` for a repeated key."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return table


def document_at(path: Path) -> dict[str, Any]:
    """Reads the JSON object of the claim at `path`; only its entry `digest`, a text, is checked.

    Raises:
      Refused: if the file cannot be read, is too large, or is not the JSON object of a claim.
    """
    try:
        regular.refuse_irregular(path)
        if path.stat().st_size > _LARGEST:
            raise Refused(f"{path} has more than {_LARGEST:,} bytes, but a claim is smaller")
        document = from_json(regular.read_text(path), object_pairs_hook=_unique)
        _ = dump_canonical(document)  # raises ValueError for numbers that JSON does not have
    except (OSError, ValueError) as error:
        raise Refused(
            f"{path} cannot be read as a claim: {public_text(error)}; name a claim's JSON file"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("digest"), str):
        raise Refused(f"{path} is not a claim, since it states no digest; name a claim's JSON file")
    return document


def parsed(document: Mapping[str, Any], path: Path) -> Claim:
    """Returns the claim in the JSON object `document`; `path` is its file, for messages.

    Raises:
      Refused: if the object is not a claim of this version.
    """
    if document.get("form") != "privfed claim" or document.get("version") != VERSION:
        raise Refused(
            f"{path} is of the form {document.get('form')!r}, version {document.get('version')!r}, "
            f"but this version of privfed reads 'privfed claim', version {VERSION}"
        )
    try:
        numbers = {key: with_numbers(value) for key, value in document.items() if key != _EVIDENCE}
        return Claim.model_validate({**document, **numbers})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Refused(f"{path}: {place} has another form than a claim: {first['msg']}") from None


def schema_text() -> str:
    """Returns the JSON schema of claims, which `docs/reference/claim_schema.json` publishes."""
    schema = Claim.model_json_schema(mode="serialization")
    return json.dumps({"$id": "privfed-claim-1", **schema}, indent=2, ensure_ascii=False) + "\n"
