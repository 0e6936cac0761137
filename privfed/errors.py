"""What privfed tells a user who asked for something that cannot be done."""

from __future__ import annotations

import errno
import os

from accounting.errors import AccountingError

MISPLACED = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""That a run's file is missing, or something else lies in its place: what was seen is no run."""


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
    """In JSON: see `privfed.failures.KINDS`."""

    def __init__(self, message: str, private: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.private = private
        self.key = key


class Refused(PrivfedError):
    """Bad input, or a combination that has no proof."""


class Busy(Refused):
    """Another process is at it; later the same may well be possible."""

    kind = "busy"


class RankLost(PrivfedError):
    """Another rank has died or cannot be reached, or not all did their part exactly once."""

    kind = "lost"


class Broken(PrivfedError):
    """A ledger or a run directory was edited or does not fit together."""

    exit_code = 5
    kind = "broken"


def public_text(error: BaseException) -> str:
    """What of `error` quotes no private data: a library's text may, so that only its kind is left.

    The system's own errors are spelt out in the system's words, of which none come out of a file.
    """
    if isinstance(error, PrivfedError | AccountingError):
        return str(error)
    if words := _systems(error):
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return f"{where}{words}"
    return type(error).__name__


def private_text(error: BaseException) -> str:
    """The rest, which may quote private data."""
    if isinstance(error, PrivfedError):
        return error.private
    if isinstance(error, AccountingError):
        return ""
    words = _systems(error)
    known = words and isinstance(error, OSError) and error.strerror in (words, None)
    return "" if known else " ".join(str(error).split())


def _systems(error: BaseException) -> str:
    """What the system says of its error; nothing, of another's."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number in errno.errorcode else ""


_UNALLOCATED = ("can't allocate memory", "Storage size calculation overflowed", "out of memory")
"""What torch's RuntimeErrors say where it cannot have what it asks for; they have no class."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is that there is not enough memory."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _UNALLOCATED)
    return isinstance(error, MemoryError)


def unreadable(what: object, error: BaseException) -> PrivfedError:
    """That a run's file cannot be read: of what it holds, nothing is in the message.

    What the system does not give was not seen to be broken, unless it is not there.
    """
    kind = Refused if _systems(error) and not isinstance(error, MISPLACED) else Broken
    return kind(f"{what} cannot be read: {public_text(error)}", private_text(error))
