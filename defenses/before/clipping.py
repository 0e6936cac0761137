"""Static clipping: bounds the norm of every update by a fixed radius."""

from __future__ import annotations

from pydantic import Field

from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.weighing import PreAggregator


class Clipping(PreAggregator):
    """Clips updates to a fixed radius.

    y_k = min(1, radius / |x_k|) x_k.

    Needs rows. Clipping bounds the norm of each Byzantine update and removes none, so the rule
    applied next determines how many are tolerated. Alone it has no kappa, since a radius below
    the norms of honest updates moves their mean. O(nd).

    Source: Allouah, Guerraoui, Gupta, Jellouli, Rizk & Stephan 2025, "Adaptive gradient clipping
    for robust federated learning", section 3 ("static clipping", the baseline of
    `AdaptiveClipping`).

    >>> import torch
    >>> from defenses.on_rows.median import Median
    >>> from defenses.weighing import Composed
    >>> rule = Composed(before=(Clipping(clipping_radius=2.0),), rule=Median())
    >>> rule(torch.tensor([[0.0], [4.0], [90.0]]), byzantine=1)
    tensor([2.])
    """

    clipping_radius: float = Field(gt=0, examples=[2.0])
    """L2 norm to which updates are clipped before the rule is applied."""

    def most(self, n: int) -> int:
        return n

    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        return cut(geometry.norms.sqrt(), self.clipping_radius)


def cut(norms: Tensor, radius: float | Tensor) -> Tensor:
    """Returns the diagonal matrix `[n, n]` that, times rows with these `norms` `[n]`, clips them to
    `radius`.
    """
    return torch.where(norms > radius, radius / norms, 1.0).diag()
