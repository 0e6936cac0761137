"""FLAME: keeps the updates of the majority direction, clips them to the median norm, and adds
noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.geometry import Geometry
from defenses.linkage import first_majority
from defenses.weighing import DrawnWeights

if TYPE_CHECKING:
    from defenses.weighing import Needs


class Flame(DrawnWeights):
    """The mean of the majority cluster's updates, clipped to the median norm, with added noise.

    F(x) = mean over i in A of x_i min(1, S / |x_i|) + N(0, (noise S)^2 I), with S the median norm
    of all rows. A is the one cluster that HDBSCAN finds in cosine distances with a minimum size of
    floor(n / 2) + 1 and one sample: the first cluster of that size that single linkage forms.

    Needs rows, and a generator if there is noise. Tolerates fewer than half Byzantine clients: at
    least one honest row is in A, and without the noise |F| is at most the longest honest norm.
    Byzantine rows aligned with honest ones are admitted (no kappa), and atypical honest rows are
    excluded. One Gram matrix, O(n^2 d).

    The noise is meant to remove a backdoor. The noise gives no privacy guarantee: rows are not
    bounded beforehand, and the ledger charges nothing.

    Source: Nguyen, Rieger, Chen, Yalame, Möllering, Fereidooni, Marchal, Miettinen, Mirhoseini,
    Zeitouni, Koushanfar, Sadeghi & Schneider 2022, "FLAME: taming backdoors in federated learning",
    algorithm 1. There cosines are between models; here they are between updates, since rules do not
    receive the model. The paper's lambda, 0.001 for images, is `noise`.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [2.0, 0.2], [4.0, 0.0], [0.0, 9.0]])
    >>> Flame(noise=0.0)(rows, byzantine=1)
    tensor([2.0017, 0.0667])
    """

    bounded: ClassVar[bool] = False

    noise: float = Field(0.001, ge=0, le=100)
    """Standard deviation of the noise on each coordinate, in units of the median norm."""

    def needs(self) -> Needs:
        return frozenset({"generator"} if self.noise else ())

    def weigh(
        self, geometry: Geometry, byzantine: int, generator: torch.Generator | None
    ) -> Tensor:
        norms = geometry.norms.sqrt()
        admitted = first_majority(1 - geometry.cosines())
        clipped = torch.where(norms > 0, _middle(norms) / norms, 1.0).clamp(max=1.0)
        return torch.where(admitted, clipped, 0.0) / admitted.sum()

    def noised(
        self, aggregate: Tensor, geometry: Geometry, generator: torch.Generator | None
    ) -> Tensor:
        if not self.noise:
            return aggregate
        if generator is None:
            raise ValueError("FLAME adds noise; pass a generator, or set noise to 0")
        noise = torch.randn(len(aggregate), generator=generator, dtype=aggregate.dtype)
        std = self.noise * float(_middle(geometry.norms.sqrt()))
        return aggregate + std * noise.to(aggregate.device)


def _middle(values: Tensor) -> Tensor:
    """Returns the median of `values` `[n]`: the mean of the middle two if n is even."""
    ordered, n = values.sort().values, len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
