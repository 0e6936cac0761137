"""Files of named tensors (safetensors), with facts beside them; nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from accounting.documents import from_json
from privfed.errors import Broken, private_text, public_text, unreadable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = 1
CPU = "cpu"


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
    from safetensors.torch import save  # which imports torch, and reading facts needs none

    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # One key: safetensors writes several in an order of its own, and equal runs give equal bytes.
    return save(whole, {"privfed": json.dumps({"format": FORMAT, **about}, sort_keys=True)})


def unpack(
    path: Path, device: torch.device | str = CPU, finite: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` wrote, on `device`. Raises `Broken` where that is not what lies there.

    `finite`: nor any number that is not.
    """
    tensors, about = _read(path, "pt", str(device))
    if finite and not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise _not_finite(path)
    return tensors, about


def facts(path: Path) -> dict[str, Any]:
    """What `pack` was told about its tensors, which are checked as `unpack` does: without torch."""
    tensors, about = _read(path, "np", CPU)
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise _not_finite(path)
    return about


def stated(path: Path) -> dict[str, Any]:
    """What `pack` was told about its tensors, of which none is read."""
    return _read(path, "np", CPU, tensors=False)[1]


def _read(
    path: Path, library: str, device: str, tensors: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        path.open("rb").close()  # the system's errors in its own words
        with safe_open(path, library, device=device) as file:
            about = from_json((file.metadata() or {})["privfed"])
            names = file.keys() if tensors else ()
            read = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise Broken(f"{path} is of another format; this version of privfed reads {FORMAT}")
    return read, about


def _not_finite(path: Path) -> Broken:
    return Broken(f"{path} holds numbers that are not finite; privfed never wrote them")


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
