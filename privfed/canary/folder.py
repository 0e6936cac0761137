"""The folder of canaries, by name: what lies there, and how it is read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import regular
from privfed.canary.manifest import Manifest
from privfed.core.errors import Broken, public_text

_BLOCK = 2**24


@dataclass(frozen=True)
class Folder:
    """The files of canaries under `path`: secret until the run that they test has ended."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """What is declared; it may be shown to anybody, before the run."""
        return self.path / "manifest.json"

    @property
    def key_path(self) -> Path:
        """Thirty-two random bytes, from which directions follow."""
        return self.path / "key"

    @property
    def coins_path(self) -> Path:
        """A coin of each canary, `[K]` bool."""
        return self.path / "coins.npy"

    @property
    def directions_path(self) -> Path:
        """A direction of each canary, `[K, d]` float32 of length one."""
        return self.path / "directions.npy"

    def manifest(self) -> Manifest:
        """What is declared. Raises `Broken`."""
        return Manifest.read(self.manifest_path)

    def coins(self) -> NDArray[np.bool_]:
        """The coins `[K]`. Raises `Broken` where they are damaged."""
        coins = self._array(self.coins_path)
        if coins.dtype != np.bool_ or coins.shape != (self.manifest().count,):
            raise Broken(f"{self.coins_path} is not what the manifest declares; restore the file")
        return np.array(coins)

    def directions(self) -> NDArray[np.float32]:
        """The directions `[K, d]`, read from the disk where they are used. Raises `Broken`."""
        declared, directions = self.manifest(), self._array(self.directions_path)
        shape = declared.count, declared.dimension
        if directions.dtype != np.float32 or directions.shape != shape:
            raise Broken(
                f"{self.directions_path} is not what the manifest declares; restore the file"
            )
        return directions

    def check_commitments(self) -> None:
        """Compare what is secret with the commitments. Raises `Broken` where it was changed."""
        declared = self.manifest()
        try:
            now = commitments(self)
        except OSError as error:
            raise Broken(f"{self.path} is not whole: {public_text(error)}") from None
        for path, was, is_now in (
            (self.key_path, declared.key_commitment, now.key),
            (self.coins_path, declared.coins_commitment, now.coins),
            (self.directions_path, declared.directions_commitment, now.directions),
        ):
            if was != is_now:
                raise Broken(
                    f"{path} is not what the manifest commits to: it was changed after the "
                    "canaries were made; restore it, and judge again"
                )

    def _array(self, path: Path) -> NDArray[Any]:
        try:
            regular.refuse_irregular(path)
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except Exception as error:  # numpy's parser of headers raises any
            raise Broken(f"{path} cannot be read: {public_text(error)}; restore the file") from None


@dataclass(frozen=True)
class SecretDigests:
    """SHA-256 of the key, and of the key with what is in each other file."""

    key: str
    coins: str
    directions: str


def commitments(folder: Folder) -> SecretDigests:
    """The commitments to what lies in `folder` now."""
    key = regular.read_bytes(folder.key_path)
    return SecretDigests(
        hashlib.sha256(b"privfed canaries, key|" + key).hexdigest(),
        _committed(key, folder.coins_path),
        _committed(key, folder.directions_path),
    )


def participants(directory: str | Path) -> list[int]:
    """The numbers of the canaries that take part as clients, in order: secret, as coins are.

    Under add/remove these are those whose coins show heads; under other relations all of them.
    Raises `Broken` for a folder that is damaged, or none.
    """
    folder = Folder(Path(directory))
    declared = folder.manifest()
    if declared.meaning.absent:
        return [int(number) for number in np.flatnonzero(folder.coins())]
    return list(range(declared.count))


def _committed(key: bytes, path: Path) -> str:
    """A commitment that hides the file at `path` from who does not know the key, and binds it."""
    digest = hashlib.sha256(f"privfed canaries, {path.name}|".encode() + key)
    with regular.opened(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
