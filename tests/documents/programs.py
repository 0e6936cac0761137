"""The commands that pages show, run in this process."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner
from documents.lookups import named, run_by_us, wrong
from documents.shell import Command

from privfed.cli.main import main

TOOLS = frozenset({"cat", "cp", "head", "ls", "mkdir", "sort", "tail", "wc"})
"""Small programs that a page may run in addition to the project's own."""
ANY_KEY = "section.key=value"
"""Description of `--set` in commands that accept keys of any section."""
MODULES = frozenset({"build", "pip", "pytest", "venv"})
"""Modules that readers run, and that are not run here."""
UNKNOWN = "this runner does not know the program; direct it to skip the block"
NOT_RUN = frozenset({".", "bash", "cd", "git", "make", "pip", "source", "torchrun"})
"""Programs that readers run elsewhere: on several machines, or on the environment itself."""


def takes(words: tuple[str, ...], more: tuple[str, ...]) -> bool:
    """Whether the words `more` can be appended to a command of the project.

    If they begin with `--set`, the command must accept keys of any section.
    """
    arguments = run_by_us(words)
    if arguments is None:
        return False
    if more[:1] != ("--set",):
        return True
    if arguments[:1] == ["audit"] and "--mechanism" not in arguments:
        return False  # a ledger is audited as it is
    return any(each.metavar == ANY_KEY for each in named(arguments)[0].params)


def run(command: Command) -> tuple[int, str]:
    """Returns the exit code of a command and all of its output. Raises `ValueError`."""
    if not is_known(command.words):
        raise ValueError(UNKNOWN)
    with mock.patch.dict(os.environ, dict(command.environment)):
        return _run(command)


def _run(command: Command) -> tuple[int, str]:
    words, arguments = command.words, run_by_us(command.words)
    if arguments is not None and words[0] != "torchrun":
        outcome = CliRunner().invoke(main, arguments, prog_name="privfed")
        if outcome.exception and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception
        printed = outcome.stdout if command.into else outcome.output
        aside = outcome.stderr if command.into else ""
    elif words[:2] == ("python", "-m") and words[2:] and words[2].startswith("experiments"):
        outcome = CliRunner().invoke(_module_command(words[2]), list(words[3:]))
        printed, aside = outcome.output, ""
    elif words[0] in TOOLS:
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        return ended.returncode, _kept(command, ended.stdout) + ended.stderr
    elif problem := wrong(command):
        raise ValueError(problem)
    else:
        return 0, ""
    return outcome.exit_code, _kept(command, printed) + aside


def is_known(words: tuple[str, ...]) -> bool:
    """Whether this runner knows the program; unknown programs need a directive that skips them."""
    if words[:2] == ("python", "-m") and words[2:]:
        name = words[2]
        return name in MODULES or name.startswith(("experiments", "documents", "privfed"))
    return run_by_us(words) is not None or words[0] in TOOLS | NOT_RUN


def _kept(command: Command, printed: str) -> str:
    """Returns the part of a command's output that goes to the screen."""
    if not command.into:
        return printed
    Path(command.into).write_text(printed, encoding="utf-8")
    return ""


def _module_command(name: str) -> click.Command:
    """Returns `python -m name` as a command that reads its own arguments."""

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def play(arguments: tuple[str, ...]) -> None:
        with mock.patch.object(sys, "argv", [name, *arguments]):
            runpy.run_module(name, run_name="__main__", alter_sys=True)

    return play
