"""Measures that read raw updates: for studies only, opted into by `run.simulation_metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Tally:
    """Counts what one round's clients did. Nothing here is covered by the run's epsilon."""

    def __init__(self, clip: float | None, counts: Mapping[str, int]) -> None:
        self._clip = clip
        self._counts = counts
        self._norms: list[Tensor] = []

    def watch(self, rows: Tensor) -> None:
        """Takes raw rows `[c, m]`."""
        self._norms.append(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu())

    def take(self) -> dict[str, Any]:
        """The round's counts; the next round starts afresh."""
        norms = torch.cat([*self._norms, torch.empty(0, dtype=torch.float64)])
        self._norms.clear()
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
