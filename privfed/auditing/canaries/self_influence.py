"""The expected detectability of synthetic examples in training, computed before the run.

A local update of length C along a canary's own gradient g_i lowers its loss by C |g_i| to first
order. Another client's update along g_j changes the loss by the fraction cos(g_i, g_j) of that. So
an example is a better canary if its gradient is longer (up to the length at which its update is
clipped), and less aligned with other gradients. Gradients of canaries orthogonal to all others:
Nasr et al. 2023, "Tight auditing of differentially private machine learning". Canaries optimised
through training: Boglioni et al. 2025, "Optimizing canaries for privacy auditing with metagradient
descent". The worth here is the first order of that objective, and uses only public information.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from privfed.models.calling import scoring
from privfed.models.network import Network

_SMALLEST = 1e-12
_TOGETHER = 64
_MOST_NUMBERS = 2**26
"""Largest number of entries in the gradients of canaries that are computed together."""


@dataclass(frozen=True)
class SelfInfluence:
    """Computes the worth (expected detectability) of canaries' examples at public models.

    Attributes:
      network: the network.
      models: public models, shape `[p, d]`.
      others: unit directions in which public clients move each model, shape `[p, q, d]`.
      enough: gradient norm above which an update is clipped.
      stacked: whether models can be computed as one batch.
    """

    network: Network
    models: Tensor
    others: Tensor
    enough: float
    stacked: bool

    @property
    def together(self) -> int:
        """Number of canaries, from 2 to 64, whose gradients are computed together."""
        return max(2, min(_TOGETHER, _MOST_NUMBERS // self.models.shape[1]))

    def of(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the worth `[c]` of canaries with x `[c, n, *features]`, y `[c, n, *labels]`.

        The worth is the mean over models of log min(|g_i|, enough) - log(1 + sum_j cos^2(g_i, g_j))
        / 2, with g_i the gradient of the canary's mean loss; j runs over the other canaries and the
        `others`.
        """
        with torch.enable_grad(), scoring(self.network.module):
            each = zip(self.models, self.others, strict=True)
            return torch.stack([self._at(*public, x, y) for public in each]).mean(0)

    def directions(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the unit directions `[K, d]` of canaries' gradients at the first model."""
        pieces = torch.split(torch.arange(len(x), device=x.device), self.together)
        with scoring(self.network.module):
            each = [self._gradients(self.models[0], x[rows], y[rows]).detach() for rows in pieces]
        return torch.nn.functional.normalize(torch.cat(each), dim=1)

    def _at(self, model: Tensor, others: Tensor, x: Tensor, y: Tensor) -> Tensor:
        gradients = self._gradients(model, x, y)
        norms = gradients.norm(dim=1).clamp(min=_SMALLEST)
        unit = gradients / norms[:, None]
        among = (unit @ unit.T).square().sum(1) - 1
        with_others = (unit @ others.T).square().sum(1)
        worth: Tensor = norms.clamp(max=self.enough).log() - (1 + among + with_others).log() / 2
        return worth

    def _gradients(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns each canary's gradient `[c, d]` of its mean loss, itself differentiable in x."""
        if self.stacked:  # not for manually stacked layers, which have one gradient only
            each = torch.func.vmap(torch.func.grad(self._mean_loss), (None, 0, 0))
            gradients: Tensor = each(model, x, y)
            return gradients
        return torch.stack(list(self._one_by_one(model, x, y)))

    def _one_by_one(self, model: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        leaf = model.detach().clone().requires_grad_()
        for features, labels in zip(x, y, strict=True):
            with torch.enable_grad():
                mean = self._mean_loss(leaf, features, labels)
                (gradient,) = torch.autograd.grad(mean, leaf, create_graph=x.requires_grad)
            yield gradient

    def _mean_loss(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.network.losses(model, x, y).mean()
