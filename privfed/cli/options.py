"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

ANYTHING = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)

OPTIONAL_RUN_FILE = click.argument("run_file", metavar="[RUN.toml]", required=False, type=ANYTHING)
RUN_DIRECTORY = click.argument("directory", metavar="RUN_DIR", type=DIRECTORY)
OVERRIDES = click.option(
    "--set", "overrides", multiple=True, metavar="section.key=value", help="Override."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
JSON_AT_THE_END = click.option(
    "--json", "as_json", is_flag=True, help="End with one JSON object on stdout."
)

PROMISES = click.option(
    "--promises",
    default="secret,attendance,separation",
    show_default=True,
    help="With --advise: what you can promise of who takes part when; or none.",
)


def data_overrides(help_text: str) -> Callable[[Command], Command]:
    """`--set` of a command whose model is trained, so that only keys of [data] may change."""
    return click.option(
        "--set", "overrides", multiple=True, metavar="data.key=value", help=help_text
    )


def quoted(text: str) -> str:
    """`text` as a TOML string, so that a path is never taken for a number."""
    import json

    return json.dumps(text)
