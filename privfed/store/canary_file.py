"""What a run's canaries start from, which nobody else may read before the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accounting import durable
from privfed.store.tensorfile import unpack, write

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class CanaryFile:
    """The file `private/canaries.safetensors` at `path`: made when a run begins, and kept.

    It has the model that the run started from, and the examples of canaries that train.
    """

    path: Path

    def exists(self) -> bool:
        """Whether it was made."""
        return self.path.is_file()

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep named `tensors`; durable when this returns."""
        durable.make_folder(self.path.parent, 0o700)
        write(self.path, tensors, {})
        self.path.chmod(0o600)

    def read(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors by name, on `device`. Raises `Broken` for a damaged file."""
        return unpack(self.path, device)[0]
