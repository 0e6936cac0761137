"""A sum that a coordinator sees, as bytes: float64 numbers, little-endian."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privfed.secure.frames import BadMessage

_TYPE = np.dtype("<f8")


def plain_bytes(total: Tensor) -> bytes:
    """The byte form of a sum `[m]`."""
    return total.cpu().numpy().astype(_TYPE).tobytes()


def plain_sum(data: bytes, length: int) -> Tensor:
    """The sum `[length]` that these bytes are. Raises `BadMessage`, also where it is not finite."""
    if len(data) != length * _TYPE.itemsize:
        raise BadMessage("wrong length", f"{len(data)} bytes for a sum of {length} numbers")
    total = torch.from_numpy(np.frombuffer(data, _TYPE).astype(np.float64))
    if not bool(total.isfinite().all()):
        raise BadMessage("wrong row", "a sum that is not finite")
    return total
