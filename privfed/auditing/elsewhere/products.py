"""How much the releases of a pipeline point the way of each canary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from privfed.auditing.canaries.scores import without_common
from privfed.canary.layouts import Numbers
from privfed.errors import Refused

_AT_ONCE = 2**26
"""Numbers of differences that are multiplied with all directions at a time."""


@dataclass(frozen=True)
class Cosines:
    """Cosines of K directions with what each of T releases changed, `[T, K]`.

    `final` `[K]` are those with the whole way, from the initial model to the last.
    """

    by_release: Numbers
    final: Numbers

    def statistics(self) -> dict[str, Numbers]:
        """A score of each canary `[K]`: "iterates" by single releases, "final" by the whole way.

        No coin is looked at. The first leaves out what releases have in common, which is the
        model's way where cohorts change, and hides canaries that take part in every round; these
        the second shows. Of one release both say the same, and the second stands alone.
        """
        if len(self.by_release) == 1:
            return {"final": self.final}
        return {"iterates": without_common(self.by_release).sum(0), "final": self.final}


def cosines(directions: NDArray[np.float32], models: Iterable[Numbers]) -> Cosines:
    """Cosines of `directions` `[K, d]` with the differences of successive `models` `[d]`.

    Releases that changed nothing are left out. Raises `Refused` where none changed anything.
    """
    ends: list[Numbers] = []
    units = _units(models, ends)
    at_once = max(1, _AT_ONCE // directions.shape[1])
    rows = []
    while batch := list(islice(units, at_once)):
        rows.append(np.stack(batch) @ directions.T)
    whole_way = ends[-1] - ends[0]
    if not rows or not whole_way.any():
        raise Refused("the last of the released models is the first; expected them to change")
    final = directions @ _unit(whole_way)
    return Cosines(np.concatenate(rows).astype(np.float64), final.astype(np.float64))


def _units(models: Iterable[Numbers], ends: list[Numbers]) -> Iterable[NDArray[np.float32]]:
    """The way from each model to the next, at length one; the first and last go into `ends`."""
    for before, after in pairwise(models):
        ends[:] = [ends[0] if ends else before, after]
        if (after != before).any():
            yield _unit(after - before)


def _unit(vector: Numbers) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)
