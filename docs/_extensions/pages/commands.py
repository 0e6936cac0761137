"""Every command with its arguments and options, as click knows them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pages.markdown import code, join, prose, table
from privfed.cli.main import main


def commands() -> str:
    """A section for each command."""
    return join(
        block for path, command in every(main, "privfed") for block in _section(path, command)
    )


def every(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that does something, with the words that call it."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from every(below, f"{path} {name}")
    else:
        yield path, command


def _section(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {path}"
    yield f"```text\n{path} {usage}\n```"
    yield prose(command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = (_option(option, context) for option in options)
    yield table(["option", "form", "default", "meaning"], rows)


def _option(option: click.Option, context: click.Context) -> tuple[str, ...]:
    """Its names, what it takes, what it is without it, and its help."""
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    takes = "" if option.is_flag else code(option.make_metavar(context))
    bounds = option.type._describe_range() if isinstance(option.type, click.IntRange) else ""
    again = "may be repeated" if option.multiple else ""
    default = code(option.default) if option.show_default else ""
    form = ", ".join(filter(None, [takes, bounds.replace("x", " x "), again]))
    return names, form, default, prose(option.help or "")
