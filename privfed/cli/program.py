"""The program as a whole: a wrong command line ends it as every other failure does."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from privfed.failures import (
    INTERRUPTED,
    print_failure,
    report_error,
    report_failure,
    reporting,
)
from privfed.visible import visible


class CommandLine(click.Group):
    """The group of all commands, which reports mistakes in the line that names one."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """What `click.Group.main` does: in `standalone_mode` it ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        words = sys.argv[1:] if args is None else list(args)
        with reporting(quotes=None, as_json="--json" in words):
            try:
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
            except click.ClickException as error:
                code = _report_misuse(error)
            except OSError as error:  # standard output takes nothing
                code = report_error(error)
            except click.Abort:
                message = "interrupted; nothing was changed"
                code = report_failure(message, INTERRUPTED, "interrupted")
        sys.exit(code if isinstance(code, int) else 0)


def _report_misuse(error: click.ClickException) -> int:
    """Say what is wrong with the line as click says it, and in JSON where that was asked for."""
    usage = io.StringIO()
    error.show(usage)
    click.echo(visible(usage.getvalue()), err=True, nl=False)
    print_failure(error.format_message(), error.exit_code, "usage")
    return error.exit_code
