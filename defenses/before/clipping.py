"""Static clipping: no update is longer than a radius."""

from __future__ import annotations

from pydantic import Field

from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.weighing import PreAggregator


class Clipping(PreAggregator):
    """Updates cut to a radius that is set beforehand.

    y_k = min(1, radius / |x_k|) x_k.

    Needs rows. It bounds how far each hostile update reaches and removes none, so that the rule
    that follows decides how many are tolerated; no kappa of its own, since a radius below the
    honest updates' norms moves their mean. O(nd).

    Source: Allouah, Guerraoui, Gupta, Jellouli, Rizk & Stephan 2025, "Adaptive gradient clipping
    for robust federated learning", section 3 ("static clipping", by which `AdaptiveClipping` is
    measured).

    >>> import torch
    >>> from defenses.on_rows.median import Median
    >>> from defenses.weighing import Composed
    >>> rule = Composed(before=(Clipping(clipping_radius=2.0),), rule=Median())
    >>> rule(torch.tensor([[0.0], [4.0], [90.0]]), byzantine=1)
    tensor([2.])
    """

    clipping_radius: float = Field(gt=0, examples=[2.0])
    """The norm that updates are cut to before the rule."""

    def most(self, n: int) -> int:
        return n

    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        return cut(geometry.norms.sqrt(), self.clipping_radius)


def cut(norms: Tensor, radius: float | Tensor) -> Tensor:
    """The weights `[n, n]` that cut rows of these `norms` `[n]` to `radius`."""
    return torch.where(norms > radius, radius / norms, 1.0).diag()
