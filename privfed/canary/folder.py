"""The folder of canaries by name: its files, and the manifest that states what was drawn."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import regular
from accounting.documents import from_json
from privfed.core.errors import Broken, public_text


@dataclass(frozen=True)
class Relation:
    """What canaries do by their coins.

    A canary whose coin shows heads sends its direction, and one whose coin shows tails sends it
    `tails` times; `absent` tails are no clients at all. Populations that differ in a coin are then
    neighbours, and each canary's pair of answers is as far apart as the relation allows: a clip
    under add/remove and zero-out, two under replace-one.
    """

    tails: float
    absent: bool
    heads_name: str
    tails_name: str


RELATIONS = {
    "add/remove": Relation(0.0, True, "take part", "stay away"),
    "zero-out": Relation(0.0, False, "send their direction", "send no change"),
    "replace-one": Relation(-1.0, False, "send their direction", "send its opposite"),
}
"""Each relation that canaries can test, by its name."""


FORMAT = 1
_DIGEST = 64
"""Hexadecimal digits of a SHA-256."""


@dataclass(frozen=True)
class Manifest:
    """`count` canaries for models of `dimension` numbers; it holds no secret.

    Every canary that takes part sends an update of `length`, far beyond the clip that it was
    declared for. The commitments are SHA-256, and each covers the secret key of 32 random bytes:
    who was given them before a run can check afterwards that coins and directions were fixed by
    then. `simulated` coins follow from a seed and are no secret.
    """

    format: int
    count: int
    dimension: int
    relation: str
    length: float
    simulated: bool
    key_commitment: str
    coins_commitment: str
    directions_commitment: str

    @property
    def meaning(self) -> Relation:
        """What coins mean under the relation."""
        return RELATIONS[self.relation]

    def to_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest at `path`. Raises `Broken` where it is missing, damaged, or newer."""
        try:
            content = from_json(regular.read_bytes(path))
        except (OSError, ValueError) as error:
            raise Broken(
                f"{path} cannot be read: {public_text(error)}; expected a folder that `privfed "
                "canary new` made"
            ) from None
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise Broken(f"{path} is of format {content['format']}; this version reads {FORMAT}")
        if not isinstance(content, dict) or not _is_manifest(content):
            raise Broken(f"{path} is damaged: it declares no canaries; restore the file")
        return cls(**content)


def _is_manifest(content: dict[str, Any]) -> bool:
    """Whether `content` has every key of a manifest, and a plausible value in each."""
    if content.keys() != {field.name for field in fields(Manifest)}:
        return False
    counts = [content[name] for name in ("format", "count", "dimension")]
    digests = [content[name] for name in content if name.endswith("_commitment")]
    length, simulated = content["length"], content["simulated"]
    return (
        all(type(count) is int and count > 0 for count in counts)
        and all(isinstance(digest, str) and len(digest) == _DIGEST for digest in digests)
        and type(length) in (int, float)
        and 0 < length <= sys.float_info.max  # also of an integer that no float holds
        and isinstance(simulated, bool)
        and isinstance(content["relation"], str)
        and content["relation"] in RELATIONS
    )


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
