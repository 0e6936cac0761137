"""The bytes of a safetensors file in parts: tensors are written from where they lie.

The format is a header's length in 8 bytes, the header, which is JSON and says where each tensor's
numbers are, and these, one tensor after another: wider types first, then by name. So the library
writes it too, byte for byte, from a copy of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_TYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types, in the order of a file, and what it calls them."""
_AT_ONCE = 1 << 20
"""Numbers of a part; those of a tensor on another device are copied from there."""


def file_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """The bytes of a file with named `tensors`, part by part; `metadata` is text by name.

    A tensor whose numbers lie side by side in the CPU's memory is not copied. Raises `ValueError`
    for one of another type than files here hold.
    """
    ranks = {kind: place for place, kind in enumerate(_TYPES)}
    for name, tensor in tensors.items():
        if tensor.dtype not in ranks:
            raise ValueError(f"{name} is of type {tensor.dtype}, which no file of tensors holds")
    names = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        code, shape = _TYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from _bytes_of(tensors[name].detach())


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor's numbers, in their order."""
    flat = tensor.reshape(-1)
    for start in range(0, len(flat), _AT_ONCE):
        part = flat[start : start + _AT_ONCE].cpu().view(torch.uint8)
        yield part.numpy().data
