"""Models by name, where they start, and what they predict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from privfed.errors import Refused
from privfed.federation import Examples
from privfed.parts import Part
from privfed.streams import Keys
from privfed.vector import Shapes


class Model(Protocol):
    """A recipe for a module that maps x `[B, *features]` to logits `[B, classes]`."""

    def build(self, features: tuple[int, ...], classes: int) -> nn.Module: ...


class Logistic(Part):
    """Multinomial logistic regression, starting at zero."""

    def build(self, features: tuple[int, ...], classes: int) -> nn.Module:
        layer = nn.Linear(math.prod(features), classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)


class Mlp(Part):
    """Fully connected layers of the given widths with ReLU between them."""

    hidden: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field([64], min_length=1)

    def build(self, features: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(features)
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, classes))


@dataclass(frozen=True)
class Network:
    """A module's architecture and the shapes of its flat parameter vector `[d]`."""

    module: nn.Module
    shapes: Shapes
    start: Tensor

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """One model `[d]` on x `[B, *features]`: logits `[B, classes]`."""
        parameters = self.shapes.views(flat)
        out: Tensor = torch.func.functional_call(self.module, parameters, (x,))
        return out

    def stacked_logits(self, rows: Tensor, x: Tensor) -> Tensor:
        """C models `[c, d]`, each on its own x `[c, B, *features]`: logits `[c, B, classes]`."""

        def one(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.module, parameters, (inputs,))
            return out

        return torch.func.vmap(one)(self.shapes.views(rows), x)

    @torch.no_grad()
    def evaluate(self, flat: Tensor, examples: Examples) -> tuple[float, float]:
        """Accuracy and mean cross-entropy on `examples`."""
        loss, right = 0.0, 0
        for x, y in zip(torch.split(examples.x, 4096), torch.split(examples.y, 4096), strict=True):
            logits = self.logits(flat, x)
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            right += int((logits.argmax(1) == y).sum())
        return right / len(examples), loss / len(examples)


def network(
    model: Model,
    features: tuple[int, ...],
    classes: int,
    init: str,
    keys: Keys,
    device: torch.device,
) -> Network:
    """Build `model` and its first parameters, from `keys` or from the safetensors file `init`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.integer())
        module = model.build(features, classes)
    shapes = Shapes.of(module)
    start = _read(Path(init), shapes) if init else shapes.flatten(dict(module.named_parameters()))
    return Network(module.to(device).requires_grad_(False), shapes, start.to(device))


def _read(path: Path, shapes: Shapes) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refused(
            f"model.init: {path} cannot be read as a safetensors file: {error}"
        ) from error
    # A checkpoint of a run holds its model under this prefix, beside other state.
    model = {k.removeprefix("model/"): v for k, v in found.items() if k.startswith("model/")}
    found = model or found
    floats = {name: tensor.float() for name, tensor in found.items()}
    try:
        return shapes.flatten_exactly(floats)
    except ValueError as error:
        raise Refused(f"model.init: {path} holds another model: {error}") from error
