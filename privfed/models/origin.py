"""Which runs trained the weights of a module: what `run.model` hands out is recognised again.

A model that a run trained tells of its people, wherever its weights go. So a module that is handed
out is marked (the mark survives copies, pickling and further training), and this process remembers
the trained tensors themselves, for whoever loads them into another module. Weights that came by
another way are of unknown origin, which is said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from privfed.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

Origins = Mapping[str, Any]
"""What made a model, as `privfed.store.lineage.Lineage` states it in files."""
_MARK = "privfed_origin"
_HANDED_OUT: dict[str, Origins] = {}
"""What made each trained tensor that was handed out in this process, by the tensor's digest."""
_BESIDE: set[str] = set()
"""Digests of the tensors beside them, which training had left as they were."""


def mark(module: nn.Module, trained: Iterable[str], origins: Origins) -> None:
    """Note that `origins` made the tensors of `module` that are named `trained`."""
    setattr(module, _MARK, dict(origins))
    names = {*trained}
    for name, tensor in _tensors(module).items():
        digest = _digest(tensor)
        if digest is not None and name in names:
            _HANDED_OUT[digest] = dict(origins)
        elif digest is not None:
            _BESIDE.add(digest)


def origins_of(module: nn.Module) -> tuple[Origins, ...]:
    """What made the weights of `module`, as far as it is known; of the rest nothing is known."""
    marked = [vars(part)[_MARK] for part in module.modules() if _MARK in vars(part)]
    digests = [_digest(tensor) for tensor in _tensors(module).values()]
    known = [_HANDED_OUT[digest] for digest in digests if digest in _HANDED_OUT]
    distinct: list[Origins] = []
    for origins in (*marked, *known):
        if origins not in distinct:
            distinct.append(origins)
    return tuple(distinct)


def unchanged(module: nn.Module) -> bool:
    """Whether all weights of `module` are as a run handed them out, and it holds no others."""
    digests = [_digest(tensor) for tensor in _tensors(module).values()]
    known = {*_HANDED_OUT, *_BESIDE}
    return any(digests) and all(digest is None or digest in known for digest in digests)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of `module` by name, but for those that have no shape yet."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor)}


def is_lazy(tensor: Tensor) -> bool:
    """Whether a tensor has no shape before the module's first call."""
    return bool(torch.nn.parameter.is_lazy(tensor))


def _digest(tensor: Tensor) -> str | None:
    """SHA-256 of a tensor's values; None where they are all alike, as many a fresh tensor's are."""
    values = tensor.detach().cpu().contiguous()
    if values.is_meta or not values.numel() or bool((values == values.reshape(-1)[0]).all()):
        return None
    return hashlib.sha256(tensor_bytes(values)).hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """The values of a tensor of any type, as they lie in memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
