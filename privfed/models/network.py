"""A module as a function of its flat parameter vector, for one model or many stacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from privfed.data.federation import Examples
from privfed.models.form import Form
from privfed.models.loss import Loss
from privfed.models.stacking import Layers, layers, stacked
from privfed.models.vetting import channels_last, scoring
from privfed.vector import Shapes

Leaves = dict[str, Tensor]
"""Parameters by name: of one model, or `[c, *shape]` of c models."""
_AT_ONCE = 1024


@dataclass(frozen=True)
class Network:
    """A module's architecture, the shapes of its flat parameter vector `[d]`, and its loss.

    Only trainable parameters are in the vector; `constants` are the frozen ones and the buffers,
    which are public and stay as they are. `random`: training draws (dropout). `fingerprint` is what
    the module gives for made-up examples: another one means that its code has changed.
    `channels_last`: it takes images in that order of memory, which is faster on CPUs.
    """

    module: nn.Module
    shapes: Shapes
    start: Tensor
    loss: Loss
    random: bool = False
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    fingerprint: tuple[float, ...] = ()
    channels_last: bool = False
    form: Form | None = None
    """What its examples look like."""
    mixed: bool = False
    """Gradients are computed in mixed precision (`privfed.models.precision`)."""

    def digest(self) -> str:
        """SHA-256 of the constants as they are now."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.constants.items()):
            found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def same_code(self, fingerprint: Sequence[float]) -> bool:
        """Whether a module with this fingerprint computes the same, up to another machine."""
        ours, theirs = (torch.tensor(list(one)) for one in (self.fingerprint, fingerprint))
        return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-2, atol=1e-4)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """One model `[d]` on x `[B, *features]`: `[B, *positions, width]`."""
        parameters = self.shapes.views(flat)
        out: Tensor = torch.func.functional_call(self.module, parameters, (x,))
        return out

    def stacked_outputs(self, rows: Tensor, x: Tensor) -> Tensor:
        """C models `[c, d]`, each on its own x `[c, B, *features]`."""
        return self._stacked_call(self.shapes.views(rows), x)

    def _call(self, parameters: Leaves, x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, parameters, (x,))
        return out

    def _stacked_call(self, parameters: Leaves, x: Tensor) -> Tensor:
        if self._layers and not self.mixed:
            return stacked(self._layers, parameters, x)
        out: Tensor = torch.func.vmap(self._call)(parameters, x)
        return out

    @cached_property
    def _layers(self) -> Layers | None:
        """Of a module that can be stacked without `vmap`."""
        return layers(self.module, frozenset(self.shapes.names))

    def losses(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One model's loss on each example `[B]`."""
        return self.loss.losses(self.outputs(flat, x), y)

    def stacked_losses(self, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """C models' losses on their own examples `[c, B]`."""
        return self.loss.stacked(self.stacked_outputs(rows, x), y)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One model's gradient `[d]` of its mean loss on its examples."""
        parts = self.gradient_parts(self.leaves(flat), x, y)
        return torch.cat([part.reshape(-1) for part in parts])

    def gradient_parts(self, leaves: Leaves, x: Tensor, y: Tensor) -> list[Tensor]:
        """`gradient`, with respect to each of one model's leaves."""
        x = channels_last(x) if self.channels_last and not x.is_cuda else x
        with torch.enable_grad():
            with self._casting(x):
                outputs = self._call(leaves, x)
            mean = self.loss.losses(self._full(outputs), y).mean()
        return _gradients(mean, leaves)

    def stacked_gradient(self, rows: Tensor, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        """C models' gradients `[c, d]` of their losses on their own examples, weighed `[c, B]`."""
        parts = self.stacked_gradient_parts(self.leaves(rows), x, y, shares)
        return torch.cat([part.reshape(len(rows), -1) for part in parts], dim=1)

    def stacked_gradient_parts(
        self, leaves: Leaves, x: Tensor, y: Tensor, shares: Tensor
    ) -> list[Tensor]:
        """`stacked_gradient`, with respect to each of c models' leaves."""
        with torch.enable_grad():
            with self._casting(x):
                outputs = self._stacked_call(leaves, x)
            total = (self.loss.stacked(self._full(outputs), y) * shares).sum()
        return _gradients(total, leaves)

    def _casting(self, x: Tensor) -> AbstractContextManager[None]:
        return torch.autocast(x.device.type, torch.bfloat16) if self.mixed else nullcontext()

    def _full(self, outputs: Tensor) -> Tensor:
        return outputs.float() if self.mixed else outputs

    def leaves(self, flat: Tensor) -> Leaves:
        """The parameters in `flat` `[..., d]`, which they share, each a leaf of its own.

        A gradient with respect to the flat vector would add up as many vectors `[d]`, mostly zeros.
        """
        views = self.shapes.views(flat)
        return {name: view.detach().requires_grad_() for name, view in views.items()}

    def evaluate(self, flat: Tensor, examples: Examples) -> dict[str, float]:
        """The loss's measures on `examples`, and "loss", its mean over them."""
        if not examples.labelled:
            raise ValueError("nothing is scored on examples whose labels nobody knows")
        kept, losses = [], []
        for outputs, y in self.scored(flat, examples):
            kept.append(self.loss.scores(outputs, y, examples.meaning))
            losses.append(self.loss.losses(outputs, y).double())
        measures = self.loss.measures(torch.cat(kept))
        return {**measures, "loss": float(torch.cat(losses).mean())}

    @torch.no_grad()
    def scored(self, flat: Tensor, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and labels of `examples` in pieces, as the model is used: without dropout."""
        flat = flat.clone()  # whatever the module does to its parameters
        with scoring(self.module):
            for rows in torch.split(torch.arange(len(examples)), _AT_ONCE):
                yield self.outputs(flat, examples.x[rows]), examples.y[rows]


def _gradients(of: Tensor, leaves: Leaves) -> list[Tensor]:
    """With respect to each leaf; zeros for those that are not used."""
    wanted = list(leaves.values())
    return list(torch.autograd.grad(of, wanted, allow_unused=True, materialize_grads=True))
