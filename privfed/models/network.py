"""A module as a function of its flat parameter vector, for one model or many stacked models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from privfed.core.vector import Shapes
from privfed.data.federation import Examples
from privfed.models.calling import channels_last, scoring
from privfed.models.form import Form
from privfed.models.loss import Loss
from privfed.models.recurrent import StackedRecurrence
from privfed.models.sequence import (
    Factor,
    Layers,
    sequence_forward,
    sequence_of,
    stackable_layers,
    stacked_forward,
)
from privfed.models.start import is_factor

Leaves = dict[str, Tensor]
"""Parameters by name: of one model, or `[c, *shape]` of c models."""
Losses = Callable[[Tensor, Tensor | None], Tensor]
"""Maps outputs `[c, B, ...]` and representations `[c, B, h]` to losses `[c, B]`."""
_BATCH_SIZE, _OUTPUTS = 1024, 2**25
"""Largest number of examples that are scored at once, and approximately of their outputs."""


@dataclass(frozen=True)
class Network:
    """A module's architecture, the shapes of its flat parameter vector `[d]`, and its loss.

    The vector contains the trainable parameters, followed by the `averaged` statistics. `constants`
    are the frozen parameters and other buffers, which are public and do not change. `random` is
    true for models that draw random numbers in training (dropout). `fingerprint` is the module's
    output on synthetic examples, by which a change of its code is detected. `channels_last` is true
    for models that take images in that memory order, which is faster on CPUs.
    """

    module: nn.Module
    shapes: Shapes
    initial_params: Tensor
    loss: Loss
    random: bool = False
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    fingerprint: tuple[float, ...] = ()
    channels_last: bool = False
    form: Form | None = None
    """The form of the run's examples; None if it is unknown."""
    local: Shapes = field(default_factory=lambda: Shapes((), ()))
    """Names and shapes of the constants that each client trains locally: see `local_part`."""
    averaged: Shapes = field(default_factory=lambda: Shapes((), ()))
    """Names and shapes of the last entries of the vector: running statistics of batch
    normalisations, which clients average in runs without privacy (`privfed.client.partial`).
    """
    mixed: int = 0
    """The size of a full batch if gradients are computed in mixed precision
    (`privfed.models.precision`); otherwise 0.
    """

    @property
    def without_adapters(self) -> int:
        """Number of all parameters, trained or not, except the factors of adapters."""
        named = self.module.named_parameters()
        return sum(parameter.numel() for name, parameter in named if not is_factor(name))

    @property
    def linear(self) -> bool:
        """Whether `stacked_forward` supports all layers, and precision is not mixed."""
        return self._layers is not None and not self.mixed

    @property
    def unstackable(self) -> str:
        """Reason why models cannot be stacked, if known without a try; otherwise empty."""
        if self.random:
            return (
                "this model draws random numbers in training (dropout), and stacked models would "
                "not draw the same numbers"
            )
        if any(getattr(part, "padding_idx", None) is not None for part in self.module.modules()):
            return (
                "this model has an embedding with padding_idx, which torch.func.vmap applies to "
                "the first of the stacked models only"
            )
        return ""

    def hold(self, flat: Tensor) -> tuple[str, ...]:
        """Copies `flat` `[d]` into the module; returns the names of the trained parameters."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, view in self.shapes.views(flat).items():
                tensors[name].copy_(view)
        return tuple(name for name in self.shapes.names if name not in self.averaged.names)

    def digest(self) -> str:
        """Returns the SHA-256 of the current constants."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.constants.items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def same_code(self, fingerprint: Sequence[float]) -> bool:
        """Whether `fingerprint` is as long as this module's, and equal to it up to 1 % + 1e-4."""
        computed, stated = torch.tensor([*self.fingerprint]), torch.tensor([*fingerprint])
        return computed.shape == stated.shape and torch.allclose(
            computed, stated, rtol=1e-2, atol=1e-4
        )

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs `[B, *positions, width]` of one model `[d]` on x `[B, *features]`."""
        parameters = self.shapes.views(flat)
        out: Tensor = torch.func.functional_call(self.module, parameters, (x,))
        return out

    def stacked_outputs(self, rows: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs of c models `[c, d]`, each on its own x `[c, B, *features]`."""
        return self._stacked_call(self.shapes.views(rows), x)

    def _call(
        self,
        parameters: Leaves,
        x: Tensor,
        mixed: int = 0,
        factors: dict[str, Factor] | None = None,
    ) -> Tensor:
        if self.sequence:
            return sequence_forward(self.sequence, parameters, x, mixed, factors)
        rounding = torch.autocast(x.device.type, torch.bfloat16) if mixed else nullcontext()
        with rounding:
            out: Tensor = torch.func.functional_call(self.module, parameters, (x,))
        return out

    def _stacked_call(self, parameters: Leaves, x: Tensor, mixed: int = 0) -> Tensor:
        if self._layers:
            return stacked_forward(self._layers, parameters, x, mixed)
        out: Tensor = self._over_models(partial(self._call, mixed=mixed), parameters, x)
        return out

    def _over_models(self, function: Callable[..., Any], parameters: Leaves, x: Tensor) -> Any:
        """Returns `function` of each model's parameters and examples, stacked over models."""
        with StackedRecurrence() if self.recurrent else nullcontext():
            return torch.func.vmap(function)(parameters, x)

    @cached_property
    def recurrent(self) -> bool:
        """Whether the model has LSTM or GRU layers."""
        return any(isinstance(part, nn.LSTM | nn.GRU) for part in self.module.modules())

    @cached_property
    def sequence(self) -> Layers | None:
        """The layers of the module for `sequence_forward`; None if it does not support one."""
        return sequence_of(self.module, frozenset(self.shapes.names))

    @cached_property
    def _layers(self) -> Layers | None:
        """The layers of the module for `stacked_forward`; None if it does not support one."""
        return stackable_layers(self.module, frozenset(self.shapes.names))

    def losses(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of one model `[d]` on each example `[B]`."""
        return self.loss.losses(self.outputs(flat, x), y)

    def stacked_losses(self, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the losses of c models `[c, d]` on their own examples `[c, B]`."""
        return self.loss.stacked(self.stacked_outputs(rows, x), y)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient `[d]` of one model's mean loss on its examples."""
        parts = self.gradient_parts(self.leaves(flat), x, y)
        return torch.cat([part.reshape(-1) for part in parts])

    def gradient_parts(self, leaves: Leaves, x: Tensor, y: Tensor) -> list[Tensor]:
        """Returns the gradient of one model's mean loss, with respect to each of its leaves."""
        return _gradients(self._mean_loss(leaves, x, y), leaves)

    def descend(self, leaves: Leaves, x: Tensor, y: Tensor, lr: float) -> None:
        """Takes one step of gradient descent on one model's leaves, in place, at rate `lr`."""
        factors: dict[str, Factor] = {}
        mean = self._mean_loss(leaves, x, y, factors)
        dense = {name: leaf for name, leaf in leaves.items() if name not in factors}
        ends = {name: factor.output for name, factor in factors.items()}
        parts = _gradients(mean, {**dense, **ends})
        with torch.no_grad():
            if dense:
                torch._foreach_add_(list(dense.values()), parts[: len(dense)], alpha=-lr)
            for (name, factor), part in zip(factors.items(), parts[len(dense) :], strict=True):
                rows, columns = part.flatten(0, -2).t(), factor.input.flatten(0, -2)
                leaves[name].addmm_(rows, columns, alpha=-lr)

    def _mean_loss(
        self, leaves: Leaves, x: Tensor, y: Tensor, factors: dict[str, Factor] | None = None
    ) -> Tensor:
        """Returns one model's mean loss on its examples; for `factors`, see `sequence_forward`."""
        x = channels_last(x) if self.channels_last and not x.is_cuda else x
        with torch.enable_grad():
            outputs = self._call(leaves, x, self.mixed, factors)
            return self.loss.losses(self._in_full_precision(outputs), y).mean()

    def stacked_gradient(self, rows: Tensor, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        """Returns the gradients `[c, d]` of c models' losses, weighted by `shares` `[c, B]`."""
        parts = self.stacked_gradient_parts(self.leaves(rows), x, y, shares)
        return torch.cat([part.reshape(len(rows), -1) for part in parts], dim=1)

    def stacked_gradient_parts(
        self, leaves: Leaves, x: Tensor, y: Tensor, shares: Tensor
    ) -> list[Tensor]:
        """Returns the gradients of c models' losses, weighted by `shares` `[c, B]`.

        They are those of `stacked_gradient`, as one tensor `[c, ...]` for each of the `leaves`.
        """
        with torch.enable_grad():
            outputs = self._stacked_call(leaves, x, self.mixed)
            total = (self.loss.stacked(self._in_full_precision(outputs), y) * shares).sum()
        return _gradients(total, leaves)

    def _in_full_precision(self, outputs: Tensor) -> Tensor:
        return outputs.float() if self.mixed else outputs

    def gradient_of(
        self,
        losses: Losses,
        rows: Tensor,
        x: Tensor,
        shares: Tensor,
        features: bool = False,
        stacked: bool = True,
    ) -> Tensor:
        """Returns the gradients `[c, d]` of c models' `losses`, weighted by `shares` `[c, B]`.

        Args:
          losses: maps outputs and, with `features`, representations [c, B, h] to losses [c, B].
          rows: parameter vectors, shape [c, d].
          x: examples of each model, shape [c, B, *features].
          shares: weights of the examples, shape [c, B].
          features: whether `losses` reads representations.
          stacked: whether models are computed together; otherwise c must be 1.
        """
        leaves = self.leaves(rows)
        with torch.enable_grad():
            outputs, inputs = self._with_features(leaves, x, stacked, features)
            total = (losses(self._in_full_precision(outputs), inputs) * shares).sum()
        parts = _gradients(total, leaves)
        return torch.cat([part.reshape(len(rows), -1) for part in parts], dim=1)

    @torch.no_grad()
    def features(self, rows: Tensor, x: Tensor, stacked: bool = True) -> Tensor:
        """Returns the representations `[c, B, h]` of x under c models `[c, d]`.

        A representation is the flattened input of the last layer that itself has parameters. Unless
        `stacked`, c must be 1.
        """
        inputs = self._with_features(self.shapes.views(rows), x, stacked, True)[1]
        if inputs is None:
            raise RuntimeError("representations were requested, but not computed")
        return inputs

    def _with_features(
        self, leaves: Leaves, x: Tensor, stacked: bool, features: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the outputs `[c, B, ...]` of c models on their own batches `[c, B, ...]`.

        Also returns their representations if `features`, else None. Unless `stacked`, c must be 1.
        """
        if features:
            if stacked:
                outputs, inputs = self._over_models(self._tapped, leaves, x)
                return outputs, self._in_full_precision(inputs)
            outputs, inputs = self._tapped({name: leaf[0] for name, leaf in leaves.items()}, x[0])
            return outputs[None], self._in_full_precision(inputs)[None]
        if stacked:
            return self._stacked_call(leaves, x, self.mixed), None
        alone = {name: leaf[0] for name, leaf in leaves.items()}
        return self._call(alone, x[0], self.mixed)[None], None

    def _tapped(self, leaves: Leaves, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a model's outputs, and the inputs `[B, h]` of its last layer with parameters."""
        layers = [m for m in self.module.modules() if any(True for _ in m.parameters(False))]
        taken: list[Tensor] = []
        hook = layers[-1].register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
        rounding = torch.autocast(x.device.type, torch.bfloat16) if self.mixed else nullcontext()
        try:
            with rounding:
                outputs = torch.func.functional_call(self.module, leaves, (x,))
        finally:
            hook.remove()
        return outputs, taken[-1].flatten(1)

    def leaves(self, flat: Tensor) -> Leaves:
        """Returns the parameters in `flat` `[..., d]` as autograd leaves, which share its memory.

        A gradient with respect to the flat vector would be slower: autograd would add up one vector
        `[d]`, mostly zeros, per parameter.
        """
        views = self.shapes.views(flat)
        return {name: view.detach().requires_grad_() for name, view in views.items()}

    def evaluate(self, flat: Tensor, examples: Examples) -> dict[str, float]:
        """Returns the measures on `examples` by name, and the mean loss as "loss".

        Args:
          flat: parameters of the model, shape [d].
          examples: labelled examples.

        Raises:
          ValueError: if the examples have no labels.
          Refused: if a measure is undefined, such as the ROC AUC of a single class.
        """
        if not examples.labelled:
            raise ValueError("the examples have no labels, so they cannot be scored")
        scores, losses = [], []
        for outputs, y in self.scored(flat, examples):
            scores.append(self.loss.scores(outputs, y, examples.meaning))
            losses.append(self.loss.losses(outputs, y).double())
        measures = self.loss.measures(torch.cat(scores))
        return {**measures, "loss": float(torch.cat(losses).mean())}

    @torch.no_grad()
    def scored(self, flat: Tensor, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the model's outputs and the labels, one pair for each batch of `examples`.

        Outputs are computed in evaluation mode, without dropout.
        """
        flat = flat.clone()  # the module may change it in place
        outputs = math.prod(examples.y.shape[1:]) * examples.classes
        count = max(1, min(_BATCH_SIZE, _OUTPUTS // max(outputs, 1)))
        with scoring(self.module):
            for rows in torch.split(torch.arange(len(examples)), count):
                yield self.outputs(flat, examples.x[rows]), examples.y[rows]


def _gradients(loss: Tensor, leaves: Leaves) -> list[Tensor]:
    """Returns the gradient of `loss` with respect to each leaf; zeros for unused leaves."""
    inputs = [leaf for leaf in leaves.values() if leaf.requires_grad]
    parts = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    if len(inputs) == len(leaves):
        return list(parts)
    given = iter(parts)
    return [next(given) if x.requires_grad else torch.zeros_like(x) for x in leaves.values()]
