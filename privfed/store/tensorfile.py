"""Reads and writes safetensors files: named tensors with metadata; nothing is ever unpickled.

The bytes of a file are produced in parts, so writing needs no copy of all tensors. The bytes equal
those that the library safetensors writes: the length of the header (8 bytes); the header, which is
JSON and states the position of each tensor's numbers; and the numbers of one tensor after another,
sorted by dtype, wider dtypes first, and then by name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from accounting import durable, regular
from accounting.documents import from_json
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Broken, private_text, public_text, unreadable
from privfed.core.vector import all_finite

_TYPES = {
    "torch.int64": "I64",
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.int32": "I32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
"""The format's name of each dtype, in the order in which a file has them."""
_BATCH_SIZE = 1 << 20
"""Number of tensor elements that are written at once."""


def file_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a safetensors file in parts.

    A contiguous tensor in CPU memory is not copied.

    Args:
      tensors: tensors by name.
      metadata: the file's metadata, texts by name.

    Raises:
      ValueError: for a tensor of a dtype that safetensors files do not support.
    """
    ranks = {kind: place for place, kind in enumerate(_TYPES)}
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in ranks:
            raise ValueError(f"{name} is of type {tensor.dtype}, which tensor files do not support")
    names = sorted(tensors, key=lambda name: (ranks[str(tensors[name].dtype)], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        code, shape = _TYPES[str(tensor.dtype)], list(tensor.shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from _bytes_of(tensors[name].detach())


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yields the bytes of a tensor's numbers, in order."""
    flat = tensor.reshape(-1)
    for start in range(0, len(flat), _BATCH_SIZE):
        part = flat[start : start + _BATCH_SIZE].cpu().view(torch.uint8)
        yield part.numpy().data


FORMAT = 1
"""Version of the format of files, which every file states under "format"."""
CPU = "cpu"


@contextlib.contextmanager
def misfits_are_broken(path: Path) -> Iterator[None]:
    """Returns a context that converts errors caused by the content of the file `path` to `Broken`.

    Converted are `KeyError`, `OverflowError`, `TypeError` and `ValueError`: missing or malformed
    metadata or tensors indicate an edited file.
    """
    try:
        yield
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        why = public_text(error)
        raise Broken(f"{path} does not fit this run: {why}", private_text(error)) from None


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Serialises tensors; equal arguments give equal bytes.

    Args:
      tensors: tensors by name.
      about: facts about the tensors, as JSON values by name; stored as metadata.

    Returns:
      The bytes of a safetensors file.
    """
    return b"".join(_parts(tensors, about))


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Writes the bytes of `pack` to `path` in parts, atomically and durably."""
    durable.write_parts_atomically(path, _parts(tensors, about))


def _parts(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    # One key: equal runs give equal bytes, for any order of facts.
    facts = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    return file_parts(tensors, {"privfed": facts})


def unpack(
    path: Path, device: torch.device | str = CPU, finite: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads a file that `write` wrote, or that contains the bytes of `pack`.

    Args:
      path: the file.
      device: device of the returned tensors.
      finite: whether to reject numbers that are not finite.

    Returns:
      The tensors by name, and the facts about the tensors.

    Raises:
      Broken: if the file is missing or invalid, or a number is not finite and `finite` is set.
      Refused: if this process may not read the file.
    """
    tensors, about = _read(path, "pt", str(device))
    if finite and not all(map(all_finite, tensors.values())):
        raise _not_finite(path)
    # Clones are in memory that torch aligned; other alignments change the last bits of products.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return tensors, about


def checked_facts(path: Path) -> dict[str, Any]:
    """Checks a file as `unpack` does, and returns only the facts about its tensors.

    This does not import torch. Raises `Broken` if the file is missing or invalid, or a number is
    not finite.
    """
    tensors, about = _read(path, "np", CPU)
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise _not_finite(path)
    return about


def tensor_facts(path: Path) -> dict[str, Any]:
    """Returns the facts about a file's tensors, without reading or checking the tensors.

    Raises `Broken` if the file is missing or its header is invalid.
    """
    return _read(path, "np", CPU, tensors=False)[1]


def _read(
    path: Path, library: str, device: str, tensors: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the file's tensors in `library` ("pt" or "np"), and the facts about them.

    Without `tensors`, the former are empty. Raises `Refused` if the operating system cannot read an
    existing file, and `Broken` for a missing or invalid one, and for one of another format.
    """
    try:
        regular.refuse_irregular(path)  # `safe_open` would hide the system's error message
        with safe_open(path, library, device=device) as file:
            about = from_json((file.metadata() or {})["privfed"])
            names = file.keys() if tensors else ()
            by_name = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise Broken(
            f"{path} has another format than {FORMAT}, the only one that this version of privfed "
            "reads; update privfed"
        )
    return by_name, about


def _not_finite(path: Path) -> Broken:
    return Broken(
        f"{path} contains numbers that are not finite, which privfed never writes; restore the file"
    )


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with `prefix`, by name without the prefix."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
