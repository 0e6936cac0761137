"""What was likely meant by an unknown name: the known name with the fewest slips."""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest(written: str, known: Iterable[str]) -> str | None:
    """The name of `known` with the fewest slips to `written`; None where all are too far.

    More than a third of the longer name's letters is too far. Of equally near ones, the first by
    length and alphabet.
    """
    similar = [name for name in known if _apart(written, name) <= _allowed(written, name)]
    slips = {name: distance(written, name) for name in similar}
    near = [name for name, n in slips.items() if n <= _allowed(written, name)]
    return min(near, key=lambda name: (slips[name], written != name, len(name), name), default=None)


def distance(name: str, other: str) -> int:
    """Slips between two names: letters left out, added, changed, or swapped with the next.

    Case is none, nor is which mark divides words; the same words in another order are one slip
    more. Optimal string alignment (Damerau 1964), in O(len(name) len(other)).

    >>> distance("momentm", "momentum"), distance("aile", "alie")
    (1, 1)
    >>> distance("mean_area", "Mean area"), distance("perimeter_mean", "mean_perimeter")
    (0, 1)
    """
    first, second = _words(name), _words(other)
    straight = _slips(" ".join(first), " ".join(second))
    return min(straight, 1 + _slips(" ".join(sorted(first)), " ".join(sorted(second))))


def _words(name: str) -> list[str]:
    return re.split(r"[\s_.-]+", name.casefold())


def _apart(name: str, other: str) -> int:
    """The fewest slips that their lengths leave possible."""
    return abs(len(" ".join(_words(name))) - len(" ".join(_words(other))))


def _allowed(name: str, other: str) -> int:
    """How many slips leave something of either name."""
    return min(max(1, max(len(name), len(other)) // 3), len(name) - 1, len(other) - 1)


def _slips(name: str, other: str) -> int:
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, 1):
        last, before, row = before, row, [i]
        for j, other_letter in enumerate(other, 1):
            least = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other_letter))
            if last and j > 1 and (letter, name[i - 2]) == (other[j - 2], other_letter):
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]
