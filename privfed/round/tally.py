"""Measures that read raw updates: for studies only, opted into by `run.simulation_metrics`."""

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
"""By what rows stand out; see `standings`."""


def standings(rows: Tensor, aggregate: Tensor) -> dict[str, Tensor]:
    """How many of `rows` `[n, m]` stand out as much as each does, or more: `[n]`, by measure.

    A row counts itself. The measures are "far", the distance from `aggregate` `[m]`, which is large
    for attackers who push it; "against", the angle with it, for those who work against it; and
    "alike", how near the nearest other row is, for those who push together. Rows that are not
    finite are farthest, and stand out least by the other two. No copy of the rows is made.
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
    """The cosine `[n]` of each row's angle with the aggregate; 0 without a direction."""
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(aggregate)
    return torch.where(lengths > 0, rows @ aggregate / lengths, 0.0).double()


def _at_least(values: Tensor) -> Tensor:
    """How many of `values` `[n]` are as large as each: `[n]`."""
    return len(values) - torch.searchsorted(values.sort().values, values, side="left")


WorkOf = Callable[[int, Indices], tuple[Indices, Indices]]
"""Round and clients `[c]` -> their local steps `[c]` and the examples they process `[c]`."""
TOTALS = ("examples", "bytes", "device_seconds")
"""What adds up over rounds."""


class Sides:
    """The honest and the hostile rows of a round, and what the rule made of both."""

    def __init__(self) -> None:
        self.aggregate: Tensor | None = None
        self._sums: dict[bool, Tensor] = {}
        self._counts = {True: 0, False: 0}

    def add(self, rows: Tensor, hostile: Tensor) -> None:
        """Rows `[c, m]`; those that are not finite count, and add nothing."""
        usable = rows.isfinite().all(1)
        for side in (True, False):
            mine = hostile == side
            self._counts[side] += int(mine.sum())
            total = rows[mine & usable].double().sum(0)
            self._sums[side] = self._sums[side] + total if side in self._sums else total

    def measures(self) -> dict[str, Any]:
        """With attackers, in rounds where both sides took part.

        `byzantine` counts hostile rows; `aggregate_distance` is how far the aggregate (noise
        included) lies from the honest mean, in lengths of that; `byzantine_weight` is how far it
        lies on the way from the honest to the hostile mean: of a plain mean, their part of rows.
        """
        bad, good = self._counts[True], self._counts[False]
        if not bad or not good or self.aggregate is None:
            return {}
        honest, hostile = self._sums[False] / good, self._sums[True] / bad
        moved = self.aggregate.double()[: len(honest)] - honest
        way = hostile - honest
        scale, squared = float(honest.norm()), float(way @ way)
        return {
            "byzantine": bad,
            "aggregate_distance": float(moved.norm()) / scale if scale else None,
            "byzantine_weight": float(moved @ way) / squared if squared else None,
        }


class Tally:
    """Counts what rounds' clients did. Nothing here is covered by the run's epsilon.

    `down` and `up` are bytes per client and round. `note` is given a line of each round in which a
    rule saw rows: its "clients" `[n]`, and how each one's stood out (`privfed.round.tally`).
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
        self._norms: list[Tensor] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._totals = dict.fromkeys(TOTALS, 0.0)
        self._sides = Sides()

    def rows(self, round: int, ids: Indices, rows: Tensor, hostile: NDArray[np.bool_]) -> None:
        """Takes raw rows `[c, m]` of clients `ids` `[c]`, of whom some are `hostile`."""
        self._sides.add(rows, torch.from_numpy(hostile).to(rows.device))
        self._norms.append(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu())
        steps, examples = self._work(round, ids)
        done = zip(steps.tolist(), examples.tolist(), strict=True)
        self._seen |= dict(zip(ids.tolist(), done, strict=True))

    def judged(self, round: int, ids: Indices, rows: Tensor, aggregate: Tensor) -> None:
        """Takes rows `[n, m]` as clients `ids` `[n]` sent them, and the `aggregate` of these."""
        counts = {name: each.tolist() for name, each in standings(rows, aggregate).items()}
        self._note({"round": round, "clients": ids.tolist(), **counts})

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        self._sides.aggregate = aggregate

    def take(self) -> dict[str, Any]:
        """The round's counts; the next round starts afresh."""
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
        """Examples processed, bytes sent both ways and estimated seconds since last asked."""
        totals, self._totals = self._totals, dict.fromkeys(TOTALS, 0.0)
        return totals

    def _add_up(self) -> None:
        longest = max((steps for steps, _ in self._seen.values()), default=0)
        self._totals["examples"] += sum(examples for _, examples in self._seen.values())
        self._totals["bytes"] += len(self._seen) * (self._down + self._up)
        self._totals["device_seconds"] += self._devices.seconds(self._down, self._up, longest)
        self._seen.clear()
