"""Commands that pages show, checked against the existing ones without running them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import click
from documents.keys import wrong_overrides
from documents.shell import Command

from privfed.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def run_by_us(words: tuple[str, ...]) -> list[str] | None:
    """Returns the arguments of a `privfed` command; None for another program's."""
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


def wrong(command: Command) -> str:
    """Returns the error of a command that is not run, as far as it can be detected; "" if none."""
    words, arguments = command.words, run_by_us(command.words)
    if words[0] == "make":
        return _wrong_target(words[1:])
    if arguments is not None:
        return wrong_arguments(arguments) or _missing_study(arguments)
    if words[0] == "bash" and words[1:] and not (ROOT / words[1]).exists():
        return f"there is no {words[1]}"
    if words[0] == "pip":
        return _wrong_extras(words)
    if words[:2] == ("python", "-m") and words[2:]:
        return _wrong_module(*words[2:])
    return ""


def wrong_arguments(arguments: list[str]) -> str:
    """Returns the error of `privfed` arguments, including keys of `--set`; "" if none."""
    try:
        command, words = named(arguments)
        parameters = command.make_context("privfed", words).params
    except click.exceptions.Exit:
        return ""
    except ValueError as error:
        return str(error)
    except click.ClickException as error:
        return error.format_message()
    return wrong_overrides(parameters.get("overrides") or ())


def wrong_names(span: str) -> str:
    """Returns the unknown command or options in code within a line; "" if all exist."""
    words = [word.strip("[],…") for word in span.split()[1:]]
    try:
        command, words = named(words)
    except ValueError as error:
        return f"`{span}`: {error}"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    known |= {"--help", "-h"}
    gone = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"`{span}` has no option {', '.join(gone)}" if gone else ""


def named(words: list[str]) -> tuple[click.Command, list[str]]:
    """Returns the command that `words` begin with, and its arguments."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z]+", words[0]):
        subcommand = command.get_command(click.Context(command), words[0])
        if subcommand is None:
            raise ValueError(f"there is no command {words[0]!r}")
        command, words = subcommand, words[1:]
    return command, words


def _missing_study(arguments: list[str]) -> str:
    """Returns files of the repository that a command names and that do not exist."""
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


def _wrong_module(name: str, *words: str) -> str:
    """Returns a missing module of the repository, or options that none of its files names."""
    if not name.startswith(("experiments", "documents")):
        return ""
    module = importlib.util.find_spec(name)
    if module is None:
        return f"there is no module {name}"
    folders = list(map(Path, module.submodule_search_locations or ()))
    files = [path for folder in folders for path in folder.glob("*.py")] or [Path(module.origin)]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    gone = [
        word for word in words if word.startswith("--") and f'"{word.split("=")[0]}"' not in sources
    ]
    return f"{name} has no option {', '.join(gone)}" if gone else ""
