"""Generates canaries: samples secret bits and directions, and commits to them before any run."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.durable import create, make_folder, refuse_lost_link, sync_folder
from privfed.canary.folder import FORMAT, RELATIONS, Folder, Manifest, commitments
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams

_KEY = 32
_LONG = 1e3
"""Length of a canary's update, in multiples of the clipping norm."""
_MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class CanaryRequest:
    """A request for new canaries.

    Attributes:
      count: number of canaries.
      dimension: number of parameters of the model.
      clip: clipping norm of the pipeline under test.
      relation: adjacency relation, a key of `RELATIONS`.
      seed: seed of bits and directions in a simulation, which are then not secret; None draws
        secret ones.

    Raises:
      Refused: if a value is out of range, or the directions would take more than 4 GiB.
    """

    count: int
    dimension: int
    clip: float
    relation: str
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or self.dimension < 1:
            raise Refused(
                f"--count is {self.count} and --dimension is {self.dimension}; expected 1 or more "
                "for both"
            )
        if 4 * self.count * self.dimension > _MOST_BYTES:
            raise Refused(
                f"--count is {self.count:,}, but directions of {self.dimension:,} numbers each "
                f"take more than {_MOST_BYTES // 2**30} GiB; expected a --count of at most "
                f"{_MOST_BYTES // 4 // self.dimension:,}"
            )
        if not (math.isfinite(self.clip) and 0 < self.clip <= np.finfo(np.float32).max / _LONG):
            raise Refused(
                f"--clip is {self.clip}; expected the pipeline's clipping norm, above 0 and at "
                "most 3.4e35"
            )
        if self.relation not in RELATIONS:
            raise Refused(f"--relation is {self.relation!r}; expected one of {[*RELATIONS]}")

    def write(self, path: Path) -> Folder:
        """Creates the folder `path` with mode 700 and returns it once it is complete and durable.

        Raises:
          Refused: if `path` exists; nothing is changed then.
        """
        refuse_lost_link(path)
        if path.exists():
            raise Refused(f"{path} exists already, and nothing was changed; name a new directory")
        make_folder(path.absolute().parent)
        before = os.umask(0o077)
        try:
            with _half_made(path.absolute()) as half:
                self._fill(Folder(half))
                half.rename(path)
        finally:
            os.umask(before)
        sync_folder(path.absolute().parent)
        return Folder(path)

    def _fill(self, folder: Folder) -> None:
        key = os.urandom(_KEY) if self.seed is None else bytes(_KEY)
        create(folder.key_path, key)
        _write_inclusion(folder.inclusion_path, self._inclusion())
        self._write_directions(folder.directions_path, key)
        fixed = commitments(folder)
        manifest = Manifest(
            format=FORMAT,
            count=self.count,
            dimension=self.dimension,
            relation=self.relation,
            length=_LONG * self.clip,
            simulated=self.seed is not None,
            key_commitment=fixed.key,
            inclusion_commitment=fixed.inclusion,
            directions_commitment=fixed.directions,
        )
        create(folder.manifest_path, manifest.to_bytes())

    def _inclusion(self) -> NDArray[np.bool_]:
        """Returns a fair bit for each canary `[K]`, from the operating system unless seeded."""
        simulated = Streams(self.seed or 0, simulated=True).at("canaries/coins")
        keys = Keys(None) if self.seed is None else simulated
        return (keys.bits(self.count) & np.uint64(1)).astype(bool)

    def _write_directions(self, path: Path, key: bytes) -> None:
        """Writes random unit directions `[K, d]`, each from the key and the canary's number."""
        streams = Streams(self.seed or 0, simulated=self.seed is not None, key=key)
        keys = streams.at("canaries/directions", clients=np.arange(self.count))
        shape = self.count, self.dimension
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        with path.open("xb") as file:  # not mapped: a full disk then raises, not SIGBUS
            np.lib.format.write_array_header_1_0(file, header)
            for each in keys.each():
                numbers = each.normal(self.dimension)
                file.write((numbers / np.linalg.norm(numbers)).astype("<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _half_made(path: Path) -> Iterator[Path]:
    """Yields a temporary folder next to `path`, which is removed if the block raises.

    Temporary folders that killed processes left are removed, too. The process that writes a folder
    holds a lock on it, which ends with the process.
    """
    prefix = f".{path.name}.half-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    half = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    with _locked(half):
        try:
            yield half
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks `folder` for this process. Raises `OSError` if another process holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _write_inclusion(path: Path, inclusion: NDArray[np.bool_]) -> None:
    with path.open("xb") as file:
        np.save(file, inclusion, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
