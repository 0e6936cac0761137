"""Reports a failed command: one message and one exit code for each kind of error.

Messages quote no private data unless a command asks for it. This holds for refusals as well as for
bugs and warnings, whose texts come from libraries that quote their input.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import click

from accounting.errors import LedgerBroken
from privfed.core.errors import (
    ON_COMMAND_LINE,
    PrivfedError,
    Refused,
    private_text,
    public_text,
    ran_out_of_memory,
)
from privfed.core.text import dump, visible
from privfed.core.user_code import in_user_code, user_frames

OUR_FAULT, STOPPED_AT_BUDGET, REFUTED, BROKEN, INTERRUPTED = 1, 3, 4, 5, 130
EXIT_CODES = {
    0: "done",
    OUR_FAULT: "a bug, ours or in a part of your own (its line is shown); or cells that failed",
    Refused.exit_code: "bad input, a combination without a proof, or a missing system resource",
    STOPPED_AT_BUDGET: "a run stopped at its budget, before all of its rounds",
    REFUTED: "an audit refutes the claim, or a claim does not follow from its evidence",
    BROKEN: "a ledger or a run directory is edited or incomplete",
    INTERRUPTED: "interrupted by Ctrl-C or a service manager; a run can be resumed",
}
"""The exit codes of all commands."""
KINDS = {
    "refused": "bad input, or a combination without a proof",
    "usage": "the command line itself",
    "busy": "another process uses the same files",
    "lost": "another process of the same run has died",
    "system": "a file, a folder or a device that the system does not provide",
    "memory": "not enough memory",
    "failed": "cells of an experiment failed",
    "broken": "a ledger or a run directory is edited or incomplete",
    "interrupted": "Ctrl-C, or a service manager",
    "bug": "a bug in privfed, or in a part of the user's own",
}
"""The kinds of failures, as JSON names them."""
SHOW_VALUES = "--show-values"
"""The flag with which commands quote private data in their messages."""
_QUOTES: ContextVar[bool | None] = ContextVar("_QUOTES", default=None)
"""Whether messages quote private data; None: they do not, and no flag changes that."""
_AS_JSON: ContextVar[bool] = ContextVar("_AS_JSON", default=False)
"""Whether standard output is for one JSON object."""


@contextlib.contextmanager
def reporting(quotes: bool | None, as_json: bool) -> Iterator[None]:
    """Returns a context that sets how messages are written: with flags and commands.

    It catches no error, and prints none; the functions below do, in this context.

    Args:
      quotes: whether messages quote private data. None: they do not, and no message names the flag
        --show-values.
      as_json: whether standard output is for one JSON object, which also states a failure.
    """
    before = _QUOTES.set(quotes), _AS_JSON.set(as_json), ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _QUOTES.reset(before[0])
        _AS_JSON.reset(before[1])
        ON_COMMAND_LINE.reset(before[2])


def report_error(error: BaseException, advice: str = "", **facts: Any) -> int:
    """Prints the message of the `error` that ended a command.

    Args:
      error: the exception.
      advice: what the user can do now; not printed for a bug or a lack of memory.
      facts: entries that the JSON object has in addition to the error.

    Returns:
      The exit code.
    """
    match error:
        case KeyboardInterrupt():
            message = "; ".join(filter(None, ("interrupted", advice)))
            return report_failure(message, INTERRUPTED, "interrupted", **facts)
        case PrivfedError():
            message = error_message(error, advice)
            return report_failure(message, error.exit_code, error.kind, error.key, **facts)
        case LedgerBroken():
            return report_failure(error_message(error, advice), BROKEN, "broken", **facts)
        case OSError() if not ran_out_of_memory(error):
            public = _with_advice(error, advice) + in_user_code(error)
            message = _with_private_text(public, error)
            return report_failure(message, Refused.exit_code, "system", **facts)
    if ran_out_of_memory(error):
        smaller = "not enough memory; lower run.chunk or cohort.size, or use a smaller model"
        message = _with_private_text(smaller + in_user_code(error), error)
        if isinstance(error, ImportError | OSError):  # the loader's text: no data
            smaller = "not enough memory to load a library; raise the limit of the process"
            message = smaller + in_user_code(error)
        return report_failure(message, Refused.exit_code, "memory", **facts)
    return report_failure(bug_message(error), OUR_FAULT, "bug", **facts)


def error_message(error: BaseException, advice: str = "") -> str:
    """Returns the message for `error`, followed by `advice`.

    If there is private text, it is appended if messages quote private data (`reporting`). Otherwise
    a hint at the flag --show-values is appended, unless `reporting` set None: the flag then changes
    nothing.
    """
    return _with_private_text(_with_advice(error, advice), error)


def _with_advice(error: BaseException, advice: str) -> str:
    return "; ".join(filter(None, (public_text(error), advice)))


def _with_private_text(public: str, error: BaseException) -> str:
    """Returns `public` with the private text of `error` or a hint, as in `error_message`."""
    private = private_text(error)
    if not private or _QUOTES.get() is None:
        return public
    hint = f"{SHOW_VALUES} gives details, and quotes the data"
    return f"{public}\n{private if _QUOTES.get() else hint}"


def bug_message(error: BaseException) -> str:
    """Returns the type and traceback of `error`; its text only if messages quote private data.

    The traceback of an error in a user's own code has the user's frames only.
    """
    if frames := user_frames(error):
        return _with_private_text(f"{public_text(error)} in your own code, from\n{frames}", error)
    if _QUOTES.get():
        return f"a bug:\n{''.join(traceback.format_exception(error)).rstrip()}"
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return _with_private_text(f"a bug, {public_text(error)}, from\n{places}", error)


def ends_silently(error: BaseException) -> bool:
    """Whether `error` ends a process without a message: an interrupt, or a plain `SystemExit`.

    The code of a plain `SystemExit` is a number or None, and not a text.
    """
    silent = isinstance(error, SystemExit) and isinstance(error.code, int | None)
    return silent or isinstance(error, KeyboardInterrupt)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Returns a context in which Python's own reports state only a problem's type and location.

    These are reports of warnings, uncaught exceptions of threads and unraisable exceptions. Their
    texts may come from libraries and quote data; they are printed only if messages quote data.
    """
    before = warnings.formatwarning, threading.excepthook, sys.unraisablehook
    warnings.formatwarning = _visibly(before[0]) if _QUOTES.get() else _kind_and_place
    threading.excepthook = sys.unraisablehook = _uncaught_hook(bool(_QUOTES.get()))
    try:
        yield
    finally:
        warnings.formatwarning, threading.excepthook, sys.unraisablehook = before


def _visibly(format_warning: Callable[..., str]) -> Callable[..., str]:
    """Returns `format_warning` with characters escaped that control a terminal."""
    return lambda *args, **kwargs: visible(format_warning(*args, **kwargs))


def _kind_and_place(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Formats a warning without its text; has the signature of `warnings.formatwarning`."""
    return visible(f"{filename}:{lineno}: {category.__name__}\n")


def _uncaught_hook(quotes: bool) -> Callable[[Any], None]:
    """Returns a hook that reports threads' uncaught exceptions; for `quotes`, see `reporting`."""

    def report_uncaught(args: Any) -> None:
        if args.exc_type is KeyboardInterrupt:  # nothing could catch it here: raise it again soon
            threading.Timer(0.05, _thread.interrupt_main).start()
        elif args.exc_type is not SystemExit:
            before = _QUOTES.set(quotes)
            say(bug_message(args.exc_value or args.exc_type()))
            _QUOTES.reset(before)

    return report_uncaught


def report_failure(
    message: str, code: int, kind: str = "refused", key: str | None = None, **facts: Any
) -> int:
    """Prints `message` on standard error, and the failure as JSON if JSON was requested.

    Args:
      message: the text to print.
      code: the exit code.
      kind: one of `KINDS`.
      key: the key of a run file that the failure concerns, if any.
      facts: further entries of the JSON object.

    Returns:
      `code`.
    """
    assert kind in KINDS
    say(message)
    print_failure(message, code, kind, key, **facts)
    return code


def print_failure(message: str, code: int, kind: str, key: str | None = None, **facts: Any) -> None:
    """Prints the JSON object of a failed command, if JSON was requested.

    If standard output cannot be written, the message on standard error is the only report.
    """
    if _AS_JSON.get():
        error = {"kind": kind, "message": message, "key": key}
        with contextlib.suppress(OSError):
            click.echo(dump({**facts, "error": error, "exit": code}))


def say(message: str) -> None:
    """Prints `message` on standard error after "privfed: "; control characters are escaped."""
    lines = visible(message).splitlines() or [""]
    click.echo(f"privfed: {lines[0]}", err=True)
    for line in lines[1:]:
        click.echo(f"         {line}", err=True)
