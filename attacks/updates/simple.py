"""Attacks for which an attacker needs only its own update, or none."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import State, UpdateAttack, View


class SignFlip(UpdateAttack):
    """Sends the negated update, -strength x for an attacker's own update x.

    Knows its own update. Source: Li, Xu, Chen, Giannakis & Ling 2019 (RSA), section 5.

    >>> import torch, numpy
    >>> view = View(1, torch.tensor([[1.0, -2.0]]))
    >>> SignFlip(strength=2.0).corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[-2.,  4.]])
    """

    strength: float = Field(1.0, gt=0, le=1e6)
    """Factor by which the negated update is multiplied."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return -self.strength * view.byzantine, state


class Scaling(UpdateAttack):
    """Sends a scaled update, strength x for an attacker's own update x.

    Knows its own update. Source: Bagdasaryan et al. 2020 (boosting, without a backdoor).

    >>> import torch, numpy
    >>> view = View(1, torch.tensor([[1.0, -2.0]]))
    >>> Scaling(strength=3.0).corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[ 3., -6.]])
    """

    strength: float = Field(10.0, gt=0, le=1e6)
    """Factor by which the update is multiplied."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return self.strength * view.byzantine, state


class GaussianNoise(UpdateAttack):
    """Sends noise N(0, s^2 I) whose root mean square norm is `strength` times the update's norm.

    Knows its own update. Source: Blanchard et al. 2017, section 5.

    >>> import torch, numpy
    >>> view = View(1, torch.ones(1, 10_000))
    >>> sent = GaussianNoise(strength=5.0).corrupt(view, {}, numpy.random.default_rng(0))[0]
    >>> float(sent.norm() / view.byzantine.norm()).__round__(1)
    5.0
    """

    strength: float = Field(10.0, gt=0, le=1e6)
    """Root mean square norm of the noise, relative to the norm of the attacker's own update."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        rows = view.byzantine
        noise = torch.from_numpy(rng.normal(size=tuple(rows.shape))).to(rows)
        scale = self.strength * rows.norm(dim=1, keepdim=True) / max(1, rows.shape[1]) ** 0.5
        return scale * noise, state


class FreeRider(UpdateAttack):
    """Sends zeros, without training, and still receives the model.

    Knows nothing. Source: Lin, Du & Liu 2019, "Free-riders in federated learning".

    >>> import torch, numpy
    >>> FreeRider().corrupt(View(1, torch.ones(1, 2)), {}, numpy.random.default_rng(0))[0]
    tensor([[0., 0.]])
    """

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return torch.zeros_like(view.byzantine), state
