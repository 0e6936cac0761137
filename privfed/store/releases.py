"""Releases of rounds that no checkpoint contains yet: a resume replays them byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accounting import durable
from accounting.ledger import Charge
from privfed.errors import Broken
from privfed.store.tensorfile import CPU, checked_facts, misfits_are_broken, under, unpack, write

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class StoredRelease:
    """What one charged round released, exchange by exchange, and the hash of its charge."""

    released: list[Tensor]
    mechanism: dict[str, Tensor]
    charge: str


@dataclass(frozen=True)
class Releases:
    """The files `NNNNNN.safetensors` in `folder`, one for each round after the last checkpoint."""

    folder: Path

    def write(self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]) -> None:
        """Make the charged round's releases so far durable: before they are used or shown.

        `state` is the mechanism's public state after them.
        """
        tensors = {f"released/{n}": tensor for n, tensor in enumerate(released)}
        tensors |= {f"mechanism/{name}": tensor for name, tensor in state.items()}
        about = {"round": charge.round, "charge": charge.hash, "exchanges": len(released)}
        write(self._path(charge.round), tensors, about)

    def read(self, round: int, device: torch.device | str = CPU) -> StoredRelease | None:
        """What `round` released, None where nothing is kept of it. Raises `Broken`."""
        path = self._path(round)
        if not path.exists():
            return None
        try:
            tensors, about = unpack(path, device)
        except Broken:
            if path.exists():
                raise
            return None  # a later checkpoint took it up just now
        with misfits_are_broken(path):
            count = int(about["exchanges"])
            released = [tensors[f"released/{n}"] for n in range(count)]
            return StoredRelease(released, under(tensors, "mechanism/"), str(about["charge"]))

    def charge_of(self, round: int) -> str | None:
        """The hash of the charge that `round`'s release cites, read without torch.

        None where a later checkpoint has just taken the release up. Raises `Broken`.
        """
        path = self._path(round)
        try:
            with misfits_are_broken(path):
                return str(checked_facts(path)["charge"])
        except Broken:
            if path.exists():
                raise
            return None

    def rounds(self) -> list[int]:
        """The rounds whose releases are kept, in ascending order."""
        stems = (path.stem for path in self.folder.glob("*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def drop(self, until: int) -> None:
        """Remove the releases of all rounds up to `until`, which a durable checkpoint contains."""
        for round in self.rounds():
            if round <= until:
                self._path(round).unlink()
        durable.sync_folder(self.folder)

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"
