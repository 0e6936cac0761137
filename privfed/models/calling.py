"""Calls users' modules: named inputs and outputs, evaluation mode, memory order, and errors.

A module takes a tensor, or several by name, and returns a tensor, or a structure that contains it
under a key or at an index. Hooks at the module convert inputs and outputs. Parameters therefore
keep their names, and every caller of the module (one model, many under `vmap`, per-example
gradients) passes and receives one tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.user_code import in_user_code
from privfed.data.inputs import Inputs, by_name, by_position
from privfed.models.peft_format import of_transformers


@contextlib.contextmanager
def scoring(module: nn.Module) -> Iterator[None]:
    """Returns a context in which `module` and its submodules are in evaluation mode.

    Their modes are restored afterwards.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def channels_last(x: Tensor) -> Tensor:
    """Returns images `[B, C, H, W]` in the memory order that is fastest on CPUs."""
    channels, height, width = x.shape[1:]
    if channels == 1:  # both orders are the same in memory; only strides differ
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def failed_layer(error: BaseException, module: nn.Module) -> str:
    """Returns "'name' (Type)" of the innermost submodule of `module` whose call raised `error`.

    "" if no submodule was being called.
    """
    names = {id(part): name for name, part in module.named_modules() if name}
    called = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    layers = [part for part in called if isinstance(part, nn.Module) and id(part) in names]
    return f"{names[id(layers[-1])]!r} ({type(layers[-1]).__name__})" if layers else ""


@contextlib.contextmanager
def errors_as_refusals(x: Tensor, module: nn.Module) -> Iterator[None]:
    """Returns a context that converts any error of a user's `module`, called on x, to `Refused`."""
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        kind = "tokens" if x.dtype == torch.int64 else "numbers"
        fitting = "lstm (or a module that embeds them)" if kind == "tokens" else "logistic or mlp"
        reason = " ".join(str(error).split())
        if isinstance(error, IndexError) and kind == "tokens":
            reason += f" (ids go up to {int(x.max())}, and an embedding has a row for each)"
        layer = failed_layer(error, module)
        where = f", in its layer {layer}" if layer else ""
        raise Refused(
            f"model.name: the model cannot process these examples, {kind} of shape "
            f"{tuple(x.shape[1:])}{where}: {type(error).__name__}: {reason}; for {kind}, use "
            f"{fitting}{in_user_code(error)}",
            key="model.name",
        ) from error


def refuse_part(name: str, why: str) -> NoReturn:
    """Raises `Refused` for the submodule or parameter `name` ("": the model), with reason `why`."""
    raise Refused(f"model.name: {repr(name) if name else 'the model'} {why}")


def refuse_model(why: str) -> NoReturn:
    """Raises `Refused` for the complete model, with the reason `why`."""
    refuse_part("", why)


Key = str | int


@dataclass(frozen=True)
class _TakeOutput:
    """A forward hook that extracts the tensor under `key` from a module's result."""

    key: Key

    def __call__(self, module: nn.Module, inputs: Any, returned: Any) -> Tensor:
        return output_under(returned, self.key)


@dataclass(frozen=True)
class _PassByName:
    """A forward pre-hook that passes examples `[N, entries]` as their `inputs` by name."""

    inputs: Inputs

    def __call__(self, module: nn.Module, args: Any, named: Any) -> tuple[Any, Any]:
        if len(args) == 1 and not named:
            return (), by_name(args[0], self.inputs)
        return args, named


def name_inputs(module: nn.Module, inputs: Inputs) -> None:
    """Adds a hook to `module`, which then takes all of its `inputs` as one tensor."""
    if not by_position(inputs):
        module.register_forward_pre_hook(_PassByName(inputs), with_kwargs=True)


def with_user_calls(module: nn.Module) -> nn.Module:
    """Removes the hook of `name_inputs` from `module`, and returns `module`.

    If `module` is a model of the library transformers, the hook of `select_output` is removed as
    well.
    """
    ours = (
        (_PassByName, _TakeOutput) if of_transformers(module, "PreTrainedModel") else (_PassByName,)
    )
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [number for number, hook in hooks.items() if isinstance(hook, ours)]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)
    return module


def select_output(module: nn.Module, key: Key) -> None:
    """Adds a hook to `module`, which then returns only the tensor under `key` of its result.

    `key` is a key of a mapping, an index of a tuple, or the name of an attribute; "" is the result
    itself, or "logits" for models of transformers. These no longer cache results for earlier
    tokens.
    """
    if of_transformers(module, "PreTrainedModel"):
        config: Any = module.config
        config.use_cache = False
        key = "logits" if key == "" else key
    if key != "":
        module.register_forward_hook(_TakeOutput(key))


def output_under(returned: Any, key: Key) -> Tensor:
    """Returns the tensor under `key` in a module's result. Raises `Refused` if there is none."""
    tensors = _tensors_in(returned)
    if key in tensors:
        return tensors[key]
    named = None if isinstance(returned, Tensor) else getattr(returned, str(key), None)
    if isinstance(named, Tensor):  # a field of a named tuple, or a property
        return named
    raise Refused(
        f"model.output is {key!r}, but the model returns {described(returned)}; "
        f"{_advice(returned) or 'leave model.output out'}"
    )


def refuse_structured(returned: Any) -> None:
    """Raises `Refused` if a module's result is a structure from which no output was selected."""
    if not isinstance(returned, Tensor) and (advice := _advice(returned)):
        raise Refused(f"model.name: the model returns {described(returned)}; {advice}")


def described(returned: Any) -> str:
    """Returns a description of the type of `returned`, and of the tensors in it, for messages."""
    kind = type(returned).__name__
    tensors = _tensors_in(returned)
    if isinstance(returned, Tensor):
        return f"a tensor of shape {tuple(returned.shape)}"
    return f"a {kind} that holds {_listed(tensors)}" if tensors else f"a {kind} without any tensor"


def _advice(returned: Any) -> str:
    """Returns advice to set model.output; "" if `returned` contains no tensors."""
    tensors = _tensors_in(returned)
    likely = next((key for key in tensors if key in ("logits", "outputs", "output")), None)
    key = next(iter(tensors), None) if likely is None else likely
    if key is None:
        return ""
    written = f'"{key}"' if isinstance(key, str) else key
    return f"set model.output to the key of the outputs, for example model.output = {written}"


def _tensors_in(returned: Any) -> dict[Key, Tensor]:
    """Returns the tensors in `returned`, by the key with which `output_under` returns them."""
    pairs: Any = ()
    if isinstance(returned, Mapping):
        pairs = returned.items()
    elif isinstance(returned, Sequence) and not isinstance(returned, str):
        pairs = enumerate(returned)
    elif not isinstance(returned, Tensor) and hasattr(returned, "__dict__"):
        pairs = vars(returned).items()
    return {
        key: value
        for key, value in pairs
        if isinstance(key, str | int) and isinstance(value, Tensor)
    }


def _listed(tensors: Mapping[Key, Tensor]) -> str:
    return ", ".join(f"{key!r} {tuple(tensor.shape)}" for key, tensor in tensors.items())
