"""Gradients of single examples, by Opacus' hooks on a copy of the module."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor

from privfed.errors import Refused
from privfed.network import Network


class PerExample:
    """Of one network. Raises `Refused` where Opacus is missing or does not know a layer."""

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
        copied = copy.deepcopy(network.module).to(network.start.device)
        for name, parameter in copied.named_parameters():
            parameter.requires_grad_(name in network.shapes.names)
        problems = ModuleValidator.validate(copied, strict=False)
        if problems:
            said = "; ".join(" ".join(str(problem).split()) for problem in problems)
            raise Refused(
                f"gradients of single examples are not to be had for this model: {said}; "
                "use another model, or user-level privacy"
            )
        self._module = GradSampleModule(copied, loss_reduction="sum")
        self._parameters: dict[str, Any] = dict(copied.named_parameters())

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
        rows = [self._parameters[name].grad_sample.flatten(1) for name in network.shapes.names]
        found: Tensor = torch.cat(rows, dim=1).detach()
        if len(found) != len(x):
            raise Refused(
                f"{len(x)} examples gave {len(found)} gradients: the model mixes examples, and has "
                "no gradient of a single one"
            )
        return found
