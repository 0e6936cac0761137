"""A ledger as one JSON object, from which every line and the hash chain can be rebuilt.

The object states the terms, the distinct events, and the charged rounds as ranges. The object
replaces the file of a ledger in documents that other parties check: `rebuilt` computes each line
of the ledger from it, and compares the last hash of the chain with the stated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting import chain
from accounting.errors import LedgerBroken
from accounting.ledger import FORMAT, ILL_FORMED, Ledger
from privfed.core.errors import public_text

LARGEST = 200_000
"""Largest number of charges in a ledger that is rebuilt.

Without a limit, a document of a few bytes could state any number.
"""


def compact(path: Path) -> dict[str, Any]:
    """Returns the ledger at `path` as one JSON object.

    Raises:
      LedgerBroken: if the ledger's hash chain does not hold, its last line is incomplete, or it has
        no line.
    """
    links, torn = chain.read(path)
    if not links:
        raise LedgerBroken(f"{path}: the ledger has no line; restore the run's folder")
    if torn:
        raise LedgerBroken(
            f"{path}: the last line is incomplete; resume the run, which restores it"
        )
    return compacted(links)


def compacted(links: Sequence[chain.Link]) -> dict[str, Any]:
    """Returns the ledger that consists of the lines `links` as one JSON object."""
    lines: list[dict[str, Any]] = []
    for link in links[1:]:
        if link["type"] == "define":
            lines.append({key: link[key] for key in ("event", "budget") if key in link})
            continue
        last = lines[-1]
        if last.get("charged") == link["event"] and last["rounds"][1] + 1 == link["round"]:
            last["rounds"][1] = link["round"]
        else:
            lines.append({"charged": link["event"], "rounds": [link["round"], link["round"]]})
    return {"terms": links[0]["terms"], "lines": lines, "head": links[-1]["hash"]}


def rebuilt(stated: Mapping[str, Any], name: str) -> Ledger:
    """Returns the ledger that the JSON object `stated` describes, the inverse of `compacted`.

    Args:
      stated: a result of `compact` or `compacted`.
      name: name of the ledger in messages.

    Raises:
      LedgerBroken: if the last hash of the rebuilt chain is not the stated head, if the ledger has
        more than `LARGEST` charges, or if the object has another form.
    """
    try:
        links, head = [], chain.START
        for body in _bodies(stated):
            links.append(chain.sealed(head, body)[1])
            head = links[-1]["hash"]
    except ILL_FORMED as error:
        raise LedgerBroken(
            f"{name}: has another form ({public_text(error)}); restore the document"
        ) from None
    if head != stated["head"]:
        raise LedgerBroken(
            f"{name}: its lines have the head {head}, but {stated['head']} is stated, so it was "
            "edited; restore the document"
        )
    return Ledger(Path(name), links)


def _bodies(stated: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the content of each line of the ledger, without its hash."""
    yield {"type": "open", "format": FORMAT, "terms": stated["terms"]}
    events = charges = 0
    for line in stated["lines"]:
        if "event" in line:
            yield {"type": "define", "id": events, **line}
            events += 1
            continue
        first, last = line["rounds"]
        charges += last - first + 1
        if not first <= last or charges > LARGEST:
            raise LedgerBroken(
                f"the rounds {first} to {last} are no range, or more than {LARGEST:,}"
            )
        for round in range(first, last + 1):
            yield {"type": "charge", "round": round, "event": line["charged"]}
