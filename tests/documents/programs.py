"""The commands that pages show: run in this process, or parsed and held against what there is."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner
from documents.keys import wrong_overrides
from documents.shell import Command

from privfed.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TOOLS = frozenset({"cat", "cp", "head", "ls", "mkdir", "mv", "rm", "sort", "tail", "wc"})
"""Small programs that a page may run beside the project's own."""
ANY_KEY = "section.key=value"
"""How `--set` is described where it takes keys of any section."""
MODULES = frozenset({"build", "pip", "pytest", "venv"})
"""Modules that readers run, and that are not run here."""
UNKNOWN = "this runner does not know the program; direct it to skip the block"
NOT_RUN = frozenset({".", "cd", "git", "make", "pip", "source", "torchrun"})
"""What readers do elsewhere: on several machines, or to the environment itself."""


def own(words: tuple[str, ...]) -> list[str] | None:
    """The arguments of a `privfed` command; None for another program's."""
    if words[:1] == ("privfed",):
        return list(words[1:])
    if words[:3] == ("python", "-m", "privfed"):
        return list(words[3:])
    if words[:1] == ("torchrun",) and "privfed" in words:
        return list(words[words.index("privfed") + 1 :])
    if words[:2] == ("make", "train"):
        arguments = [word.removeprefix("ARGS=") for word in words[2:] if word.startswith("ARGS=")]
        return ["train", *shlex.split(" ".join(arguments))]
    return None


def takes(words: tuple[str, ...], more: tuple[str, ...]) -> bool:
    """Whether a command of the project's own could have the words `more` at its end.

    Where they begin with `--set`, that is one that takes keys of any section.
    """
    arguments = own(words)
    if arguments is None:
        return False
    if more[:1] != ("--set",):
        return True
    if arguments[:1] == ["audit"] and "--mechanism" not in arguments:
        return False  # a ledger is audited as it is
    return any(each.metavar == ANY_KEY for each in _named(arguments)[0].params)


def run(command: Command) -> tuple[int, str]:
    """The exit code of a command and all that it printed. Raises `ValueError`."""
    if not is_known(command.words):
        raise ValueError(UNKNOWN)
    words, arguments = command.words, own(command.words)
    if arguments is not None and words[0] != "torchrun":
        outcome = CliRunner().invoke(main, arguments, prog_name="privfed")
        if outcome.exception and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception
        printed = outcome.stdout if command.into else outcome.output
    elif words[:2] == ("python", "-m") and words[2:] and words[2].startswith("experiments"):
        outcome = CliRunner().invoke(_module_command(words[2]), list(words[3:]))
        printed = outcome.output
    elif words[0] in TOOLS:
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        return ended.returncode, _kept(command, ended.stdout) + ended.stderr
    elif problem := wrong(command):
        raise ValueError(problem)
    else:
        return 0, ""
    return outcome.exit_code, _kept(command, printed)


def wrong(command: Command) -> str:
    """What is wrong with a command that is not run, as far as can be told; "" for nothing."""
    words, arguments = command.words, own(command.words)
    if words[0] == "make":
        return _wrong_target(words[1:])
    if arguments is not None:
        return wrong_arguments(arguments) or _missing_study(arguments)
    if words[0] == "pip":
        return _wrong_extras(words)
    if words[:2] == ("python", "-m") and words[2:]:
        return _wrong_module(words[2])
    return ""


def is_known(words: tuple[str, ...]) -> bool:
    """Whether this runner knows the program: what it does not is left out by a directive alone."""
    if words[:2] == ("python", "-m") and words[2:]:
        name = words[2]
        return name in MODULES or name.startswith(("experiments", "documents", "privfed"))
    return own(words) is not None or words[0] in TOOLS | NOT_RUN


def wrong_arguments(arguments: list[str]) -> str:
    """What `privfed` would not take of its arguments, keys of `--set` included."""
    try:
        command, words = _named(arguments)
        parameters = command.make_context("privfed", words).params
    except click.exceptions.Exit:
        return ""
    except ValueError as error:
        return str(error)
    except click.ClickException as error:
        return error.format_message()
    return wrong_overrides(parameters.get("overrides") or ())


def wrong_names(span: str) -> str:
    """What there is not of the command and the options that code within a line names."""
    words = [word.strip("[],…") for word in span.split()[1:]]
    try:
        command, words = _named(words)
    except ValueError as error:
        return f"`{span}`: {error}"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    known |= {"--help", "-h"}
    gone = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"`{span}` has no option {', '.join(gone)}" if gone else ""


def _named(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `words` begin with, and the words that it is given."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z]+", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise ValueError(f"there is no command {words[0]!r}")
        command, words = found, words[1:]
    return command, words


def _kept(command: Command, printed: str) -> str:
    """What is left for the screen of what a command printed."""
    if not command.into:
        return printed
    Path(command.into).write_text(printed, encoding="utf-8")
    return ""


def _module_command(name: str) -> click.Command:
    """`python -m name` as a command that reads its own arguments."""

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def play(arguments: tuple[str, ...]) -> None:
        with mock.patch.object(sys, "argv", [name, *arguments]):
            runpy.run_module(name, run_name="__main__", alter_sys=True)

    return play


def _missing_study(arguments: list[str]) -> str:
    """Files of the repository that a command names, and that are not there."""
    named = [word for word in arguments if word.startswith("experiments/")]
    gone = [word for word in named if not (ROOT / word).exists()]
    return f"there is no {', '.join(gone)}" if gone else ""


def _wrong_target(words: tuple[str, ...]) -> str:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([\w-]+):", recipe, re.MULTILINE)}
    gone = [word for word in words if "=" not in word and word not in targets]
    return f"make has no target {', '.join(gone)}" if gone else ""


def _wrong_extras(words: tuple[str, ...]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"(?:^|\s)(?:\.|privfed)\[([\w,-]+)\]", " ".join(words))
    extras = {extra for each in named for extra in each.split(",")}
    gone = sorted(extras - project["optional-dependencies"].keys())
    return f"there is no extra {', '.join(gone)}" if gone else ""


def _wrong_module(name: str) -> str:
    ours = name.startswith(("experiments", "documents"))
    return f"there is no module {name}" if ours and not importlib.util.find_spec(name) else ""
