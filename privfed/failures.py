"""How commands end: one message and an exit code for what users can cause.

Messages quote no private data unless a command is asked to: neither those of refusals nor those of
bugs and warnings, whose texts come from libraries that quote what they choke on.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import click

from accounting.errors import LedgerBroken
from privfed.errors import (
    PrivfedError,
    Refused,
    private_text,
    public_text,
    ran_out_of_memory,
)
from privfed.json_text import dump
from privfed.own_code import in_own_code, own_frames
from privfed.visible import visible

OUR_FAULT, STOPPED_AT_BUDGET, REFUTED, BROKEN, INTERRUPTED = 1, 3, 4, 5, 130
KINDS = {
    "refused": "bad input, or a combination that has no proof",
    "usage": "the command line itself",
    "busy": "another process is at it",
    "lost": "another process of the same run has died",
    "system": "the system does not give a file, a folder or a device",
    "memory": "there is not enough",
    "failed": "cells of an experiment failed",
    "broken": "a ledger or a run directory is edited or incomplete",
    "interrupted": "Ctrl-C, or a service manager",
    "bug": "ours, or one in a part of the user's own",
}
"""Of failures, in JSON."""
_FLAG = "--show-values"
_QUOTES: ContextVar[bool | None] = ContextVar("_QUOTES", default=None)
"""Whether messages quote private data; None: no, and there is no flag that would change it."""
AS_JSON: ContextVar[bool] = ContextVar("AS_JSON", default=False)
"""Whether standard output is for one JSON object."""


def answers_errors(command: Callable[..., int]) -> Callable[..., None]:
    """Turn what users can cause into one message and an exit code; bugs keep their traceback.

    For commands that read nothing private.
    """
    return _answering(command, lambda given: True)


def quotes_on_request(command: Callable[..., int]) -> Callable[..., None]:
    """The same for commands that read private data: it is quoted with the flag --show-values."""
    option = click.option(
        _FLAG,
        is_flag=True,
        help="Quote in messages what stands in the data, which is private.",
    )
    return option(_answering(command, lambda given: bool(given.pop("show_values"))))


def never_quotes(command: Callable[..., int]) -> Callable[..., None]:
    """The same for commands that read private data and write their messages into tables."""
    return _answering(command, lambda given: None)


def _answering(
    command: Callable[..., int], quotes: Callable[[dict[str, Any]], bool | None]
) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        # A service manager stops a run as a person does: by Ctrl-C, resumable.
        signal.signal(signal.SIGTERM, _interrupt)
        before = _QUOTES.set(quotes(kwargs)), AS_JSON.set(bool(kwargs.get("as_json")))
        try:
            with guarded():
                code = _code(functools.partial(command, *args, **kwargs))
        finally:
            _QUOTES.reset(before[0])
            AS_JSON.reset(before[1])
        sys.exit(code)

    return run


def _code(command: Callable[[], int]) -> int:
    try:
        return command()
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and says_nothing(error):
            raise
        return ended(error)


def ended(error: BaseException, advice: str = "", **beside: Any) -> int:
    """Say how `error` ended a command, and return the exit code.

    `advice` says what to do now. JSON has what is `beside` the error, too.
    """
    match error:
        case KeyboardInterrupt():
            said = f"interrupted; {advice or 'nothing was changed'}"
            return fail(said, INTERRUPTED, "interrupted", **beside)
        case PrivfedError():
            said = message(error, advice)
            return fail(said, error.exit_code, error.kind, error.key, **beside)
        case LedgerBroken():
            return fail(message(error, advice), BROKEN, "broken", **beside)
        case OSError():
            said = _beside(_with_advice(error, advice) + in_own_code(error), error)
            return fail(said, Refused.exit_code, "system", **beside)
    if ran_out_of_memory(error):
        smaller = "not enough memory; make the run smaller: run.chunk, cohort.size, the model"
        said = _beside(smaller + in_own_code(error), error)
        return fail(said, Refused.exit_code, "memory", **beside)
    return fail(bug(error), OUR_FAULT, "bug", **beside)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def message(error: BaseException, advice: str = "") -> str:
    """What a command says of `error`, and `advice`: with what is private, or how to ask for it."""
    return _beside(_with_advice(error, advice), error)


def _with_advice(error: BaseException, advice: str) -> str:
    return "; ".join(filter(None, (public_text(error), advice)))


def _beside(public: str, error: BaseException) -> str:
    private = private_text(error)
    if not private or _QUOTES.get() is None:
        return public
    return f"{public}\n{private if _QUOTES.get() else f'{_FLAG} says more, and quotes the data'}"


def bug(error: BaseException) -> str:
    """Where `error` came from, and of what kind it is: without its text, which may quote data.

    Of one in a user's own code, their frames alone. Where messages quote, all that Python says.
    """
    if own := own_frames(error):
        return _beside(f"{public_text(error)} in your own code, from\n{own}", error)
    if _QUOTES.get():
        return f"a bug:\n{''.join(traceback.format_exception(error)).rstrip()}"
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return _beside(f"a bug, {public_text(error)}, from\n{places}", error)


def says_nothing(error: BaseException) -> bool:
    """Whether `error` ends a process without a word: an interrupt, or an exit with a number."""
    silent = isinstance(error, SystemExit) and isinstance(error.code, int | None)
    return silent or isinstance(error, KeyboardInterrupt)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """What Python prints by itself is said by its kind and place: the texts are libraries' too.

    That is: warnings, and what ended a thread or was raised where nobody could catch it. Where
    messages quote, with its text.
    """
    before = warnings.formatwarning, threading.excepthook, sys.unraisablehook
    warnings.formatwarning = _quoted(before[0]) if _QUOTES.get() else _placed
    threading.excepthook = sys.unraisablehook = _died(bool(_QUOTES.get()))
    try:
        yield
    finally:
        warnings.formatwarning, threading.excepthook, sys.unraisablehook = before


def _quoted(written: Callable[..., str]) -> Callable[..., str]:
    """As Python writes warnings, but for what a terminal would obey."""
    return lambda *args, **kwargs: visible(written(*args, **kwargs))


def _placed(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return visible(f"{filename}:{lineno}: {category.__name__}\n")


def _died(quotes: bool) -> Callable[[Any], None]:
    """A hook that says what `_QUOTES` allows, which other threads cannot see."""

    def hook(args: Any) -> None:
        if args.exc_type is KeyboardInterrupt:  # where nobody could catch it: soon once more
            threading.Timer(0.05, _thread.interrupt_main).start()
        elif args.exc_type is not SystemExit:
            before = _QUOTES.set(quotes)
            say(bug(args.exc_value or args.exc_type()))
            _QUOTES.reset(before)

    return hook


def fail(
    message: str, code: int, kind: str = "refused", key: str | None = None, **beside: Any
) -> int:
    """Say `message` on standard error, and in JSON where that was asked for; return `code`.

    `kind` is one of `KINDS`, and `key` the key of a run file that it is about.
    """
    assert kind in KINDS
    say(message)
    failed(message, code, kind, key, **beside)
    return code


def failed(message: str, code: int, kind: str, key: str | None = None, **beside: Any) -> None:
    """The object that ends a command which failed, where JSON was asked for."""
    if AS_JSON.get():
        told = {"kind": kind, "message": message, "key": key}
        click.echo(dump({**beside, "error": told, "exit": code}))


def say(message: str) -> None:
    """Lines on standard error, of which none can do anything to a terminal."""
    lines = visible(message).splitlines() or [""]
    click.echo(f"privfed: {lines[0]}", err=True)
    for line in lines[1:]:
        click.echo(f"         {line}", err=True)


def answer(found: Mapping[str, Any], code: int = 0) -> int:
    """Print what `--json` asks for, which says its own exit code where that is not 0."""
    click.echo(dump({**found, "exit": code} if code else found))
    return code
