"""Names, creates and locks the folders of runs and attacks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import filelock

from accounting.durable import make_folder, refuse_lost_link, write_atomically
from privfed.core.errors import Refused

_LOCK = ".lock"
_MOMENT = 0.2
"""Seconds to wait for a lock, since `is_held` holds the lock briefly for its check."""


def refuse_taken(out: Path) -> None:
    """Raises `Refused` if `out` exists and is not an empty folder."""
    refuse_lost_link(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(
            f"--out is {out}, but that is not an empty folder; nothing was changed; name a new one"
        )


def new_folder(kind: str = "") -> Path:
    """Returns an unused path: runs/<time>, or runs/<time>-<kind> for a `kind`.

    The time is local, such as 20260131-120000. If the path exists, a number is appended. No folder
    is created.
    """
    name = datetime.now().strftime("%Y%m%d-%H%M%S") + (f"-{kind}" if kind else "")
    path, taken = Path("runs") / name, 0
    while path.exists():
        taken += 1
        path = path.with_name(f"{name}-{taken}")
    return path


def write_private(out: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder that only its owner can access (mode 0700).

    Args:
      out: the folder; created if necessary.
      files: contents by file name; existing files with these names are replaced.
    """
    make_folder(out)
    out.chmod(0o700)
    for name, content in files.items():
        write_atomically(out / name, content)


@contextlib.contextmanager
def held_alone(folder: Path, taken: Refused, reads: bool = False) -> Iterator[None]:
    """Returns a context in which this process holds the lock of `folder`.

    Args:
      folder: the folder to lock.
      taken: the error to raise if another process holds the lock.
      reads: whether this process only reads the folder. If it then has no write access to the
        folder, it shares the lock with other readers or, without a lock file, locks nothing.

    Raises:
      Refused: `taken`, if another process holds the lock.
    """
    if reads and not os.access(folder, os.W_OK):
        with _held_to_read(folder / _LOCK, taken):
            yield
        return
    lock = filelock.FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=_MOMENT, poll_interval=_MOMENT / 10)
    except filelock.Timeout as error:
        raise taken from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _held_to_read(file: Path, taken: Refused) -> Iterator[None]:
    """Returns a context that holds a shared lock on `file`; it locks nothing if there is no file.

    Raises `taken` if another process has locked the file for itself.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise taken from error
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock of `folder`; False if this cannot be determined."""
    file = folder / _LOCK
    if not file.is_file():
        return False
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False
