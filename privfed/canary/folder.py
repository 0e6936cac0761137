"""The folder of canaries: its files, and the manifest that states what was generated."""

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
    """The behaviour of canaries, by their secret bit, under one adjacency relation.

    A canary whose bit is 1 ("heads") sends its direction, scaled to the norm `Manifest.length`. A
    canary whose bit is 0 ("tails") sends `tails` times that update, or is not a client at all if
    `absent`. Populations that differ in one bit are then neighbouring datasets. After clipping, the
    two possible messages of a canary are as far apart as the relation allows: one clipping norm
    under add/remove and zero-out, two under replace-one. `heads_name` and `tails_name` state in
    words what each kind of canary does.
    """

    tails: float
    absent: bool
    heads_name: str
    tails_name: str


RELATIONS = {
    "add/remove": Relation(0.0, True, "take part", "are excluded"),
    "zero-out": Relation(0.0, False, "send their direction", "send no change"),
    "replace-one": Relation(-1.0, False, "send their direction", "send its opposite"),
}
"""Adjacency relations that canaries can test, by name."""


FORMAT = 1
_DIGEST = 64
"""Number of hexadecimal digits of a SHA-256."""


@dataclass(frozen=True)
class Manifest:
    """The public declaration of `count` canaries for models of `dimension` parameters.

    It contains no secret. A canary's update has the norm `length`, far above the clipping norm for
    which it was declared, or is zero. The commitments are SHA-256 digests, and each covers the
    secret key of 32 random bytes. A party that received them before a run can check afterwards that
    bits and directions were fixed by then. If `simulated`, the bits follow from a seed and are not
    secret.
    """

    format: int
    count: int
    dimension: int
    relation: str
    length: float
    simulated: bool
    key_commitment: str
    inclusion_commitment: str
    directions_commitment: str

    @property
    def meaning(self) -> Relation:
        """The behaviour of canaries by their bits, under the manifest's adjacency relation."""
        return RELATIONS[self.relation]

    def to_bytes(self) -> bytes:
        """Returns the content of the manifest's file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads the manifest at `path`.

        Raises:
          Broken: if it is missing, damaged, or of another format.
        """
        try:
            content = from_json(regular.read_bytes(path))
        except (OSError, ValueError) as error:
            raise Broken(
                f"{path} cannot be read: {public_text(error)}; expected a folder that `privfed "
                "canary new` made"
            ) from None
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise Broken(
                f"{path} has format {content['format']}, but this version of privfed reads "
                f"{FORMAT}; update privfed, or make new canaries"
            )
        if not isinstance(content, dict) or not _is_manifest(content):
            raise Broken(f"{path} is damaged: it declares no canaries; restore the file")
        return cls(**content)


def _is_manifest(content: dict[str, Any]) -> bool:
    """Whether `content` has exactly the keys of a manifest, each with a valid type and range."""
    if content.keys() != {field.name for field in fields(Manifest)}:
        return False
    counts = [content[name] for name in ("format", "count", "dimension")]
    digests = [content[name] for name in content if name.endswith("_commitment")]
    length, simulated = content["length"], content["simulated"]
    return (
        all(type(count) is int and count > 0 for count in counts)
        and all(isinstance(digest, str) and len(digest) == _DIGEST for digest in digests)
        and type(length) in (int, float)
        and 0 < length <= sys.float_info.max  # also refuses integers beyond the range of a float
        and isinstance(simulated, bool)
        and isinstance(content["relation"], str)
        and content["relation"] in RELATIONS
    )


_BLOCK = 2**24


@dataclass(frozen=True)
class Folder:
    """The files of canaries under `path`; all but the manifest are secret until the run ends."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """The file of the public declaration, which may be published before the run."""
        return self.path / "manifest.json"

    @property
    def key_path(self) -> Path:
        """The file of the key: 32 random bytes from which the directions are derived."""
        return self.path / "key"

    @property
    def inclusion_path(self) -> Path:
        """The file of the canaries' secret bits, `[K]` bool."""
        return self.path / "inclusion.npy"

    @property
    def directions_path(self) -> Path:
        """The file of the canaries' directions: unit vectors, `[K, d]` float32."""
        return self.path / "directions.npy"

    def manifest(self) -> Manifest:
        """Reads the public declaration. Raises `Broken` if it is missing or damaged."""
        return Manifest.read(self.manifest_path)

    def inclusion(self) -> NDArray[np.bool_]:
        """Reads the secret bits `[K]`, without checking their commitment.

        Raises `Broken` if the file is unreadable or of another shape or type.
        """
        inclusion = self._array(self.inclusion_path)
        if inclusion.dtype != np.bool_ or inclusion.shape != (self.manifest().count,):
            raise Broken(f"{self.inclusion_path} does not match manifest.json; restore the file")
        return np.array(inclusion)

    def directions(self) -> NDArray[np.float32]:
        """Returns the directions `[K, d]`, memory-mapped, without checking their commitment.

        Raises `Broken` if the file is unreadable or of another shape or type.
        """
        declared, directions = self.manifest(), self._array(self.directions_path)
        shape = declared.count, declared.dimension
        if directions.dtype != np.float32 or directions.shape != shape:
            raise Broken(f"{self.directions_path} does not match the manifest; restore the file")
        return directions

    def check_commitments(self) -> None:
        """Compares the secret files with the manifest's commitments.

        Raises `Broken` if a file is missing or was changed.
        """
        declared = self.manifest()
        try:
            now = commitments(self)
        except OSError as error:
            raise Broken(
                f"{self.path} is incomplete: {public_text(error)}; restore the folder"
            ) from None
        for path, was, is_now in (
            (self.key_path, declared.key_commitment, now.key),
            (self.inclusion_path, declared.inclusion_commitment, now.inclusion),
            (self.directions_path, declared.directions_commitment, now.directions),
        ):
            if was != is_now:
                raise Broken(
                    f"{path} does not match the manifest's commitment: the file was changed after "
                    "the canaries were made; restore the file, and judge again"
                )

    def _array(self, path: Path) -> NDArray[Any]:
        try:
            regular.refuse_irregular(path)
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except Exception as error:  # numpy's parser of headers raises exceptions of any type
            raise Broken(f"{path} cannot be read: {public_text(error)}; restore the file") from None


@dataclass(frozen=True)
class SecretDigests:
    """Commitments, as SHA-256 digests: of the key, and of the key with each other secret file."""

    key: str
    inclusion: str
    directions: str


def commitments(folder: Folder) -> SecretDigests:
    """Returns commitments to the secret files of `folder` as they are now."""
    key = regular.read_bytes(folder.key_path)
    return SecretDigests(
        hashlib.sha256(b"privfed canaries, key|" + key).hexdigest(),
        _committed(key, folder.inclusion_path),
        _committed(key, folder.directions_path),
    )


def participants(directory: str | Path) -> list[int]:
    """Returns the numbers of the canaries that take part as clients, in ascending order.

    The list is as secret as the bits. Under add/remove it contains the canaries whose bit is 1,
    under other relations all canaries.

    Raises:
      Broken: if the folder is damaged or holds no canaries.
    """
    folder = Folder(Path(directory))
    declared = folder.manifest()
    if declared.meaning.absent:
        return [int(number) for number in np.flatnonzero(folder.inclusion())]
    return list(range(declared.count))


def _committed(key: bytes, path: Path) -> str:
    """Returns a commitment to the file at `path`; it reveals nothing without the key."""
    digest = hashlib.sha256(f"privfed canaries, {path.name}|".encode() + key)
    with regular.opened(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
