"""What is public of a run's training: models, and where public examples move these.

The start is public, and so is the test set where it is of nobody that trains. Whoever has none is
left with the start alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from privfed.data.federation import Examples, Federation
from privfed.models.network import Network

_STEPS, _BATCH = (4, 32), 64
"""After how many steps on public examples a model is taken, and of how many examples these are."""
_CLIENTS, _HELD = 128, 8
"""How many clients public examples play at most, and how many of them one of these holds."""
_MOST_NUMBERS = 2**26
"""How many numbers the directions may have."""


def public_examples(federation: Federation) -> Examples | None:
    """The examples that belong to nobody who trains; None where there are none."""
    return None if federation.shared or not len(federation.test) else federation.test


def public_models(network: Network, public: Examples | None, start: Tensor, lr: float) -> Tensor:
    """The models `[p, d]`: the `start` `[d]`, and what some steps at rate `lr` make of it."""
    models, w = [start], start
    if public is None:
        return torch.stack(models)
    for step in range(max(_STEPS)):
        w = w - lr * _gradient(network, w, public, step * _BATCH, _BATCH)
        if step + 1 in _STEPS and bool(w.isfinite().all()):
            models.append(w)
    return torch.stack(models)


def public_directions(network: Network, public: Examples | None, models: Tensor) -> Tensor:
    """Directions `[p, q, d]` of length one, in which public clients would move the models."""
    if public is None:
        return models.new_zeros(len(models), 0, models.shape[1])
    count = max(1, min(_CLIENTS, len(public) // _HELD, _MOST_NUMBERS // models.numel()))
    ways = [torch.stack([*_ways(network, model, public, count)]) for model in models]
    return torch.nn.functional.normalize(torch.stack(ways), dim=2)


def _ways(network: Network, model: Tensor, public: Examples, count: int) -> Iterator[Tensor]:
    for client in range(count):
        yield _gradient(network, model, public, client * _HELD, _HELD)


def _gradient(network: Network, w: Tensor, public: Examples, first: int, count: int) -> Tensor:
    """The gradient `[d]` of `count` public examples from `first` on, begun anew at their end."""
    rows = (torch.arange(min(count, len(public))) + first) % len(public)
    rows = rows.to(public.y.device)
    return network.gradient(w, public.x[rows], public.y[rows])
