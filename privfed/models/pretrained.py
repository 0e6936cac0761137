"""A public start: parameters and buffers from a safetensors file, or from an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from privfed.deferred import torch
from privfed.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor, nn

CHECKPOINT, CONSTANTS = "checkpoint.safetensors", "constants.safetensors"
_PROGRAMS = {".pt2", ".onnx"}


def start_files(init: str) -> list[Path]:
    """The files that `model.init` names: one, or those of a run directory."""
    path = Path(init)
    if path.is_dir():
        return [path / CHECKPOINT, *([path / CONSTANTS] if (path / CONSTANTS).exists() else [])]
    return [path]


def load_start(module: nn.Module, init: str, fresh: Iterable[str]) -> None:
    """Copy the start into `module`, name by name; what matches `fresh` keeps its own.

    Raises `Refused` for a file that cannot be read, and for names and shapes that do not match.
    """
    found = _read(init)
    left = {name: tensor for name, tensor in found.items() if not _fresh(name, fresh)}
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers())
    optional = own.keys() - module.state_dict().keys()  # buffers that a file need not hold
    same = {id(tensor) for name, tensor in own.items() if name in left}
    wanted = {
        name: tensor
        for name, tensor in own.items()
        if not _fresh(name, fresh)
        and (name in left or (id(tensor) not in same and name not in optional))
    }
    expected = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in left.items()}
    if shapes != expected:
        differ = sorted(
            name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name)
        )
        first = differ[0]
        raise Refused(
            f"model.init: {init} holds another model: {len(differ)} names or shapes differ, first "
            f"{first!r}, which is {shapes.get(first, 'missing')} there and "
            f"{expected.get(first, 'missing')} in the model. Name what is to start fresh in "
            "model.fresh"
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(left[name])


def _fresh(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def _read(init: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file  # which imports torch

    found: dict[str, Tensor] = {}
    for path in start_files(init):
        if path.suffix.lower() in _PROGRAMS:
            raise Refused(
                f"model.init: {path} is a program, not weights by name; start from an export to "
                ".safetensors"
            )
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise Refused(
                f"model.init: {path} cannot be read as a safetensors file: {error}"
            ) from error
        # A run's own files hold the model under this prefix, beside other state.
        ours = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        found |= ours or tensors
    return found
