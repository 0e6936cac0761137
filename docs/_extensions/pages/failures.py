"""How commands end: exit codes, kinds of errors, and the object that `--json` prints."""

from __future__ import annotations

import json

from click.testing import CliRunner

from pages.markdown import code, table
from privfed.cli.main import main
from privfed.core.failures import EXIT_CODES, KINDS


def exit_codes() -> str:
    """A table of them."""
    return table(["exit code", "meaning"], [(code(n), text) for n, text in EXIT_CODES.items()])


def error_kinds() -> str:
    """A table of them."""
    return table(["kind", "meaning"], [(code(kind), text) for kind, text in KINDS.items()])


def error_example() -> str:
    """A command that fails, and the object that it prints."""
    words = ["check", "--set", 'client.lr="x"', "--json"]
    printed = CliRunner().invoke(main, words).stdout
    line = "privfed check --set 'client.lr=\"x\"' --json"
    return f"```console\n{line}\n```\n\n```json\n{json.dumps(json.loads(printed), indent=2)}\n```\n"
