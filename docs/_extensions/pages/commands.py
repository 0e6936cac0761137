"""Every command with its arguments and options, as click knows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from pages.markdown import code, join, prose, sentence, table, within
from privfed.cli.main import main

WORDS = {"integer": "integer", "float": "number", "text": "text"}


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
    yield prose(inspect.cleandoc(command.help or ""))
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = (_option(option) for option in options)
    yield within("keys", table(["option", "form", "default", "meaning"], rows))


def _option(option: click.Option) -> tuple[str, ...]:
    """Its names, what it takes, what it is without it, and its help."""
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    again = "may be repeated" if option.multiple else ""
    default = code(option.default) if option.show_default else ""
    takes = "" if option.is_flag else form(option)
    return (
        names,
        ", ".join(filter(None, [takes, again])),
        default,
        prose(sentence(option.help or "")),
    )


def form(option: click.Option) -> str:
    """What it takes, in words."""
    kind = option.type
    if isinstance(kind, click.Choice):
        return ", ".join(map(code, kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        least, most = (
            "above" if kind.min_open else "at least",
            "below" if kind.max_open else "at most",
        )
        bounds = ((least, kind.min), (most, kind.max))
        limits = [f"{word} {bound:,.15g}" for word, bound in bounds if bound is not None]
        return ", ".join([WORDS[kind.name.split()[0]], *limits])
    if option.metavar:
        return code(option.metavar)
    return "file or folder" if isinstance(kind, click.Path) else WORDS.get(kind.name, kind.name)
