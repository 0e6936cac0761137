"""Gradient inversion: searches for inputs whose simulated update matches the observed one.

`update(x, y)` simulates the update `[d]` of a client with B examples x `[B, *]` and labels y `[B]`,
by one gradient or by several local steps. It is differentiable in x, since the attacker knows the
model and the training procedure. Labels are assumed known: see `attacks.privacy.label_recovery`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Update = Callable[[Tensor, Tensor], Tensor]
_DECAYS = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class Search:
    """The inputs to search for.

    Attributes:
      shape: shape `[B, *]` of the batch of inputs.
      labels: labels of the inputs, shape [B].
      low: lower end of the range of input values.
      high: upper end of the range of input values.
    """

    shape: tuple[int, ...]
    labels: Tensor
    low: float
    high: float


@dataclass
class _Nearest:
    """The inputs `x` with the smallest `distance` among all considered so far."""

    x: Tensor
    distance: float = math.inf

    def consider(self, guess: Tensor, distance: Tensor) -> None:
        """Stores a copy of `guess` if its `distance` is smaller than the smallest so far."""
        if float(distance.detach()) < self.distance:
            self.x, self.distance = guess.detach().clone(), float(distance.detach())


def match_gradients(
    update: Update, observed: Tensor, search: Search, iterations: int, generator: torch.Generator
) -> Tensor:
    """Minimises |update(x) - u|^2 / |u|^2 over x by L-BFGS from normal noise (deep leakage from
    gradients).

    Needs a model that is smooth in x (sigmoid, tanh; not ReLU or max-pooling). If the search is
    stuck, restart it from another random start. Source: Zhu, Liu & Han 2019 (DLG), algorithm 1.

    Args:
      update: the simulated update, differentiable in x.
      observed: the observed update u, shape [d].
      search: shape, labels and range of the inputs.
      iterations: largest number of L-BFGS steps.
      generator: source of the random start.

    Returns:
      The inputs with the smallest distance, shape [B, *], not clamped to the range.
    """
    guess = torch.randn(search.shape, generator=generator, dtype=observed.dtype)
    guess.requires_grad_()
    optimizer: Any = torch.optim.LBFGS([guess], history_size=100, line_search_fn="strong_wolfe")
    scale = observed.square().sum().clamp(min=1e-30)
    best = _Nearest(guess.detach().clone())

    def closure() -> Tensor:
        optimizer.zero_grad()
        distance = (update(guess, search.labels) - observed).square().sum() / scale
        (guess.grad,) = torch.autograd.grad(distance, guess)
        best.consider(guess, distance)
        return distance.detach()

    for _ in range(iterations):
        before = best.distance
        optimizer.step(closure)
        if not guess.detach().isfinite().all() or best.distance >= before:
            break
    return best.x


def match_direction(
    update: Update,
    observed: Tensor,
    search: Search,
    iterations: int,
    generator: torch.Generator,
    variation: float = 1e-2,
    rate: float = 0.5,
) -> Tensor:
    """Minimises 1 - cos(update(x), u) + `variation` TV(x / r) by Adam on the signs of gradients.

    r is half the range, in which x is kept. The length of u has no effect, so clipping changes
    nothing. TV is the total variation of images `[B, *, h, w]`, and 0 for vectors `[B, k]`. Source:
    Geiping et al. 2020, section 4 and equation 4.

    Args:
      update: the simulated update, differentiable in x.
      observed: the observed update u, shape [d].
      search: shape, labels and range of the inputs.
      iterations: number of Adam steps.
      generator: source of the random start.
      variation: weight of the total variation.
      rate: learning rate in units of half the range; it falls tenfold after 3/8, 5/8 and 7/8 of the
        iterations.

    Returns:
      The inputs with the smallest objective, shape [B, *].
    """
    middle, half = (search.low + search.high) / 2, (search.high - search.low) / 2
    guess = torch.randn(search.shape, generator=generator, dtype=observed.dtype) * half / 2 + middle
    guess = guess.clamp(search.low, search.high).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=rate * half)
    milestones = sorted({max(int(part * iterations), 1) for part in _DECAYS})
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    best = _Nearest(guess.detach().clone())
    for _ in range(iterations):
        cosine = torch.cosine_similarity(update(guess, search.labels), observed, dim=0)
        loss = 1 - cosine + variation * total_variation(guess / half)
        best.consider(guess, loss)
        (grad,) = torch.autograd.grad(loss, guess)
        guess.grad = grad.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(search.low, search.high)
    return best.x


def total_variation(x: Tensor) -> Tensor:
    """Returns the mean absolute difference of vertical neighbours plus that of horizontal ones.

    >>> total_variation(torch.tensor([[[0.0, 1.0], [0.0, 3.0]]]))
    tensor(3.)
    """
    if x.dim() < 3:
        return x.new_zeros(())
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    return down + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
