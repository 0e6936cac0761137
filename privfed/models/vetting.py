"""Tests a module on synthetic examples before it processes client data.

The guarantee requires a client's row to be a function of that client's examples, the broadcast
model and its own randomness. Therefore all state that training changes must be in the flat vector,
and a call must not change later calls. An example's output must not depend on other examples of its
batch, whose number depends on the clients trained at the same time. A trial cannot prove this for
arbitrary code, but it refuses common violations.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.streams import drawing_alone, seed_draws
from privfed.core.vector import Shapes
from privfed.data.inputs import Inputs, by_name, by_position, side_by_side, synthetic_inputs
from privfed.models.adapters import adapted_weights, merge_model, refuse_unused
from privfed.models.calling import (
    channels_last,
    errors_as_refusals,
    refuse_model,
    refuse_part,
    refuse_structured,
    scoring,
)

_FINGERPRINT_LENGTH = 8
_MERGED = 1e-3
"""Largest accepted change of outputs when adapters are merged, relative to their norm."""
_CLOSE: dict[str, float] = {"rtol": 1e-3, "atol": 1e-5}


@dataclass(frozen=True)
class Trial:
    """The result of a module's trial.

    `random` is true for modules that draw random numbers in training (dropout). `fingerprint` is a
    few outputs at fixed parameters. `channels_last` is true for modules that accept images in that
    memory order; a module that flattens by `view`, for example, does not.
    """

    random: bool
    fingerprint: tuple[float, ...]
    channels_last: bool = False


@dataclass(frozen=True)
class _Candidate:
    """A module in its trial, and random parameters `ordinary` `[d]` of typical size."""

    module: nn.Module
    shapes: Shapes
    ordinary: Tensor

    def outputs(self, x: Tensor, seed: int, flat: Tensor | None = None) -> Tensor:
        """Returns outputs on x at parameters `flat` (None: `ordinary`), with the random `seed`."""
        return self.outputs_at(self.shapes.views(self.ordinary if flat is None else flat), x, seed)

    def outputs_at(self, parameters: Mapping[str, Tensor], x: Tensor, seed: int) -> Tensor:
        """Returns the outputs on x at `parameters` by name, with randomness from `seed`."""
        with drawing_alone(), errors_as_refusals(x, self.module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed_draws(seed)
            out: Tensor = torch.func.functional_call(self.module, dict(parameters), (x,))
        return out

    def module_outputs(self, x: Tensor, seed: int) -> Tensor:
        """Returns the outputs on x at the module's own parameters."""
        with drawing_alone(), torch.no_grad(), errors_as_refusals(x, self.module):
            seed_draws(seed)
            out: Tensor = self.module(x)
        return out

    def hold(self, flat: Tensor) -> None:
        """Copies `flat` `[d]` into the module's own parameters."""
        named = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, view in self.shapes.views(flat).items():
                named[name].copy_(view)


def try_module(
    module: nn.Module,
    shapes: Shapes,
    x: Tensor,
    expected: tuple[int, ...],
    seed: int,
    inputs: Inputs = MappingProxyType({}),
) -> Trial:
    """Tests `module` on synthetic examples, at its initial parameters and at others.

    Initial parameters alone do not suffice: a layer that starts at zero hides the layers before it.

    Args:
      module: the module.
      shapes: the shapes of its trained parameters.
      x: synthetic examples, shape [3, *features].
      expected: expected shape of the outputs.
      seed: seed of the module's own randomness.
      inputs: the declared inputs of the module by name, if any.

    Returns:
      The result of the trial.

    Raises:
      Refused: if the module mixes the examples of a batch, changes itself or its later outputs,
        reads a parameter other than by name, or has outputs of another shape, gradients that are
        zero or not finite, an input that it ignores, or other outputs after its adapters are
        merged.
    """
    start = shapes.flatten(dict(module.named_parameters()))
    candidate = _Candidate(module, shapes, _ordinary(shapes))
    before = _state(module)
    _refuse_outputs(candidate.outputs(x, seed, start), x, expected)
    gradient = _gradient(candidate, x, seed, start)
    if not bool(gradient.isfinite().all()):
        refuse_model(
            "has a gradient that is not finite on three random examples; correct its forward or "
            "its initialisation"
        )
    moves = bool(gradient.any())
    gradient = _gradient(candidate, x, seed, candidate.ordinary)
    refuse_unused(shapes.views(gradient))
    if not (moves or bool(gradient.any())):
        refuse_model(
            "has a gradient of zero at all tried parameters, so nothing would be learned; let its "
            "outputs depend on its parameters"
        )
    del gradient
    outputs = candidate.outputs(x, seed).detach()
    _refuse_memory(candidate, before, x, seed, outputs)
    _refuse_parameters_held_twice(candidate, start, x, seed, outputs)
    random = not _same(outputs, candidate.outputs(x, seed + 1).detach())
    with scoring(module):
        scored = candidate.outputs(x, seed).detach()
        of_fewer = candidate.outputs(x[:2], seed).detach()
    mixes = not _same(scored[:2], of_fewer)
    if mixes or not (random or _same(outputs[:2], candidate.outputs(x[:2], seed).detach())):
        refuse_model(
            "mixes the examples of a batch: the output for one example depends on the others, "
            "as in batch normalisation; use a normalisation within each example"
        )
    with scoring(module):
        _refuse_other_merge(candidate, x, seed, scored)
        _refuse_ignored_inputs(candidate, x, seed, scored, inputs)
    fingerprint = scored.double().flatten()[:_FINGERPRINT_LENGTH].nan_to_num().tolist()
    return Trial(random, tuple(fingerprint), _takes_channels_last(candidate, x, seed, outputs))


def _refuse_outputs(outputs: Tensor, x: Tensor, expected: tuple[int, ...]) -> None:
    """Raises `Refused` if outputs have another shape or type, or are not finite."""
    refuse_structured(outputs)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise Refused(
            f"model.name: for {len(x)} examples of shape {tuple(x.shape[1:])} the model's output "
            f"is {shape}, but must be {expected}: these data and model.loss need {expected[-1]} "
            f"outputs{_of_two_classes(shape, expected)}"
        )
    if not bool(outputs.isfinite().all()):
        refuse_model(
            "has outputs that are not finite on three random examples; correct its forward or its "
            "initialisation"
        )


def _of_two_classes(shape: object, expected: tuple[int, ...]) -> str:
    """Returns a hint at the other loss for two classes if the outputs suit it; else ""."""
    if expected[-1] == 1 and shape == (*expected[:-1], 2):
        return ' (one for two classes: model.loss = "cross_entropy" takes one for each)'
    if expected[-1] == 2 and shape == (*expected[:-1], 1):
        return ' (one for each class: model.loss = "binary_cross_entropy" takes one for both)'
    return ""


@torch.enable_grad()
def _gradient(candidate: _Candidate, x: Tensor, seed: int, flat: Tensor) -> Tensor:
    """Returns the gradient `[d]` of the sum of squared outputs at the parameters `flat`."""
    views = candidate.shapes.views(flat.clone())
    leaves = {name: view.requires_grad_() for name, view in views.items()}
    outputs = candidate.outputs_at(leaves, x, seed)
    if not outputs.requires_grad:
        return torch.zeros_like(flat)
    with errors_as_refusals(x, candidate.module):
        parts = torch.autograd.grad(
            outputs.square().sum(), [*leaves.values()], allow_unused=True, materialize_grads=True
        )
    return torch.cat([part.reshape(-1) for part in parts])


def _refuse_memory(
    candidate: _Candidate, before: dict[str, Tensor], x: Tensor, seed: int, outputs: Tensor
) -> None:
    """Raises `Refused` if a call changes the module's tensors from `before`, or its later outputs.

    `outputs` are those on x with `seed`, before that call.
    """
    candidate.outputs(x.flip(0), seed + 1)
    _refuse_changes(candidate.module, before)
    if not torch.equal(candidate.ordinary, _ordinary(candidate.shapes)):
        refuse_model(
            "changes its parameters when it is called, as an embedding with max_norm does; remove "
            "that layer or option"
        )
    if not _same(outputs, candidate.outputs(x, seed).detach()):
        refuse_model(
            "keeps state between calls, by which one client's examples would reach the next "
            "client without being clipped and noised; make its output a function of its "
            "parameters and its input"
        )


def _refuse_changes(module: nn.Module, before: dict[str, Tensor]) -> None:
    """Raises `Refused` if a tensor of the module differs from its value `before`."""
    for name, tensor in dict(_tensors(module)).items():
        known = before.get(name)
        if known is None or known.shape != tensor.shape or not torch.equal(known, tensor):
            refuse_part(
                name,
                "is a buffer (or a parameter) that a call changes, by which one client's examples "
                "would reach the next client and the model without being clipped and noised; "
                "remove it, or keep its module in eval mode",
            )


def _refuse_parameters_held_twice(
    candidate: _Candidate, start: Tensor, x: Tensor, seed: int, outputs: Tensor
) -> None:
    """Raises `Refused` if the module reads a parameter other than by name, as from a list."""
    candidate.hold(candidate.ordinary)
    try:
        module_outputs = candidate.module_outputs(x, seed)
    finally:
        candidate.hold(start)
    if not _same(outputs, module_outputs):
        refuse_model(
            "reads a parameter from another place than its name, for example from a list, so it "
            "would never be trained; store it in a ModuleList or ParameterList"
        )


def _refuse_other_merge(candidate: _Candidate, x: Tensor, seed: int, outputs: Tensor) -> None:
    """Raises `Refused` if merging adapters into their weights changes the `outputs`."""
    if not any(adapted_weights(part) for part in candidate.module.modules()):
        return
    merged = copy.deepcopy(candidate.module)
    replace(candidate, module=merged).hold(candidate.ordinary)
    merge_model(merged, ())
    after = replace(candidate, module=merged).module_outputs(x, seed)
    if float((after - outputs).norm()) > _MERGED * float(outputs.norm()):
        raise Refused(
            "model.lora.targets is set, but the model has other outputs after its adapters are "
            "merged into the weights, as in exports: its code depends on the type of an adapted "
            "layer; leave that module out"
        )


def _refuse_ignored_inputs(
    candidate: _Candidate, x: Tensor, seed: int, outputs: Tensor, inputs: Inputs
) -> None:
    """Raises `Refused` if the outputs do not depend on a named input, such as a mask."""
    if by_position(inputs):
        return
    values, others = by_name(x, inputs), by_name(synthetic_inputs(inputs, len(x), 1), inputs)
    for name, other in others.items():
        changed = side_by_side({**values, name: other}, inputs)
        if not torch.equal(changed, x) and torch.equal(outputs, candidate.outputs(changed, seed)):
            raise Refused(
                f"model.name: the model's outputs do not depend on its input {name!r}; use it in "
                "forward, or leave it out of the inputs"
            )


def _takes_channels_last(candidate: _Candidate, x: Tensor, seed: int, outputs: Tensor) -> bool:
    """Whether the module has the same `outputs` for images in the memory order channels_last.

    False if x are no float images `[N, C, H, W]`.
    """
    if x.dim() != 4 or not x.is_floating_point():
        return False
    with contextlib.suppress(Refused):
        return _same(outputs, candidate.outputs(channels_last(x), seed).detach())
    return False


def _same(outputs: Tensor, other: Tensor) -> bool:
    return torch.allclose(outputs, other, **_CLOSE, equal_nan=True)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Returns copies of the parameters, buffers and other tensors that are attributes, by name."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(module)}


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{key}".lstrip("."), value


def _ordinary(shapes: Shapes) -> Tensor:
    """Returns fixed random parameters `[d]` of typical size, whatever the initial ones."""
    generator = torch.Generator().manual_seed(1)
    return torch.cat(
        [
            torch.randn(math.prod(shape), generator=generator)
            / math.sqrt(math.prod(shape[1:]) or 1)
            for shape in shapes.shapes
        ]
    )
