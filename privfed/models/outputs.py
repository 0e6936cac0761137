"""What a module returns: a tensor, or something that holds it under a key or at a place.

A hook takes the outputs out at the module itself, once, so that parameters keep their names and
whatever calls the module (one model, many under `vmap`, gradients of single examples) sees tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from privfed.errors import Refused

Key = str | int
WHOLE = ""
"""The key of a module that returns its outputs and nothing else."""


@dataclass(frozen=True)
class _TakeOutput:
    """A forward hook that replaces what a module returns by the tensor in it under `key`."""

    key: Key

    def __call__(self, module: nn.Module, inputs: Any, returned: Any) -> Tensor:
        return output_under(returned, self.key)


def select_output(module: nn.Module, key: Key) -> None:
    """Make `module` return the tensor under `key` of what it returns, by a hook at the module.

    `key` is one of a mapping, a place in a tuple, or the name of an attribute.
    """
    if key != WHOLE:
        module.register_forward_hook(_TakeOutput(key))


def output_under(returned: Any, key: Key) -> Tensor:
    """The tensor that `returned` holds under `key`. Raises `Refused`, naming what it holds."""
    tensors = _tensors(returned)
    if key in tensors:
        return tensors[key]
    named = None if isinstance(returned, Tensor) else getattr(returned, str(key), None)
    if isinstance(named, Tensor):  # a field of a named tuple, a property
        return named
    raise Refused(
        f"model.output is {key!r}, but the model returns {described(returned)}; "
        f"{_advice(returned) or 'leave model.output out'}"
    )


def refuse_structured(returned: Any) -> None:
    """Raise `Refused` for what is no tensor but holds some: `model.output` has to say which."""
    if not isinstance(returned, Tensor) and (advice := _advice(returned)):
        raise Refused(f"model.name: the model returns {described(returned)}; {advice}")


def described(returned: Any) -> str:
    """What kind of thing `returned` is, and what it holds, in words."""
    kind = type(returned).__name__
    tensors = _tensors(returned)
    if isinstance(returned, Tensor):
        return f"a tensor of shape {tuple(returned.shape)}"
    return f"a {kind} that holds {_listed(tensors)}" if tensors else f"a {kind} without any tensor"


def _advice(returned: Any) -> str:
    """A hint at the key under which the outputs are; empty where there is none."""
    tensors = _tensors(returned)
    likely = next((key for key in tensors if key in ("logits", "outputs", "output")), None)
    key = next(iter(tensors), None) if likely is None else likely
    if key is None:
        return ""
    written = f'"{key}"' if isinstance(key, str) else key
    return f"say which of them are the outputs, e.g. model.output = {written}"


def _tensors(returned: Any) -> dict[Key, Tensor]:
    """The tensors that `returned` holds, by the key that `output_under` finds them under."""
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
