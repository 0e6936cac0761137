"""The frozen part of a run's model, kept beside the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privfed.store.lineage import Lineage
from privfed.store.tensorfile import under, unpack, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ConstantsFile:
    """The file `constants.safetensors` at `path`; there is none for a model without such a part."""

    path: Path

    def write(self, constants: Mapping[str, Tensor], lineage: Lineage) -> None:
        """Keep what the model computes with and training does not change, where there is any.

        The tensors are as they came: `lineage` is that of the model's start.
        """
        if constants:
            tensors = {f"model/{name}": tensor for name, tensor in constants.items()}
            write(self.path, tensors, {"lineage": lineage.to_json()})

    def read(self) -> dict[str, Tensor]:
        """The constants by name, none where the file is missing. Raises `Broken`."""
        if not self.path.exists():
            return {}
        return under(unpack(self.path, finite=False)[0], "model/")
