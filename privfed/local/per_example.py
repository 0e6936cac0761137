"""Gradients of single examples, by Opacus' hooks on a copy of the module."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from privfed.errors import Refused
from privfed.models.calling import scoring
from privfed.models.network import Network

_MIXED = (
    "gradients of single examples, as Opacus takes them, are not those of this model: it mixes "
    "examples or uses parameters outside of its layers. Use another model, or user-level privacy"
)


class PerExample:
    """One network's gradients of single examples.

    Raises `Refused` where Opacus is missing or does not know a layer.
    """

    def __init__(self, network: Network) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from opacus import GradSampleModule
                from opacus.validators import ModuleValidator
        except ImportError as error:
            raise Refused(
                'client.privacy.mechanism = "dp_sgd" needs opacus, which is not installed: '
                "pip install 'privfed[opacus]'"
            ) from error
        self._network = network
        copied = copy.deepcopy(network.module).to(network.initial_params.device)
        for name, parameter in copied.named_parameters():
            parameter.requires_grad_(name in network.shapes.names)
        problems = ModuleValidator.validate(copied, strict=False)
        problems += GradSampleModule.validate(copied)
        if problems:
            listed = "; ".join(" ".join(str(problem).split()) for problem in problems)
            raise Refused(
                f"gradients of single examples are not to be had for this model: {listed}; "
                "use another model, or user-level privacy"
            )
        self._module = GradSampleModule(copied, loss_reduction="sum")
        self._parameters: dict[str, Any] = dict(copied.named_parameters())

    def verify(self, x: Tensor, y: Tensor) -> None:
        """Compare with autograd, one example at a time, on made-up x `[3, *]`, y `[3, *]`.

        Raises `Refused` where they differ: hooks do not see all that a module may do.
        """
        network, generator = self._network, torch.Generator().manual_seed(0)
        noise = torch.randn(network.shapes.length, generator=generator).to(network.initial_params)
        w = network.initial_params + 0.1 * noise
        try:
            with scoring(network.module), _without_dropout(self._module):
                for count in (2, 3):
                    rows = self.gradients(w, x[:count], y[:count])
                    for place in range(count):
                        single = slice(place, place + 1)
                        true = _gradient(network, w, x[single], y[single])
                        scale = float(true.norm()) + 1e-6
                        if not float((rows[place] - true).norm()) <= 1e-3 * scale:
                            raise Refused(_MIXED)
        except Refused:
            raise
        except Exception as error:  # whatever a user's module does under hooks
            reason = " ".join(str(error).split())
            raise Refused(f"{_MIXED} ({type(error).__name__}: {reason})") from error

    def _rows(self, name: str, count: int) -> Tensor:
        """Gradients `[B, *]` of one parameter; zeros where the module does not use it."""
        parameter = self._parameters[name]
        if getattr(parameter, "grad_sample", None) is None:
            return torch.zeros(count, parameter.numel(), device=parameter.device)
        rows: Tensor = parameter.grad_sample.flatten(1)
        return rows

    def gradients(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`[B, d]`, of each example's own loss at the model w `[d]`."""
        network = self._network
        with torch.no_grad():
            for name, view in network.shapes.views(w).items():
                self._parameters[name].copy_(view)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks on inputs that need no gradient
            self._module.zero_grad(set_to_none=True)
            network.loss.losses(self._module(x), y).sum().backward()  # type: ignore[no-untyped-call]
        parts = [self._rows(name, len(x)) for name in network.shapes.names]
        rows: Tensor = torch.cat(parts, dim=1).detach()
        if len(rows) != len(x):
            raise Refused(
                f"{len(x)} examples gave {len(rows)} gradients: the model mixes examples, and has "
                "no gradient of a single one"
            )
        return rows


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Opacus' hooks work in training mode only; what draws in it other than dropout is refused."""
    drawing = [part for part in module.modules() if isinstance(part, _DropoutNd)]
    for part in drawing:
        part.eval()
    try:
        yield
    finally:
        for part in drawing:
            part.train()


def _gradient(network: Network, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = w.detach().requires_grad_()
        loss = network.losses(leaf, x, y).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient
