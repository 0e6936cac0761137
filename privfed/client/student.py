"""A model on public unlabelled examples: its outputs for them, and its distillation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from privfed.core.errors import Refused
from privfed.data.federation import Examples
from privfed.models.calling import scoring
from privfed.models.network import Network

_TOGETHER = 4096
"""Largest number of output rows that are computed at once for stacked models."""


@dataclass(frozen=True, eq=False)
class NetworkStudent:
    """The architecture `network`, and the features `x` `[m, *features]` of public examples.

    `classes` is the declared number k of classes.

    Modules are called in evaluation mode, so dropout does not act.
    """

    network: Network
    x: Tensor
    classes: int

    @classmethod
    def of(cls, network: Network, public: Examples, count: int, classes: int) -> Self:
        """Returns a student on the features of `count` of the `public` examples.

        Examples are repeated if `public` is a smaller stand-in for the declared set.

        Args:
          network: the architecture.
          public: public examples; their labels are not read.
          count: number m of examples.
          classes: declared number k of classes.

        Raises:
          Refused: if the outputs for an example are not one number for each of the `classes`.
        """
        index = torch.arange(count) % len(public)
        x = public.x[index].to(network.initial_params.device)
        student = cls(replace(network, mixed=0), x, classes)
        student.refuse_other_outputs()
        return student

    def with_architecture(self, network: Network) -> Self:
        """Returns the same public examples with the architecture `network`."""
        return replace(self, network=replace(network, mixed=0))

    def refuse_other_outputs(self) -> None:
        """Raises `Refused` unless outputs for one example are one number per class."""
        initial = self.network.initial_params[None]
        shape = tuple(self.outputs(initial)[0].shape[1:])
        if shape != (self.classes,):
            raise Refused(
                f"compression.classes is {self.classes}, but the model's output for an example has "
                f"shape {list(shape)}; soft labels need one label per example, so set "
                f"compression.classes = {shape[-1]} if the shape is [{shape[-1]}], or use another "
                "compression",
                key="compression.classes",
            )

    @torch.no_grad()
    def outputs(self, models: Tensor) -> Tensor:
        """Returns the outputs `[c, m, k]` of `models` `[c, d]` for the public examples."""
        with scoring(self.network.module):
            if len(models) == 1 or self.network.unstackable:
                return torch.stack([self._alone(model) for model in models])
            pieces = torch.split(self.x, max(1, _TOGETHER // len(models)))
            over_clients = (piece.expand(len(models), *piece.shape) for piece in pieces)
            return torch.cat([self.network.stacked_outputs(models, x) for x in over_clients], dim=1)

    def _alone(self, model: Tensor) -> Tensor:
        """Returns the outputs `[m, k]` of one model `[d]`."""
        pieces = torch.split(self.x, _TOGETHER)
        return torch.cat([self.network.outputs(model, piece) for piece in pieces])

    def distilled(self, models: Tensor, targets: Tensor, batches: Tensor, lr: float) -> Tensor:
        """Returns models `[c, d]` after steps of Adam on the cross-entropy with `targets`.

        Args:
          models: parameters at the start, shape [c, d]; they do not change.
          targets: a distribution over classes for each public example, shape [m, k].
          batches: indices of public examples in each step, shape [steps, B].
          lr: learning rate.
        """
        with scoring(self.network.module):
            return torch.cat(
                [self._distilled(part, targets, batches, lr) for part in self._parts(models)]
            )

    def _parts(self, models: Tensor) -> Iterator[Tensor]:
        """Yields the parts of `models` `[c, d]` that are distilled together."""
        size = 1 if self.network.unstackable else max(1, len(models))
        yield from torch.split(models, size)

    def _distilled(self, models: Tensor, targets: Tensor, batches: Tensor, lr: float) -> Tensor:
        count = len(models)
        trained = models.detach().clone()
        optimizer = torch.optim.Adam([trained], lr=lr)
        shares = models.new_full((count, batches.shape[1]), 1.0 / batches.shape[1])
        for batch in batches:
            x, wanted = self.x[batch], targets[batch]

            def losses(outputs: Tensor, features: Tensor | None, y: Tensor = wanted) -> Tensor:
                return -(y * F.log_softmax(outputs, dim=-1)).sum(-1)

            stacked = x.expand(count, *x.shape)
            trained.grad = self.network.gradient_of(
                losses, trained, stacked, shares, stacked=count > 1
            )
            optimizer.step()
        return trained
