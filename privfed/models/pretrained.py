"""Loads initial weights from a safetensors file or an earlier run, and recognises trained weights.

*Origin.* A model that a run trained reveals information about the run's population, wherever its
weights are used. Weights that a run of privfed exported (`run.model`) are therefore recognised: the
exported module is marked (the mark survives copies, pickling and further training), and this
process stores the digests of trained tensors, by which they are recognised in other modules. The
origin of other weights is unknown, which is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from accounting import regular
from privfed.core.deferred import Tensor, nn, torch
from privfed.core.errors import Refused
from privfed.models.peft_format import WEIGHTS, add_adapters, is_adapter_folder
from privfed.models.start import with_changes


def is_named(name: str, pattern: str) -> bool:
    """Whether the shell pattern `pattern`, or `pattern` and ".*", matches `name`; case counts.

    The latter matches all parameters of a module.
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


Origins = Mapping[str, Any]
"""The origin of a model, as `privfed.store.lineage.Lineage` states it in files."""
_MARK = "privfed_origin"
_HANDED_OUT: dict[str, Origins] = {}
"""The origin of each trained tensor exported in this process, by the tensor's digest."""
_UNTRAINED: set[str] = set()
"""Digests of the exported tensors that were not trained."""


def mark(module: nn.Module, trained: Iterable[str], origins: Origins) -> None:
    """Records the export of `module`; the runs in `origins` trained its tensors `trained`."""
    setattr(module, _MARK, dict(origins))
    names = {*trained}
    for name, tensor in _tensors(module).items():
        digest = _digest(tensor)
        if digest is not None and name in names:
            _HANDED_OUT[digest] = dict(origins)
        elif digest is not None:
            _UNTRAINED.add(digest)


def origins_of(module: nn.Module) -> tuple[Origins, ...]:
    """Returns the distinct known origins, runs of privfed, of the weights of `module`."""
    marked = [vars(part)[_MARK] for part in module.modules() if _MARK in vars(part)]
    digests = [_digest(tensor) for tensor in _tensors(module).values()]
    known = [_HANDED_OUT[digest] for digest in digests if digest in _HANDED_OUT]
    distinct: list[Origins] = []
    for origins in (*marked, *known):
        if origins not in distinct:
            distinct.append(origins)
    return tuple(distinct)


def unchanged(module: nn.Module) -> bool:
    """Whether this process exported all tensors of `module` with these values.

    Tensors whose numbers are all equal do not count; False if there are no others.
    """
    digests = [_digest(tensor) for tensor in _tensors(module).values()]
    known = {*_HANDED_OUT, *_UNTRAINED}
    return any(digests) and all(digest is None or digest in known for digest in digests)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of `module` by name, except lazy ones."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor)}


def is_lazy(tensor: Tensor) -> bool:
    """Whether `tensor` is lazy: it has no shape before the module's first call."""
    return bool(torch.nn.parameter.is_lazy(tensor))


def _digest(tensor: Tensor) -> str | None:
    """Returns SHA-256 of a tensor's values; None if there are none, or all are equal.

    All values of many new tensors are equal.
    """
    values = tensor.detach().cpu().contiguous()
    if values.is_meta or not values.numel() or bool((values == values.reshape(-1)[0]).all()):
        return None
    return hashlib.sha256(tensor_bytes(values)).hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """Returns the bytes of a tensor of any type, as in memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


CHECKPOINT, CONSTANTS = "checkpoint.safetensors", "constants.safetensors"
_PROGRAMS = {".pt2", ".onnx"}


def start_files(init: str) -> list[Path]:
    """Returns the files to load for `model.init`: `init`, or files of a run or adapter folder."""
    path = Path(init)
    if is_adapter_folder(init):
        return [path / WEIGHTS]
    if path.is_dir():
        return [path / CHECKPOINT, *([path / CONSTANTS] if (path / CONSTANTS).exists() else [])]
    return [path]


def load_start(module: nn.Module, init: str, fresh: Iterable[str]) -> None:
    """Copies the tensors of a file or run into `module`, by name.

    Adapters in peft's format are added to the module's own weights.

    Args:
      module: the module, changed in place.
      init: a `.safetensors` file, a run directory, or a folder of adapters.
      fresh: names or patterns of tensors that are not copied.

    Raises:
      Refused: if a file cannot be read, or names or shapes do not match.
    """
    if is_adapter_folder(init):
        add_adapters(module, init)
        return
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
            f"model.init is {init}, but contains another model: {len(differ)} names or shapes "
            f"differ, first {first!r}, which is {shapes.get(first, 'missing')} there and "
            f"{expected.get(first, 'missing')} in the model; list parameters that are not to be "
            "loaded in model.fresh"
        )
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(stored[name])


def _targets(module: nn.Module, stored: Collection[str], fresh: Iterable[str]) -> dict[str, Tensor]:
    """Returns the tensors of `module` that a file with tensors named `stored` must contain.

    The file need not contain the `fresh` tensors. It may contain a tied parameter under only one of
    its names, and may omit buffers that are not in the module's `state_dict`.
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
    """Returns the tensors in the files of `init`, by name; adapters are merged into weights.

    Raises `Refused` if a file cannot be read, or lacks an adapted weight.
    """
    from safetensors.torch import load_file  # imports torch

    stored: dict[str, Tensor] = {}
    for path in start_files(init):
        if path.suffix.lower() in _PROGRAMS:
            raise Refused(
                f"model.init is {path}, but such a file contains a program, not weights by name; "
                "use an export to .safetensors"
            )
        try:
            regular.refuse_irregular(path)
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise Refused(
                f"model.init is {path}, but it cannot be read as a safetensors file ({error}); "
                "name a readable file, or write the weights again"
            ) from error
        # Checkpoints of runs contain the model under this prefix, next to other state.
        of_run = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        stored |= of_run or tensors
    try:
        return with_changes(stored)
    except KeyError as missing:
        raise Refused(
            f"model.init is {init}, but it contains only adapters, without the weight {missing}; "
            "start from the run directory, or from an export of the whole model"
        ) from missing
