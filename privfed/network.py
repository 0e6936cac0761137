"""A module as a function of its flat parameter vector, for one model or many stacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privfed.federation import Examples
from privfed.losses import Loss
from privfed.trial import scoring
from privfed.vector import Shapes

_AT_ONCE = 1024


@dataclass(frozen=True)
class Network:
    """A module's architecture, the shapes of its flat parameter vector `[d]`, and its loss.

    Only trainable parameters are in the vector; `constants` are the frozen ones and the buffers,
    which are public and stay as they are. `random`: training draws (dropout). `fingerprint` is what
    the module gives for made-up examples: another one means that its code has changed.
    """

    module: nn.Module
    shapes: Shapes
    start: Tensor
    loss: Loss
    random: bool = False
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    fingerprint: tuple[float, ...] = ()

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

        def one(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.module, parameters, (inputs,))
            return out

        return torch.func.vmap(one)(self.shapes.views(rows), x)

    def losses(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One model's loss on each example `[B]`."""
        return self.loss.losses(self.outputs(flat, x), y)

    def stacked_losses(self, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """C models' losses on their own examples `[c, B]`."""
        outputs = self.stacked_outputs(rows, x)
        flat = self.loss.losses(outputs.flatten(0, 1), y.flatten(0, 1))
        return flat.view(y.shape[:2])

    def evaluate(self, flat: Tensor, examples: Examples) -> dict[str, float]:
        """The loss's measures on `examples`, and "loss", its mean over them."""
        kept, losses = [], []
        for outputs, y in self.scored(flat, examples):
            kept.append(self.loss.keep(outputs, y, examples.meaning))
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
