"""Console blocks as commands: words, and the file that receives their output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """The words of one command, the target of its output ("" for the screen), and `NAME=value`."""

    words: tuple[str, ...]
    into: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)


def commands(text: str) -> Iterator[Command]:
    """Yields the commands of a console block. Raises `ValueError`."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*_words(line), "&&"]:
            if word == "&&":
                if words:
                    yield _command(words)
                words = []
            else:
                words.append(word)


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _command(words: list[str]) -> Command:
    if words[0] == "$":
        raise ValueError("commands stand without a prompt")
    environment, into = [], ""
    while len(words) > 1 and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment.append((name, value))
    if len(words) > 2 and words[-2] == ">":
        *words, _, into = words
    for word in words:
        if word and not word.strip("();<>|&"):
            raise ValueError(f"{word!r} is more than this shell knows: commands, `&&` and `> FILE`")
    return Command(tuple(words), into, tuple(environment))
