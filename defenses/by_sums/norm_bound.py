"""Norm bounding: averages updates that are clipped to a fixed norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field
from torch import Tensor

from defenses.by_sums.pull import mean_pull, pull
from defenses.types import SumRule


class WithinRadius(SumRule):
    """Base of rules whose terms are the rows minus the center, clipped to the L2 norm `radius`."""

    tolerance: ClassVar[str] = "any number, each by at most its radius"
    follows_clip: ClassVar[Mapping[str, float | None]] = {"radius": 1.0}
    radius: float | None = Field(None, gt=0, le=1e15)
    """Norm above which the difference of an update from the center is clipped; under privacy it is
    privacy.clip and must not be set."""

    def most(self, n: int) -> int:
        return n

    def within(self, clip: float | None) -> Self:
        return self.model_copy(update={"radius": radius_within(self.radius, clip)})

    def sensitivity(self, change: int) -> float:
        return required_radius(self.radius) * change

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        return pull(rows, center, required_radius(self.radius))[0]

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        return rows - center

    def average(self, rows: Tensor, center: Tensor) -> Tensor:
        return mean_pull(rows, center, required_radius(self.radius))


class NormBound(WithinRadius):
    """The mean of updates clipped to a norm.

    F(x) = (1/n) sum of x_k min(1, radius / |x_k|), by one sum; O(nd). Any number f of
    Byzantine clients contributes at most f radius / n to F, in norm, whatever they send. No
    robustness kappa, since honest updates are clipped as well.

    *Sensitivity of the terms*: radius under add/remove; twice that under replace-one. Under privacy
    the radius is privacy.clip.

    Source: Sun, Kairouz, Suresh & McMahan 2019, "Can you really backdoor federated learning?".

    >>> import torch
    >>> NormBound(radius=1.0).on_rows(torch.tensor([[0.5, 0.0], [0.0, 1e9]]))
    tensor([0.2500, 0.5000])
    """

    passes: ClassVar[int] = 1

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return released


def radius_within(radius: float | None, clip: float | None) -> float:
    """Returns the radius to use: the configured radius, or under privacy the clipping norm.

    Args:
      radius: the key `aggregation.radius`; None if it is not set.
      clip: clipping norm under privacy; None without privacy.

    Returns:
      `radius` without privacy, else `clip`.

    Raises:
      ValueError: if `radius` is None without privacy, or set under privacy.
    """
    if clip is None:
        return required_radius(radius)
    if radius is not None:
        raise ValueError(
            "aggregation.radius is set, but under privacy it is privacy.clip; remove the key"
        )
    return clip


def required_radius(radius: float | None) -> float:
    """Returns `radius`. Raises `ValueError` if it is None."""
    if radius is None:
        raise ValueError(
            "aggregation.radius is missing; set the norm up to which an update has full "
            "weight, about the median norm of honest updates"
        )
    return radius
