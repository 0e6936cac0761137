"""The errors that are no bugs: what privfed tells a user who asked for what cannot be done."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from accounting.errors import AccountingError

MISPLACED = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""A run's file is missing, or something else lies in its place: what is there is no run."""


class PrivfedError(Exception):
    """Base of every error that is not a bug; the message says what to change.

    The message is for anybody: it names files, rows and what was declared, and quotes no private
    data. What stands in the data, and what a library wrote of it, is `private`: it is no part of
    `str(error)` and shown by commands only that are asked to (--show-values). Where an exception
    led here that may quote data, raise this one `from None`. `key` is the key of a run file that
    it is about, "client.lr", where there is one.
    """

    exit_code = 2
    kind = "refused"
    """How JSON names the error: see `privfed.core.failures.KINDS`."""

    def __init__(self, message: str, private: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.private = private
        self.key = key


class Refused(PrivfedError):
    """Bad input, or a combination that has no proof."""


class Busy(Refused):
    """Another process is at work on the same files; later the same may well be possible."""

    kind = "busy"


class LiarsProved(Refused):
    """More parties were proved to lie in secure sums than the claim of a next round allows."""


class RankLost(PrivfedError):
    """Another rank has died or cannot be reached, or not all did their part exactly once."""

    kind = "lost"


class Broken(PrivfedError):
    """A ledger or a run directory was edited or does not fit together."""

    exit_code = 5
    kind = "broken"


def public_text(error: BaseException) -> str:
    """What `error` says without quoting private data: of a library's error, only its kind.

    The system's own errors are spelt out in the system's words, of which none come out of a file.
    """
    if isinstance(error, PrivfedError | AccountingError):
        return str(error)
    if words := _system_words(error):
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return f"{where}{words}"
    return type(error).__name__


def private_text(error: BaseException) -> str:
    """What `error` says beside `public_text`, which may quote private data."""
    if isinstance(error, PrivfedError):
        return error.private
    if isinstance(error, AccountingError):
        return ""
    words = _system_words(error)
    told_already = words and isinstance(error, OSError) and error.strerror in (words, None)
    return "" if told_already else " ".join(str(error).split())


def _system_words(error: BaseException) -> str:
    """What the operating system says of its own errors; "" for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number in errno.errorcode else ""


_UNALLOCATED = (
    *("can't allocate memory", "Storage size calculation overflowed", "out of memory"),
    "can't start new thread",
)
"""What RuntimeErrors of torch and Python say where there is too little; they have no class."""
_UNLOADED = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory")
"""What the loader of libraries says there, in an ImportError, or an OSError without a number."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is that there is not enough memory."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _UNALLOCATED)
    if isinstance(error, ImportError | OSError):
        return any(words in str(error).lower() for words in _UNLOADED)
    return isinstance(error, MemoryError)


def unreadable(what: object, error: BaseException) -> PrivfedError:
    """The error that `what`, a run's file, cannot be read; it quotes nothing of the content.

    It is `Broken`, or `Refused` where the system does not give the file and it is not missing: then
    nothing shows that it is broken.
    """
    kind = Refused if _system_words(error) and not isinstance(error, MISPLACED) else Broken
    return kind(f"{what} cannot be read: {public_text(error)}", private_text(error))


_MEMORY = Path("/proc/meminfo")
_NEEDED = {"numpy": 200 << 20, "scipy": 340 << 20, "torch": 790 << 20}
_OF_A_THREAD = 40 << 20
"""Bytes of addresses that a library needs to be loaded, and more for each processor."""


def refuse_little_memory(library: str) -> None:
    """Raises `Refused` where the process may use less memory than it takes to load `library`.

    With less, they end in any way: NumPy's linear algebra asks for buffers without end, and what
    PyTorch throws while it is loaded ends the process.
    """
    if library not in _NEEDED:
        return
    try:
        import resource
    except ImportError:  # of systems that have no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    least = _NEEDED[library] + _OF_A_THREAD * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < least:
        raise Refused(
            f"the process may use {limit >> 20} MiB of memory (ulimit -v), but loading {library} "
            f"takes {least >> 20} MiB; raise the limit"
        )


def free_memory() -> int | None:
    """The bytes that the system can give without swapping; None where it does not say."""
    try:
        available = re.search(
            r"^MemAvailable: +(\d+) kB$", _MEMORY.read_text("ascii"), re.MULTILINE
        )
    except OSError:
        return None
    return int(available[1]) << 10 if available else None


def refuse_too_large(what: str, size: int, instead: str) -> None:
    """Raises `Refused` where `what` unpacks to `size` bytes, more than are free.

    Args:
      what: names the file and the part of it.
      size: bytes that it will take.
      instead: what to do.
    """
    free = free_memory()
    if free is not None and size > free:
        raise Refused(
            f"{what} unpacks to {size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are "
            f"free; {instead}"
        )
