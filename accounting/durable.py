"""Writes that survive a crash: append and fsync, replace atomically.

A synced file may still be lost if its name is not durable, so the folder of every new name is
synced, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from accounting.errors import Misplaced
from accounting.regular import refuse_irregular

Part = bytes | memoryview
"""A part of a file's content."""


def append(path: Path, line: bytes) -> None:
    """Appends `line` unchanged; returns once it and the name of a new file are durable.

    Raises `Misplaced` if `path` is a FIFO or a device.
    """
    new = not path.exists()
    if not new:
        refuse_irregular(path)
    with path.open("ab") as file:
        _write(file, (line,))
    if new:
        sync_folder(path.parent)


def create(path: Path, content: bytes) -> None:
    """Writes a new file durably. Raises `FileExistsError` if `path` exists."""
    with path.open("xb") as file:
        _write(file, (content,))
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Creates the folder `path` with `mode`, and missing parent folders, durably.

    Does nothing if `path` exists. Raises `Misplaced` for a dangling link.
    """
    if not path.exists():
        refuse_lost_link(path)
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


def refuse_lost_link(path: Path) -> None:
    """Raises `Misplaced` if `path` is a symbolic link that is dangling or points to itself."""
    if path.is_symlink() and not path.exists():
        raise Misplaced(
            f"{path} is a symbolic link to {path.readlink()}, but its target does not exist; "
            "remove the link, or name another path"
        )


def recover_folder(folder: Path) -> None:
    """Removes temporary files of interrupted atomic writes, and makes all other names durable.

    Call this function only for folders to which no other process writes.
    """
    for path in folder.glob(_temporary("*")):
        if path.is_file():
            path.unlink()
    sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` to `path`; a crash leaves either the old file or the new one.

    A link at `path` is replaced, and a link at the temporary file's path is not followed.
    """
    write_parts_atomically(path, (content,))


def write_parts_atomically(path: Path, parts: Iterable[Part]) -> None:
    """Writes `parts` in order like `write_atomically`; the iterator yields one part at a time.

    A link at `path` is replaced, and a link at the temporary file's path is not followed.
    """
    temporary = path.with_name(_temporary(path.name))
    if temporary.is_symlink() or temporary.is_fifo():
        temporary.unlink()
    try:
        with temporary.open("wb") as file:
            _write(file, parts)
        temporary.replace(path)
    except Exception:
        temporary.unlink(missing_ok=True)  # an incomplete file is useless
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a creation, rename or removal in `folder` durable."""
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
