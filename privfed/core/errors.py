"""The errors that are not bugs: their messages state how the user can correct the problem."""

from __future__ import annotations

import errno
import os
import re
import shlex
from contextvars import ContextVar
from pathlib import Path

from accounting.errors import AccountingError

MISPLACED = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Exceptions of Python for a missing file, or for a folder in place of a file or the reverse."""

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("ON_COMMAND_LINE", default=False)
"""Whether messages are for users of the command line; otherwise they are for users of Python."""
_CALLS = {
    "privfed train --resume (.+)": "privfed.resume({})",
    "privfed train --out (.+)": "privfed.train(out={})",
    "privfed audit ([^-].*)": "privfed.audit({})",
    "privfed report ([^-].*)": "privfed.load({}).report()",
    "privfed evaluate RUN --data PATH --predictions FILE": "run.evaluate(PATH, predictions=FILE)",
    "privfed evaluate RUN --federated --epsilon E": "run.evaluate_by_clients(epsilon=E)",
}
"""The Python call that replaces a command in messages, by a regular expression of the command."""
_COMMAND = re.compile(r"`(privfed [^`]+)`|\A(privfed [^`]+)\Z")
_FLAG = re.compile(r"""(?<![\w\-/.'"])--([a-z][a-z-]*)(?=[^`]*(?:`[^`]*`[^`]*)*\Z)""")
"""Regular expression of a flag that is not between backquotes."""


def for_interface(text: str) -> str:
    """Returns `text` with flags and commands replaced by what the user's interface has instead.

    On the command line, `text` is unchanged. In Python, a flag is replaced by the argument of the
    same name, and a command in backquotes (or a text that is one command) by a call. A command
    without a counterpart in Python is unchanged.
    """
    if ON_COMMAND_LINE.get() or ("--" not in text and "privfed " not in text):
        return text
    return _FLAG.sub(lambda flag: flag[1].replace("-", "_"), _COMMAND.sub(_as_call, text))


def resume_command(run: Path) -> str:
    """Returns the command that resumes the run in the directory `run`, in backquotes."""
    return f"`privfed train --resume {shlex.quote(str(run))}`"


def _as_call(command: re.Match[str]) -> str:
    """Returns the Python call for a command; the command itself if there is none."""
    for pattern, call in _CALLS.items():
        if given := re.fullmatch(pattern, command[1] or command[2]):
            words = [repr(word) for words in given.groups() for word in shlex.split(words)]
            return call.format(f"[{', '.join(words)}]" if words[1:] else "".join(words))
    return command[0]


class PrivfedError(Exception):
    """Base of every error that is not a bug; the message states a remedy.

    The message is public: it names files, rows and declarations, and quotes no private data. Text
    that may quote data, such as values or a library's message, belongs in `private`. It is not part
    of `str(error)`, and commands print it only with --show-values. If the causing exception may
    quote data, raise this error `from None`.

    The message names flags, and commands in backquotes; `str(error)` is the message in the terms of
    the interface in use (`for_interface`).

    Args:
      message: the public text.
      private: further text that may quote private data.
      key: the key of a run file that the error concerns, such as "client.lr", if any.
    """

    exit_code = 2
    kind = "refused"
    """Name of the error in JSON: see `privfed.core.failures.KINDS`."""

    def __init__(self, message: str, private: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.private = private
        self.key = key

    def __str__(self) -> str:
        return for_interface(super().__str__())


class Refused(PrivfedError):
    """Raised for bad input, or for a combination of settings whose guarantee is not proved."""


class Busy(Refused):
    """Raised if another process uses the same files; the call may succeed later."""

    kind = "busy"


class TooManyByzantine(Refused):
    """Raised if secure sums identified more Byzantine parties than the guarantee allows."""


class RankLost(PrivfedError):
    """Raised if a process (rank) of a run failed or cannot be reached, or miscounted its work."""

    kind = "lost"


class Broken(PrivfedError):
    """Raised if a ledger or a run directory was edited or is inconsistent."""

    exit_code = 5
    kind = "broken"


def public_text(error: BaseException) -> str:
    """Returns a text about `error` without private data.

    For privfed's own errors, it is their message; for an error of the operating system, the
    system's message, which never quotes contents of files; for any other error, only its type.
    """
    if isinstance(error, PrivfedError | AccountingError):
        return str(error)
    if words := _system_words(error):
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return f"{where}{words}"
    return type(error).__name__


def private_text(error: BaseException) -> str:
    """Returns the text of `error` that `public_text` omits because it may quote private data.

    "" if there is no such text.
    """
    if isinstance(error, PrivfedError):
        return error.private
    if isinstance(error, AccountingError):
        return ""
    words = _system_words(error)
    already_stated = words and isinstance(error, OSError) and error.strerror in (words, None)
    return "" if already_stated else " ".join(str(error).split())


def _system_words(error: BaseException) -> str:
    """Returns the operating system's message for its own errors; "" for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number in errno.errorcode else ""


_UNALLOCATED = (
    *("can't allocate memory", "Storage size calculation overflowed", "out of memory"),
    "can't start new thread",
)
"""Texts of RuntimeErrors that torch and Python raise for lack of memory; they have no class."""
_UNLOADED = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory")
"""Texts of the library loader for lack of memory: an ImportError, or an OSError without a number.
"""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` reports a lack of memory."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _UNALLOCATED)
    if isinstance(error, ImportError | OSError):
        return any(words in str(error).lower() for words in _UNLOADED)
    return isinstance(error, MemoryError)


def unreadable(what: object, error: BaseException) -> PrivfedError:
    """Returns the error for a file of a run that cannot be read; its message quotes no content.

    Args:
      what: names the file.
      error: the exception that reading it raised.

    Returns:
      `Refused` if the operating system cannot read an existing file, which may be intact, for
      example for lack of permission; otherwise `Broken`, also if the file is missing.
    """
    kind = Refused if _system_words(error) and not isinstance(error, MISPLACED) else Broken
    return kind(f"{what} cannot be read: {public_text(error)}", private_text(error))


_MEMORY = Path("/proc/meminfo")
_NEEDED = {"numpy": 200 << 20, "scipy": 340 << 20, "torch": 790 << 20}
_OF_A_THREAD = 40 << 20
"""Bytes of address space that loading a library takes (`_NEEDED`), and those for each processor."""


def refuse_little_memory(library: str) -> None:
    """Raises `Refused` if the process's memory limit is too low to load `library`.

    With less memory, NumPy's linear algebra requests buffers in an endless loop, and PyTorch's
    loader terminates the process.
    """
    if library not in _NEEDED:
        return
    try:
        import resource
    except ImportError:  # systems that have no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    least = _NEEDED[library] + _OF_A_THREAD * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < least:
        raise Refused(
            f"the memory limit of the process (ulimit -v) is {limit >> 20} MiB, but loading "
            f"{library} takes {least >> 20} MiB; raise the limit"
        )


def free_memory() -> int | None:
    """Returns the bytes available without swapping; None if the system does not report them."""
    try:
        available = re.search(
            r"^MemAvailable: +(\d+) kB$", _MEMORY.read_text("ascii"), re.MULTILINE
        )
    except OSError:
        return None
    return int(available[1]) << 10 if available else None


def refuse_too_large(what: str, size: int, instead: str) -> None:
    """Raises `Refused` if `size`, the unpacked size of a file's content, exceeds the free memory.

    Accepts any size if the system does not report its free memory.

    Args:
      what: the name of the file and of the content that is unpacked, for the message.
      size: unpacked size in bytes.
      instead: the advice that ends the message.
    """
    free = free_memory()
    if free is not None and size > free:
        raise Refused(
            f"{what} unpacks to {size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are "
            f"free; {instead}"
        )
