"""Measures that read raw updates: for studies only, opted into by `run.simulation_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from privfed.federation import Indices
from privfed.roundtime import Devices

Work = Callable[[int, Indices], tuple[Indices, Indices]]
"""Round and clients `[c]` -> their local steps `[c]` and the examples they process `[c]`."""
TOTALS = ("examples", "bytes", "device_seconds")
"""What adds up over rounds."""


class Tally:
    """Counts what rounds' clients did. Nothing here is covered by the run's epsilon.

    `down` and `up` are bytes per client and round.
    """

    def __init__(
        self,
        clip: float | None,
        counts: Mapping[str, int],
        work: Work,
        devices: Devices,
        down: float,
        up: float,
    ) -> None:
        self._clip = clip
        self._counts = counts
        self._work = work
        self._devices = devices
        self._down, self._up = down, up
        self._norms: list[Tensor] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._totals = dict.fromkeys(TOTALS, 0.0)

    def watch(self, round: int, ids: Indices, rows: Tensor) -> None:
        """Takes raw rows `[c, m]` of clients `ids` `[c]`."""
        self._norms.append(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu())
        steps, examples = self._work(round, ids)
        done = zip(steps.tolist(), examples.tolist(), strict=True)
        self._seen |= dict(zip(ids.tolist(), done, strict=True))

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
        if self._clip is not None:
            counts["clipped"] = int((finite > self._clip).sum())
        return counts

    def totals(self) -> dict[str, float]:
        """Examples processed, bytes sent both ways and estimated seconds since last asked."""
        found, self._totals = self._totals, dict.fromkeys(TOTALS, 0.0)
        return found

    def _add_up(self) -> None:
        longest = max((steps for steps, _ in self._seen.values()), default=0)
        self._totals["examples"] += sum(examples for _, examples in self._seen.values())
        self._totals["bytes"] += len(self._seen) * (self._down + self._up)
        self._totals["device_seconds"] += self._devices.seconds(self._down, self._up, longest)
        self._seen.clear()
