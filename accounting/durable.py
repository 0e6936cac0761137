"""Writes that survive a crash: append and fsync, replace atomically.

A file that was synced may still be lost with its name: every new name is synced in its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from accounting.errors import Misplaced
from accounting.regular import refuse_irregular

Part = bytes | memoryview
"""Some bytes of a file."""


def append(path: Path, line: bytes) -> None:
    """Append `line` and return only when it is durable, as is the name of a new file.

    Raises `Misplaced` where a FIFO or a device lies at `path`.
    """
    new = not path.exists()
    if not new:
        refuse_irregular(path)
    with path.open("ab") as file:
        _write(file, (line,))
    if new:
        sync_folder(path.parent)


def create(path: Path, content: bytes) -> None:
    """Write a file that must not exist, durably. Raises `FileExistsError`."""
    with path.open("xb") as file:
        _write(file, (content,))
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make the folder `path`, of `mode`, and the missing folders above it, durably.

    Raises `Misplaced` for a link that leads nowhere.
    """
    if not path.exists():
        refuse_lost_link(path)
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


def refuse_lost_link(path: Path) -> None:
    """Raises `Misplaced` where `path` is a symbolic link that leads to nothing, or to itself."""
    if path.is_symlink() and not path.exists():
        raise Misplaced(
            f"{path} is a symbolic link to {path.readlink()}, but nothing lies there; remove the "
            "link, or name another place"
        )


def recover_folder(folder: Path) -> None:
    """Remove files that a crash left half written, and make all other names durable.

    It is for folders that nobody else writes to.
    """
    for path in folder.glob(_temporary("*")):
        if path.is_file():
            path.unlink()
    sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a crash leaves either the old file or the new one.

    A link at `path` is replaced, and one in the temporary file's place is not followed.
    """
    write_parts_atomically(path, (content,))


def write_parts_atomically(path: Path, parts: Iterable[Part]) -> None:
    """`write_atomically` of `parts` one after another, each of which is asked for and written.

    A link at `path` is replaced, and one in the temporary file's place is not followed.
    """
    temporary = path.with_name(_temporary(path.name))
    if temporary.is_symlink() or temporary.is_fifo():
        temporary.unlink()
    try:
        with temporary.open("wb") as file:
            _write(file, parts)
        temporary.replace(path)
    except Exception:
        temporary.unlink(missing_ok=True)  # half a file helps nobody
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a creation, rename or removal in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(name: str) -> str:
    return f".{name}.tmp"


def _write(file: BinaryIO, parts: Iterable[Part]) -> None:
    file.writelines(parts)
    file.flush()
    os.fsync(file.fileno())
