"""Files of named tensors (safetensors), with facts beside them; nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from privfed.errors import Broken, private_text, public_text, unreadable

FORMAT = 1
CPU = torch.device("cpu")


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Metadata or tensors that are missing or of another form mean an edited file."""
    try:
        yield
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        why = public_text(error)
        raise Broken(f"{path} does not fit this run: {why}", private_text(error)) from None


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """A file's bytes: named tensors, and what is said about them."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # One key: safetensors writes several in an order of its own, and equal runs give equal bytes.
    return save(whole, {"privfed": json.dumps({"format": FORMAT, **about}, sort_keys=True)})


def unpack(
    path: Path, device: torch.device = CPU, finite: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` wrote, on `device`. Raises `Broken` where that is not what lies there.

    `finite`: nor any number that is not.
    """
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            about = json.loads((file.metadata() or {})["privfed"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise Broken(f"{path} is of another format; this version of privfed reads {FORMAT}")
    if finite and not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise Broken(f"{path} holds numbers that are not finite; privfed never wrote them")
    return tensors, about


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
