"""The answers of a region's coordinator: its own message, and proofs that sites deviated.

A proof consists of a site's own signed messages (`privfed.secure.masked.evidence`), so the server
does not rely on the coordinator. Counts of complaints prove nothing, and are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from privfed.secure.frames import NUMBER, Reader, sized
from privfed.secure.identities import Directory
from privfed.secure.masked.evidence import proves
from privfed.secure.summation import Culprit

_ACCUSATIONS = (Culprit(0, 0, 0, "wrong share"), Culprit(0, 0, 0, "wrong dealing"))
"""The deviations that have a proof; an answer states the place in this list."""


def reported(message: bytes, culprits: Iterable[Culprit]) -> bytes:
    """Returns an answer with a protocol's `message`, and the proofs against `culprits`."""
    reasons = [each.reason for each in _ACCUSATIONS]
    proved = (each for each in culprits if each.proof)
    entries = (
        NUMBER.pack(each.client) + bytes([reasons.index(each.reason)]) + sized(each.proof)
        for each in proved
    )
    return sized(message) + b"".join(entries)


def read_report(
    answer: bytes, round: int, exchange: int, directory: Directory
) -> tuple[bytes, tuple[Culprit, ...]]:
    """Parses the answer of a region's coordinator.

    Args:
      answer: the bytes of `reported`.
      round: round of the sum.
      exchange: number of the sum in the round.
      directory: the public key of each site of the region.

    Returns:
      The protocol's message, and the sites that are proved to have deviated in this sum.

    Raises:
      BadMessage: if the answer is malformed. Proofs that do not hold are left out.
    """
    reader = Reader(answer)
    message, culprits = reader.sized(), []
    while not reader.ended():
        client, reason, proof = reader.number(), reader.take(1)[0], reader.sized()
        for accusation in _ACCUSATIONS[reason : reason + 1]:
            of = replace(accusation, client=client, round=round, exchange=exchange, proof=proof)
            culprits.append(of)
    return message, tuple(each for each in culprits if proves(each, directory))
