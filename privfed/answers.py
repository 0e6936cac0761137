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
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import click

from privfed.errors import (
    PrivfedError,
    Refused,
    private_text,
    public_text,
    ran_out_of_memory,
)

OUR_FAULT, STOPPED_AT_BUDGET, REFUTED, BROKEN, INTERRUPTED = 1, 3, 4, 5, 130
_FLAG = "--show-values"
_QUOTES: ContextVar[bool | None] = ContextVar("_QUOTES", default=None)
"""Whether messages quote private data; None: no, and there is no flag that would change it."""


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
        before = _QUOTES.set(quotes(kwargs))
        try:
            with guarded():
                code = _code(functools.partial(command, *args, **kwargs))
        finally:
            _QUOTES.reset(before)
        sys.exit(code)

    return run


def _code(command: Callable[[], int]) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        return fail("interrupted; nothing was changed", INTERRUPTED)
    except PrivfedError as error:
        return fail(message(error), error.exit_code)
    except OSError as error:
        return fail(message(error), Refused.exit_code)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BaseException as error:
        if ran_out_of_memory(error):
            smaller = "not enough memory; make the run smaller: run.chunk, cohort.size, the model"
            return fail(_beside(smaller, error), Refused.exit_code)
        if _QUOTES.get() or says_nothing(error):
            raise
        return fail(bug(error), OUR_FAULT)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def message(error: BaseException, advice: str = "") -> str:
    """What a command says of `error`, and `advice`: with what is private, or how to ask for it."""
    return _beside("; ".join(filter(None, (public_text(error), advice))), error)


def _beside(public: str, error: BaseException) -> str:
    private = private_text(error)
    if not private or _QUOTES.get() is None:
        return public
    if not _QUOTES.get():
        return f"{public}\n{_FLAG} says more, and quotes the data"
    # Not as it stands: what a file holds may be meant for the terminal.
    return f"{public}\n{''.join(c if c.isprintable() else ' ' for c in private)}"


def bug(error: BaseException) -> str:
    """Where `error` came from, and of what kind it is: without its text, which may quote data."""
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return _beside(f"a bug, {public_text(error)}, from\n{places}", error)


def says_nothing(error: BaseException) -> bool:
    """Whether `error` ends a process without a word: an interrupt, or an exit with a number."""
    silent = isinstance(error, SystemExit) and isinstance(error.code, int | None)
    return silent or isinstance(error, KeyboardInterrupt)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """What Python prints by itself is said by its kind and place: the texts are libraries' too.

    That is: warnings, and what ended a thread or was raised where nobody could catch it.
    """
    if _QUOTES.get():
        yield
        return
    before = warnings.formatwarning, threading.excepthook, sys.unraisablehook
    warnings.formatwarning = _placed
    threading.excepthook = sys.unraisablehook = _died
    try:
        yield
    finally:
        warnings.formatwarning, threading.excepthook, sys.unraisablehook = before


def _placed(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"{filename}:{lineno}: {category.__name__}\n"


def _died(args: Any) -> None:
    if args.exc_type is KeyboardInterrupt:  # it hit where nobody could catch it: soon once more
        threading.Timer(0.05, _thread.interrupt_main).start()
    elif args.exc_type is not SystemExit:
        fail(bug(args.exc_value or args.exc_type()), OUR_FAULT)


def fail(message: str, code: int) -> int:
    lines = message.splitlines() or [""]
    click.echo(f"privfed: {lines[0]}", err=True)
    for line in lines[1:]:
        click.echo(f"         {line}", err=True)
    return code
