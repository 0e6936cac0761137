"""How commands end: one message and an exit code for what users can cause."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from privfed.errors import PrivfedError, Refused

OUR_FAULT, STOPPED_AT_BUDGET, REFUTED, BROKEN, INTERRUPTED = 1, 3, 4, 5, 130


def answers_errors(command: Callable[..., int]) -> Callable[..., None]:
    """Turn what users can cause into one message and an exit code; bugs keep their traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        # A service manager stops a run as a person does: by Ctrl-C, resumable.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            code = command(*args, **kwargs)
        except KeyboardInterrupt:
            code = fail("interrupted; nothing was changed", INTERRUPTED)
        except PrivfedError as error:
            code = fail(str(error), error.exit_code)
        except OSError as error:
            code = fail(what(error), Refused.exit_code)
        except MemoryError as error:
            code = fail(f"not enough memory: {error}; make the run smaller", Refused.exit_code)
        sys.exit(code)

    return run


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def what(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def fail(message: str, code: int) -> int:
    lines = message.splitlines() or [""]
    click.echo(f"privfed: {lines[0]}", err=True)
    for line in lines[1:]:
        click.echo(f"         {line}", err=True)
    return code
