"""Measures of raw updates, for simulations only; enabled by `run.simulation_metrics`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from defenses.finite import usable
from defenses.geometry import Geometry
from privfed.core.vector import Indices
from privfed.sampling.availability import Devices

MEASURES = ("far", "against", "alike")
"""Names of the measures by which `standings` ranks rows."""


def standings(rows: Tensor, aggregate: Tensor) -> dict[str, Tensor]:
    """Returns the rank `[n]` of each row by each measure: the number of rows at least as outlying.

    A row counts itself, so the most outlying row has rank 1. "far" is the distance from the
    aggregate, and "against" the angle to the aggregate. "alike" is the closeness of the nearest
    other row, which detects attackers that send similar rows. Rows that are not finite, or whose
    norm is above 1e15, are the most outlying by "far", and the least by the other two measures.

    Args:
      rows: client rows, shape [n, m]; they are not copied.
      aggregate: the rule's aggregate, shape [m].
    """
    good = usable(rows)
    places = good.nonzero().squeeze(1)
    far = torch.full((len(rows),), math.inf, dtype=torch.float64, device=rows.device)
    against, alike = -far, -far
    apart = [torch.linalg.vector_norm(rows[k] - aggregate, dtype=torch.float64) for k in places]
    if apart:
        far[places] = torch.stack(apart)
        against[places] = -_cosines(rows, aggregate)[places]
    if len(places) > 1:
        squared = Geometry.of(rows, None if len(places) == len(rows) else places).distances()
        alike[places] = -squared.fill_diagonal_(math.inf).min(dim=1).values
    measures = zip(MEASURES, (far, against, alike), strict=True)
    return {name: _at_least(values) for name, values in measures}


def _cosines(rows: Tensor, aggregate: Tensor) -> Tensor:
    """Returns the cosine `[n]` of the angle of each row to the aggregate; 0 if either is zero."""
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(aggregate)
    return torch.where(lengths > 0, rows @ aggregate / lengths, 0.0).double()


def _at_least(values: Tensor) -> Tensor:
    """Returns, for each of `values` `[n]`, the number of values at least as large."""
    return len(values) - torch.searchsorted(values.sort().values, values, side="left")


WorkOf = Callable[[int, Indices], tuple[Indices, Indices]]
"""Maps a round and clients `[c]` to their local steps `[c]` and processed examples `[c]`."""
TOTALS = ("examples", "bytes", "device_seconds")
"""Quantities summed over rounds."""


class Sides:
    """Sums of a round's honest and of its Byzantine rows, and the rule's aggregate of all rows."""

    def __init__(self) -> None:
        self.aggregate: Tensor | None = None
        self._sums: dict[bool, Tensor] = {}
        self._counts = {True: 0, False: 0}

    def add(self, rows: Tensor, byzantine: Tensor) -> None:
        """Adds rows `[c, m]`, with a mask of Byzantine ones; non-finite rows count as zeros."""
        usable = rows.isfinite().all(1)
        for side in (True, False):
            mine = byzantine == side
            self._counts[side] += int(mine.sum())
            total = rows[mine & usable].double().sum(0)
            self._sums[side] = self._sums[side] + total if side in self._sums else total

    def measures(self) -> dict[str, Any]:
        """Returns measures of the attack; empty if honest rows, Byzantine rows or aggregate lack.

        - "byzantine": the number of Byzantine rows.
        - "aggregate_distance": the distance of the noised aggregate from the honest mean, divided
          by the norm of that mean; None if the norm is 0.
        - "byzantine_weight": the position of the aggregate's projection on the line from the honest
          mean (0) to the Byzantine mean (1); for a plain mean, the Byzantine fraction of rows; None
          if both means are equal.
        """
        bad, good = self._counts[True], self._counts[False]
        if not bad or not good or self.aggregate is None:
            return {}
        honest, byzantine = self._sums[False] / good, self._sums[True] / bad
        moved = self.aggregate.double()[: len(honest)] - honest
        way = byzantine - honest
        scale, squared = float(honest.norm()), float(way @ way)
        return {
            "byzantine": bad,
            "aggregate_distance": float(moved.norm()) / scale if scale else None,
            "byzantine_weight": float(moved @ way) / squared if squared else None,
        }


class Tally:
    """Observes raw rows and counts clients' work in each round; no ε covers these measures.

    Args:
      clip: clipping norm above which rows are counted as clipped; None counts none.
      counts: constant counts that are reported in each round.
      work: returns the local steps `[c]` and examples `[c]` of clients `[c]` in a round.
      devices: estimates the time of a round.
      down: bytes sent to each client per round.
      up: bytes sent by each client per round.
      note: receives a mapping for each round in which the rule sees rows: "round", "clients" `[n]`,
        and their ranks by each measure of `standings`.
    """

    def __init__(
        self,
        clip: float | None,
        counts: Mapping[str, int],
        work: WorkOf,
        devices: Devices,
        down: float,
        up: float,
        note: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self._clip = clip
        self._counts = counts
        self._work = work
        self._devices = devices
        self._down, self._up = down, up
        self._note = note
        self.raw_rows: list[tuple[Indices, Tensor]] | None = None
        """The round's clients `[c]` and raw rows `[c, m]`, if a caller set a list for them."""
        self._norms: list[Tensor] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._totals = dict.fromkeys(TOTALS, 0.0)
        self._sides = Sides()

    def rows(self, round: int, ids: Indices, rows: Tensor, byzantine: NDArray[np.bool_]) -> None:
        """Adds raw rows `[c, m]` of clients `ids` `[c]`, with a mask of `byzantine` clients."""
        self._sides.add(rows, torch.from_numpy(byzantine).to(rows.device))
        if self.raw_rows is not None:
            self.raw_rows.append((ids, rows.cpu().clone()))
        self._norms.append(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu())
        steps, examples = self._work(round, ids)
        done = zip(steps.tolist(), examples.tolist(), strict=True)
        self._seen |= dict(zip(ids.tolist(), done, strict=True))

    def judged(self, round: int, ids: Indices, rows: Tensor, aggregate: Tensor) -> None:
        """Passes the ranks of rows `[n, m]`, as sent by clients `ids` `[n]`, to `note`."""
        counts = {name: each.tolist() for name, each in standings(rows, aggregate).items()}
        self._note({"round": round, "clients": ids.tolist(), **counts})

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        self._sides.aggregate = aggregate

    def take(self) -> dict[str, Any]:
        """Returns the round's counts, and starts the counts of the next round.

        They include the median norm of the raw, finite rows (None without any), and how far the
        attack moved the aggregate (`Sides.measures`; absent without attackers). "clipped" is
        missing if `clip` is None.
        """
        norms = torch.cat([*self._norms, torch.empty(0, dtype=torch.float64)])
        self._norms.clear()
        self._add_up()
        finite = norms[norms.isfinite()]
        counts: dict[str, Any] = {
            "cohort": len(norms),
            "not_finite": len(norms) - len(finite),
            "median_norm": float(finite.median()) if len(finite) else None,
        }
        counts |= self._counts
        counts |= self._sides.measures()
        self._sides = Sides()
        if self._clip is not None:
            counts["clipped"] = int((finite > self._clip).sum())
        return counts

    def totals(self) -> dict[str, float]:
        """Returns processed examples, bytes and estimated device seconds since the last call.

        Bytes are the sum of both directions, over all clients.
        """
        totals, self._totals = self._totals, dict.fromkeys(TOTALS, 0.0)
        return totals

    def _add_up(self) -> None:
        longest = max((steps for steps, _ in self._seen.values()), default=0)
        self._totals["examples"] += sum(examples for _, examples in self._seen.values())
        self._totals["bytes"] += len(self._seen) * (self._down + self._up)
        self._totals["device_seconds"] += self._devices.seconds(self._down, self._up, longest)
        self._seen.clear()
