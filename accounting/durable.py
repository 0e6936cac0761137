"""Writes that survive a crash: append and fsync, replace atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def append(path: Path, line: bytes) -> None:
    """Append `line` and return only when it is durable, the name of a new file included."""
    new = not path.exists()
    with path.open("ab") as file:
        _write(file, line)
    if new:
        sync_folder(path.parent)


def create(path: Path, content: bytes) -> None:
    """Write a file that must not exist, durably. Raises `FileExistsError`."""
    with path.open("xb") as file:
        _write(file, content)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make `path` and what is missing above it, durably."""
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a crash leaves either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            _write(file, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a file on a full disk helps nobody
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a creation, rename or removal in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
