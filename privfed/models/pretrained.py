"""A public start: parameters and buffers from a safetensors file, or from an earlier run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from accounting import regular
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.models.matching import is_named
from privfed.models.start import with_changes

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
    """Copy the start into `module`, name by name; tensors that match `fresh` stay as they are.

    Raises `Refused` for a file that cannot be read, and for names and shapes that do not match.
    """
    stored = {name: t for name, t in _read(init).items() if not _is_fresh(name, fresh)}
    targets = _targets(module, stored.keys(), fresh)
    expected = {name: tuple(tensor.shape) for name, tensor in targets.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
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
        for name, tensor in targets.items():
            tensor.copy_(stored[name])


def _targets(module: nn.Module, stored: Collection[str], fresh: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of `module` that a file with the names `stored` has to fill.

    A tied parameter need not be there by each of its names, nor a buffer that no file need hold.
    """
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers())
    optional = tensors.keys() - module.state_dict().keys()
    filled = {id(tensor) for name, tensor in tensors.items() if name in stored}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not _is_fresh(name, fresh)
        and (name in stored or (id(tensor) not in filled and name not in optional))
    }


def _is_fresh(name: str, patterns: Iterable[str]) -> bool:
    return any(is_named(name, pattern) for pattern in patterns)


def _read(init: str) -> dict[str, Tensor]:
    """The tensors by name in the files that `init` names, adapted weights with their change.

    Raises `Refused`.
    """
    from safetensors.torch import load_file  # which imports torch

    stored: dict[str, Tensor] = {}
    for path in start_files(init):
        if path.suffix.lower() in _PROGRAMS:
            raise Refused(
                f"model.init: {path} is a program, not weights by name; start from an export to "
                ".safetensors"
            )
        try:
            regular.refuse_irregular(path)
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise Refused(
                f"model.init: {path} cannot be read as a safetensors file: {error}"
            ) from error
        # A run's own files hold the model under this prefix, beside other state.
        of_run = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        stored |= of_run or tensors
    try:
        return with_changes(stored)
    except KeyError as missing:
        raise Refused(
            f"model.init: {init} holds factors of a weight without {missing}; start from the run "
            "or from an export of the whole model"
        ) from missing
