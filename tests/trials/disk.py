"""A simulated disk: every state that a machine could find after a crash at any moment.

`watching` follows the files below a folder while something runs. Before every operation at which a
crash may occur (a sync, a rename, a removal, a new folder) it keeps two images. One is the state
that processes see. The other is the state that POSIX promises to survive a power cut: the content
of a file as of its last fsync and the names in a folder as of the folder's last fsync, and nothing
else. `Moment.after` then returns the state after one of the `CRASHES`. No process is killed: one
run gives all of its crashes, and no sync reaches the real disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CRASHES = ("killed", "torn", "lost", "shuffled")
"""The process dies; it dies in the middle of a write; the power fails and only synced data remain;
the power fails and any part of the unsynced data remains.
"""

Tree = dict[str, tuple[int, bytes | None]]
"""Files and folders by path, each with its mode and its content; None for a folder."""


@dataclass(frozen=True)
class Image:
    """Folders by inode with the names in them, and files by inode with their content."""

    root: int
    folders: dict[int, dict[str, int]]
    files: dict[int, bytes]
    modes: dict[int, int]

    def tree(self) -> Tree:
        return dict(self._below(self.root, ""))

    def _below(self, folder: int, prefix: str) -> Iterator[tuple[str, tuple[int, bytes | None]]]:
        for name, inode in sorted(self.folders[folder].items()):
            mode = self.modes[inode]
            if inode in self.folders:
                yield prefix + name, (mode, None)
                yield from self._below(inode, f"{prefix}{name}/")
            else:
                yield prefix + name, (mode, self.files.get(inode, b""))


@dataclass(frozen=True)
class Moment:
    """The moment before `operation`: the visible state, the durable state, and the file being
    synced.

    `notes` are the watcher's notes until then.
    """

    operation: str
    seen: Image
    durable: Image
    syncing: int | None
    notes: tuple[Any, ...]

    def after(self, crash: str, rng: random.Random) -> Tree:
        """Returns the state after the `crash`, one of `CRASHES`."""
        if crash == "killed":
            return self.seen.tree()
        if crash == "lost":
            return self.durable.tree()
        if crash == "shuffled":
            return self._mixed(lambda: rng.random() < 0.5, self._any_part(rng)).tree()
        return self._mixed(lambda: True, self._torn).tree()

    def _torn(self, inode: int) -> bytes:
        content = self.seen.files.get(inode, b"")
        if inode != self.syncing:
            return content
        return _half(self.durable.files.get(inode, b""), content)

    def _any_part(self, rng: random.Random) -> Callable[[int], bytes]:
        def part(inode: int) -> bytes:
            before = self.durable.files.get(inode, b"")
            after = self.seen.files.get(inode, before)  # where a removal was not synced
            return rng.choice([before, after, _half(before, after)])

        return part

    def _mixed(self, newer: Callable[[], bool], content: Callable[[int], bytes]) -> Image:
        """Takes every name from the visible state if `newer` says so, and otherwise from the
        durable one.
        """
        folders = {}
        for inode in self.seen.folders.keys() | self.durable.folders.keys():
            now, before = (image.folders.get(inode, {}) for image in (self.seen, self.durable))
            mixed = {}
            for name in sorted(now.keys() | before.keys()):
                same = now.get(name) == before.get(name)
                here = now.get(name) if same or newer() else before.get(name)
                if here is not None:
                    mixed[name] = here
            folders[inode] = mixed
        files = self.seen.files.keys() | self.durable.files.keys()
        contents = {inode: content(inode) for inode in sorted(files)}
        return Image(self.seen.root, folders, contents, self.seen.modes)


def _half(before: bytes, after: bytes) -> bytes:
    """Returns `after` with half of its new content; the other half is as `before`, or missing."""
    ends = (n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    same = next(ends, min(len(before), len(after)))
    middle = same + (len(after) - same) // 2
    return after[:middle] + (before[middle:] if len(before) == len(after) else b"")


@dataclass
class Watcher:
    """Records the moments of operations below `root`; obtained from `watching`."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    _folders: dict[int, dict[str, int]] = field(default_factory=dict)
    _files: dict[int, bytes] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)
    _modes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Treats the initial state as durable."""
        image = self._look()
        self._folders, self._files = image.folders, image.files

    def before(self, operation: str, syncing: int | None = None) -> None:
        seen, root = self._look(), self._inode(self.root)
        durable = Image(root, dict(self._folders), dict(self._files), seen.modes)
        self.moments.append(Moment(operation, seen, durable, syncing, tuple(self.notes)))

    def sync(self, path: Path) -> None:
        """Makes the synced content of `path`, a file or a folder, durable."""
        inode = self._inode(path)
        if path.is_dir():
            names = {item.name: self._inode(item) for item in path.iterdir()}
            self._folders[inode] = names
            for item in path.iterdir():
                if item.is_dir():
                    self._folders.setdefault(self._inode(item), {})
        else:
            self._files[inode] = path.read_bytes()

    def watches(self, path: Path) -> bool:
        return path.is_relative_to(self.root) and path.exists()

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}

    def _look(self) -> Image:
        folders: dict[int, dict[str, int]] = {}
        files: dict[int, bytes] = {}
        for folder, _, _ in os.walk(self.root):
            names = folders[self._inode(Path(folder))] = {}
            for item in sorted(Path(folder).iterdir()):
                names[item.name] = inode = self._inode(item)
                if not item.is_dir():
                    files[inode] = item.read_bytes()
        return Image(self._inode(self.root), folders, files, dict(self._modes))

    def _inode(self, path: Path) -> int:
        """Returns the inode, which is held open so that the system does not reuse its number."""
        status = path.stat()
        if status.st_ino not in self._held:
            self._held[status.st_ino] = os.open(path, os.O_PATH)
        self._modes[status.st_ino] = stat.S_IMODE(status.st_mode)
        return status.st_ino


@contextlib.contextmanager
def watching(root: Path) -> Iterator[Watcher]:
    """Records all moments of operations below the folder `root`."""
    root = root.resolve()
    watcher = Watcher(root)
    patched = _patches(watcher)
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patched]
    try:
        for owner, name, replacement in patched:
            setattr(owner, name, replacement)
        yield watcher
        watcher.before("the end")
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)
        watcher.close()


def _patches(watcher: Watcher) -> list[tuple[Any, str, Callable[..., Any]]]:
    fsync, flush = os.fsync, np.memmap.flush

    def dying_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if not watcher.watches(path):
            fsync(descriptor)
            return
        status = os.fstat(descriptor)
        file = None if stat.S_ISDIR(status.st_mode) else status.st_ino
        watcher.before(f"sync {path.name}", file)
        watcher.sync(path)

    def dying_flush(self: np.memmap) -> None:
        path = Path(str(self.filename))
        if watcher.watches(path):
            watcher.before(f"flush {path.name}", path.stat().st_ino)
            watcher.sync(path)
        else:
            flush(self)

    def before(name: str) -> Callable[..., Any]:
        real = getattr(Path, name)

        def dying(self: Path, *args: Any, **kwargs: Any) -> Any:
            if watcher.watches(self.parent.resolve()):
                watcher.before(f"{name} {self.name}")
            return real(self, *args, **kwargs)

        return dying

    return [
        (os, "fsync", dying_fsync),
        (np.memmap, "flush", dying_flush),
        *((Path, name, before(name)) for name in ("replace", "unlink", "mkdir")),
    ]


def restore(root: Path, tree: Tree) -> None:
    """Replaces everything below `root` by `tree`."""
    shutil.rmtree(root)
    root.mkdir()
    for name, (mode, content) in tree.items():
        path = root / name
        path.mkdir() if content is None else path.write_bytes(content)
        path.chmod(mode)
