"""The program as a whole: what is wrong with its line ends as every other failure does."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from privfed.failures import AS_JSON, INTERRUPTED, fail, failed
from privfed.visible import visible


class CommandLine(click.Group):
    """The commands, and the line that names one."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As `click.Group.main`: in `standalone_mode` it ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        given = sys.argv[1:] if args is None else list(args)
        before = AS_JSON.set("--json" in given)
        try:
            code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            code = _misused(error)
        except click.Abort:
            code = fail("interrupted; nothing was changed", INTERRUPTED, "interrupted")
        finally:
            AS_JSON.reset(before)
        sys.exit(code if isinstance(code, int) else 0)


def _misused(error: click.ClickException) -> int:
    """As click says it, and in JSON where that was asked for."""
    said = io.StringIO()
    error.show(said)
    click.echo(visible(said.getvalue()), err=True, nl=False)
    failed(error.format_message(), error.exit_code, "usage")
    return error.exit_code
