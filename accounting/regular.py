"""Reads regular files; refuses anything else at their path without waiting.

Opening a FIFO without a writer blocks for ever, and a device may have no end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

from accounting.errors import Misplaced


def opened(path: Path) -> BinaryIO:
    """Opens the regular file at `path` for reading.

    Raises `Misplaced` if `path` is a FIFO or a device, and `OSError` as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise Misplaced(f"{path} is a FIFO or a device; expected a regular file: restore the file")


def refuse_irregular(path: Path) -> None:
    """Raises the errors of `opened`, for libraries that open the file at `path` themselves."""
    opened(path).close()


def read_bytes(path: Path) -> bytes:
    """Returns the content of the regular file at `path`. Raises the errors of `opened`."""
    with opened(path) as file:
        return file.read()


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Returns the text of the regular file at `path`.

    Raises `OSError`, and `ValueError` if the content is not text.
    """
    with io.TextIOWrapper(opened(path), encoding, errors) as file:
        return file.read()
