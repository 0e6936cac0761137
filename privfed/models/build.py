"""Builds a network from a recipe, initialises it, and tests it on synthetic examples.

Models that would violate the guarantee or the arithmetic are refused, with the name of the layer.
All state that a client's training changes has to be in the flat vector: other state would reach the
next client without being clipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from privfed.core.errors import Broken, Refused
from privfed.core.streams import Keys, drawing_alone, seed_draws
from privfed.core.vector import Shapes, all_finite
from privfed.data.federation import Examples
from privfed.data.inputs import synthetic_inputs
from privfed.models.adapters import adapt_model
from privfed.models.calling import (
    Key,
    errors_as_refusals,
    name_inputs,
    refuse_part,
    scoring,
    select_output,
)
from privfed.models.form import Form
from privfed.models.local_part import held_shapes
from privfed.models.loss import Loss
from privfed.models.network import Network
from privfed.models.pretrained import is_named, load_start, origins_of
from privfed.models.recipes import Model, Weighted
from privfed.models.recurrent import unflattened
from privfed.models.start import Start
from privfed.models.vetting import try_module


def build_network(
    model: Model,
    examples: Examples,
    start: Start,
    loss: Loss,
    keys: Keys,
    device: torch.device,
    constants: Mapping[str, Tensor] | None = None,
    averages: bool = False,
) -> Network:
    """Builds `model` for `examples`.

    Args:
      model: the recipe.
      examples: examples of the population; only their shapes, types and declared facts are read.
      start: the keys of [model] that determine initial and trained parameters.
      loss: the loss of the run.
      keys: random stream of the initial parameters.
      device: device of the network.
      constants: constants of a resumed run (its checkpoint has the parameters, so `start.init` is
        not read); None for a new run.
      averages: whether clients may average the running statistics of batch normalisations, as in
        runs without privacy; otherwise such models are refused.

    Returns:
      The network.

    Raises:
      Refused: if the model cannot be built, does not suit the examples, has no trainable parameter,
        or fails a check of its start or of `try_module`.
      Broken: if `constants` belong to another model.
    """
    seed = keys.integer()
    module, synthetic = _built(model, examples, start, loss, seed)
    _refuse_parameters(module)
    _refuse_hidden_start(model, module)
    if start.init and constants is None:
        load_start(module, start.init, start.fresh)
    if start.lora is not None:
        adapt_model(module, start.lora, keys.derived(b"lora"))
    _freeze(module, start.frozen)
    local = _keep_local(module, start.local)
    averaged = _averaged_statistics(module, start, averages)
    trained = Shapes.of(module)
    shapes = Shapes((*trained.names, *averaged.names), (*trained.shapes, *averaged.shapes))
    if constants is not None:
        _restore(module, shapes, constants)
    if not trained.names:
        raise Refused(
            "model.name: the model has no trainable parameter that clients send; freeze fewer "
            "parameters (model.frozen), or keep fewer local (model.local)"
        )
    flat = shapes.flatten({**dict(module.named_parameters()), **dict(module.named_buffers())})
    if not all_finite(flat):
        raise Refused(
            "model.name: the model's initial parameters are not all finite; correct its "
            "initialisation, or model.init"
        )
    _reset_statistics(module, averaged)
    expected = _output_shape(synthetic, examples, loss)
    trial = try_module(module, trained, synthetic, expected, seed, examples.inputs)
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = unflattened  # type: ignore[method-assign]
    module.to(device).requires_grad_(False)
    constants = _constants(module, shapes)
    return Network(
        module,
        shapes,
        flat.to(device),
        loss,
        trial.random,
        constants,
        trial.fingerprint,
        trial.channels_last,
        Form.of(examples),
        local,
        averaged,
    )


def _built(
    model: Model, examples: Examples, start: Start, loss: Loss, seed: int
) -> tuple[nn.Module, Tensor]:
    """Returns the module and synthetic examples `[3, *features]`, with randomness from `seed`."""
    with drawing_alone():
        seed_draws(seed)
        module = model.build(tuple(examples.x.shape[1:]), loss.width(examples))
        name_inputs(module, examples.inputs)
        select_output(module, start.output)
        synthetic = _synthetic_features(examples)
        if any(is_lazy(p) for p in module.parameters()):
            with torch.no_grad(), errors_as_refusals(synthetic, module):
                module(synthetic)
    return module, synthetic


def count_outputs(model: Model, examples: Examples, output: Key) -> int | None:
    """Returns the number of outputs per example that `model` has if it is built with `width` 1.

    None if the outputs are not of shape `[B, outputs]`.

    Args:
      model: the recipe.
      examples: examples; only their form is read.
      output: the key of the outputs in the model's result.

    Raises:
      Refused: if the model cannot be built, or called.
    """
    with drawing_alone(), torch.no_grad():
        seed_draws(0)
        module, synthetic = (
            model.build(tuple(examples.x.shape[1:]), 1),
            _synthetic_features(examples),
        )
        name_inputs(module, examples.inputs)
        select_output(module, output)
        with scoring(module), errors_as_refusals(synthetic, module):
            outputs = module(synthetic)
    known = isinstance(outputs, Tensor) and outputs.dim() == 2
    return int(outputs.shape[-1]) if known else None


def _output_shape(x: Tensor, examples: Examples, loss: Loss) -> tuple[int, ...]:
    """Returns the shape `[B, *positions, width]` that the outputs of a model for x must have."""
    positions = tuple(examples.y.shape[1:]) if examples.y.dtype == torch.int64 else ()
    return (len(x), *positions, loss.width(examples))


def _synthetic_features(examples: Examples) -> Tensor:
    """Returns the features of three synthetic examples, with the shape and type of `examples`."""
    shape = (3, *examples.x.shape[1:])
    if examples.inputs:
        return synthetic_inputs(examples.inputs, 3)
    if examples.x.dtype == torch.int64:
        return torch.randint(0, examples.classes, shape)
    return torch.randn(shape)


def _refuse_parameters(module: nn.Module) -> None:
    """Refuses a TorchScript module, and parameters that cannot be parts of one float32 vector.

    Such parameters are complex, or trained but not float32, or several that share memory.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise Refused(
            "model.name: a TorchScript module cannot be trained; name the Python class or "
            "function that makes the model"
        )
    storages: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        if parameter.is_complex():
            refuse_part(name, "is complex; clipping and noise are proved for real parameters only")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            refuse_part(name, f"is {parameter.dtype}; call .float() on the module")
        other = storages.setdefault(parameter.untyped_storage().data_ptr(), name)
        if other != name and parameter.numel():
            refuse_part(name, f"shares its memory with {other!r}; tie them as a single Parameter")


def _refuse_hidden_start(model: Model, module: nn.Module) -> None:
    """Raises `Refused` if a user's function returns a module with weights of an earlier run.

    The ledger would not record these weights, and the earlier run would not be counted.
    """
    if not isinstance(model, Weighted) and origins_of(module):
        raise Refused(
            "model.name: the function returns weights that a run of privfed trained, but that "
            "run's privacy cost would not be counted; pass the network itself (model=net), or name "
            "the run in model.init",
            key="model.name",
        )


def _freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for parameter in _named_so(module, pattern, "model.frozen").values():
            parameter.requires_grad_(False)


def _named_so(module: nn.Module, pattern: str, key: str) -> dict[str, nn.Parameter]:
    """Returns the parameters that `pattern` names, directly or by their module.

    `key` has the pattern in the run file, for messages. Raises `Refused` if it matches neither a
    parameter nor a module.
    """
    parameters = module.named_parameters(remove_duplicate=False)  # with all names of tied ones
    matching = {name: p for name, p in parameters if is_named(name, pattern)}
    inside = any(is_named(f"{name}.", f"{pattern}.") for name, _ in module.named_modules())
    if not (matching or inside):
        names = ", ".join(name for name, _ in itertools.islice(module.named_parameters(), 20))
        raise Refused(
            f"{key} names {pattern!r}, but the model has no such parameter or module; expected one "
            f"of {names}, another parameter, or a module"
        )
    return matching


def _keep_local(module: nn.Module, patterns: Sequence[str]) -> Shapes:
    """Freezes the local parameters, which `patterns` name; returns their names and shapes.

    If all parameters of a batch normalisation are local, its running statistics are local, too, and
    part of the result. Raises `Refused` if `patterns` name only frozen parameters.
    """
    named = [_named_so(module, pattern, "model.local") for pattern in patterns]
    staying = {id(p) for each in named for p in each.values() if p.requires_grad}
    local = {name: p for name, p in module.named_parameters() if id(p) in staying}
    for parameter in local.values():
        parameter.requires_grad_(False)
    if patterns and not local:
        raise Refused("model.local is set, but names only frozen parameters; name trainable ones")
    norms = [name for name, part in _batch_norms(module) if _names_all_of(name, part, patterns)]
    return held_shapes(module, local, norms)


def _batch_norms(module: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]


def _names_all_of(name: str, part: nn.Module, patterns: Sequence[str]) -> bool:
    """Whether `patterns` name all of the parameters of `part` itself; or `part`, if it has none."""
    keys = [f"{name}.{key}" for key, _ in part.named_parameters(recurse=False)]
    return all(any(is_named(key, p) for p in patterns) for key in keys or [f"{name}."])


def _averaged_statistics(module: nn.Module, start: Start, averages: bool) -> Shapes:
    """Puts batch normalisations in evaluation mode; returns the shapes of averaged statistics.

    Raises `Refused` for a batch normalisation without running statistics. One with statistics that
    is in training mode, and neither frozen nor local, is refused unless `averages`: clients then
    average its statistics.
    """
    averaged = []
    for name, part in _batch_norms(module):
        if _names_all_of(name, part, start.frozen) or _names_all_of(name, part, start.local):
            part.eval()
        has_statistics = part.running_mean is not None
        if part.training and has_statistics and averages:
            averaged.append(name)
            part.eval()
        if part.training or not has_statistics:
            averaging = (
                '; without privacy (privacy.mechanism = "none"), its statistics are averaged'
            )
            refuse_part(
                name,
                "is a batch normalisation, which mixes a batch's examples and keeps statistics "
                "outside of the vector that is clipped and noised; use group normalisation or a "
                'built-in model (for example model.name = "cnn"), freeze it with its statistics '
                "(model.frozen), or keep it local to returning clients (model.local)"
                + (averaging if has_statistics else ""),
            )
    return held_shapes(module, {}, averaged)


def _reset_statistics(module: nn.Module, averaged: Shapes) -> None:
    """Resets `averaged` statistics to means 0 and variances 1.

    The fingerprint must not depend on `model.init`.
    """
    for name, part in _batch_norms(module):
        if f"{name}.running_mean".lstrip(".") in averaged.names:
            part.reset_running_stats()


def _constants(module: nn.Module, shapes: Shapes) -> dict[str, Tensor]:
    """Returns the parameters and buffers of `module` that are not in the flat vector."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach() for name, tensor in tensors.items() if name not in shapes.names}


def _restore(module: nn.Module, shapes: Shapes, constants: Mapping[str, Tensor]) -> None:
    """Copies a run's `constants` into `module`. Raises `Broken` if they belong to another model."""
    held = _constants(module, shapes)
    if {name: t.shape for name, t in held.items()} != {n: t.shape for n, t in constants.items()}:
        raise Broken(
            f"the run's fixed parameters and buffers are {sorted(constants)}, but its model's are "
            f"{sorted(held)}, or of other shapes; restore the run directory or the model's code, "
            "one of which was changed"
        )
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(constants[name])
