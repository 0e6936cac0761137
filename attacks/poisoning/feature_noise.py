"""An attack that adds noise to the features of training examples."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import Attack, Briefing, Knowledge


class FeatureNoise(Attack):
    """Trains on examples with strong Gaussian noise on their features.

    An example x becomes x + N(0, (strength s)^2 I), with s the standard deviation of the numbers in
    all examples of the client.

    Each attacker knows its own data. Source: Pillutla, Kakade & Harchaoui 2022, section 5
    (corrupted data).

    >>> import torch, numpy
    >>> x = torch.zeros(2, 3)
    >>> rng = numpy.random.default_rng(0)
    >>> FeatureNoise().poison(x, torch.zeros(2), Briefing(2), rng)[0].norm() == 0
    tensor(True)
    """

    knows: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.OWN_DATA})
    poisons: ClassVar[bool] = True
    strength: float = Field(3.0, gt=0, le=1e6)
    """Standard deviation of the noise, relative to that of all numbers in the client's examples."""

    def unfit_reason(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        return (
            None
            if numbers
            else ("the attack adds noise to numbers, but examples are tokens; use another attack")
        )

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        noise = torch.from_numpy(rng.normal(size=tuple(x.shape))).to(x)
        return x + self.strength * x.std(correction=0) * noise, y
