"""Adaptive robust clipping (ARC): clips the longest updates to the norm of the next longest."""

from __future__ import annotations

from defenses.before.clipping import cut
from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.weighing import PreAggregator


class AdaptiveClipping(PreAggregator):
    """Clips the k longest updates to the norm of the next longest update (ARC).

    y_j = min(1, C / |x_j|) x_j, where C is the (k + 1)-th largest norm and

    k = floor(2 (f / n) (n - f)).

    Needs rows. Tolerates fewer than half Byzantine clients. A rule of robustness kappa becomes one
    of robustness at most kappa + 2 f / (n - 2 f), which is at most 3 kappa. Unlike a radius fixed
    beforehand, C never exceeds the largest honest norm, whatever the attack. O(nd).

    Source: Allouah, Guerraoui, Gupta, Jellouli, Rizk & Stephan 2025, "Adaptive gradient clipping
    for robust federated learning", algorithm 2.

    >>> import torch
    >>> from defenses.on_rows.trimmed_mean import TrimmedMean
    >>> from defenses.weighing import Composed
    >>> rule = Composed(before=(AdaptiveClipping(),), rule=TrimmedMean())
    >>> rule(torch.tensor([[0.0], [1.0], [5.0], [90.0]]), byzantine=1)
    tensor([3.])
    """

    def most(self, n: int) -> int:
        return max(0, (n - 1) // 2)

    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        norms, n = geometry.norms.sqrt(), geometry.rows
        longer = 2 * byzantine * (n - byzantine) // n
        return cut(norms, norms.sort(descending=True).values[longer])
