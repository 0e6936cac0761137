"""Writes that survive a crash: append and fsync, replace atomically."""

from __future__ import annotations

import os
from pathlib import Path


def append(path: Path, line: bytes) -> None:
    """Append `line` and return only when it is durable."""
    fresh = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if fresh:
        sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a crash leaves either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a creation, rename or removal in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
