"""Who is tried: a secret number of candidates, each a combination drawn uniformly.

Both are drawn once, from the operating system's CSPRNG by way of a key under private/, so that a
tuning that was interrupted goes on with the same candidates. Of a seeded simulation they follow
from the seed, and a combination that is drawn twice would repeat the same run: it is tried once.
"""

from __future__ import annotations

from dataclasses import dataclass

from accounting.choosing.repetitions import BITS
from privfed.grid.cells import Cell
from privfed.grid.tuned.proposal import Proposal
from privfed.streams import Keys, Streams

_WORD = 64


@dataclass(frozen=True)
class Candidate:
    """One run to choose from: its combination, and the name of its folder under private/."""

    cell: Cell
    folder: str


def candidates(proposal: Proposal, key: bytes | None) -> list[Candidate]:
    """All candidates, in the order in which they were drawn; `key` is None for a simulation."""
    streams = Streams(proposal.config.run.seed, simulated=proposal.seeded, key=key)
    count = proposal.repetitions.number(_whole_number(streams.at("candidates"), BITS))
    drawn = []
    for place in range(1, count + 1):
        # 128 bits: the remainder favours no combination by more than 2^-64.
        word = _whole_number(streams.at("candidates", place), 2 * _WORD)
        cell = proposal.cells[word % len(proposal.cells)]
        drawn.append(Candidate(cell, cell.name if proposal.seeded else f"{place:06d}"))
    return list({candidate.folder: candidate for candidate in drawn}.values())


def _whole_number(keys: Keys, bits: int) -> int:
    """A uniform whole number of so many bits."""
    words = keys.bits(bits // _WORD)
    return sum(int(word) << (_WORD * place) for place, word in enumerate(words))
