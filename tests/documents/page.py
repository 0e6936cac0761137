"""Runs a page from its first block to its last in a separate folder and namespace."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import yaml
from documents import lookups, programs, shell
from documents.blocks import Block, blocks
from documents.keys import wrong_document
from documents.outputs import ANY_PATH, difference
from documents.process import alone, execute, place


class Play:
    """The state while the blocks of a page run: names, and the output of the last block."""

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self.printed: str | None = None
        self.skipped = False
        self.outputs: list[tuple[Block, str]] = []
        """Every block that shows an output, with what was printed."""

    def block(self, block: Block) -> None:
        """Runs one block. Raises `Failure`."""
        if block.directions.output:
            self._compare(block)
        elif block.directions.skip:
            self.skipped = True
            parse(block)
        elif block.directions.file:
            self._write(block)
        elif block.language == "python":
            self._python(block)
        elif block.language == "console":
            self._console(block)
        elif reason := _wrong_text(block):
            raise block.failure(reason)

    def _write(self, block: Block) -> None:
        if block.language in ("toml", "json", "yaml") and (reason := _wrong_text(block)):
            raise block.failure(reason)
        path = Path(block.directions.file)
        if path.is_absolute() or ".." in path.parts:
            raise block.failure(f"{path} lies outside of the page's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(smaller(block), encoding="utf-8")

    def _python(self, block: Block) -> None:
        screen = io.StringIO()
        code = "\n" * (block.line - 1) + smaller(block)
        try:
            with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
                execute(code, str(block.page), self.module)
        except (Exception, SystemExit) as error:
            at = place(error, str(block.page))
            raise block.failure(f"{type(error).__name__}: {error}{at}") from error
        if not block.hidden:
            self.printed, self.skipped = screen.getvalue(), False

    def _console(self, block: Block) -> None:
        printed = ""
        for command in _commands(block, " ".join(block.directions.small)):
            try:
                code, output = programs.run(command)
            except Exception as error:
                raise block.failure(f"{command}: {type(error).__name__}: {error}") from error
            printed += output
            if code != block.directions.exit:
                wanted = block.directions.exit
                raise block.failure(f"{command} ended with {code}, not {wanted}:\n{output}")
        self.printed, self.skipped = printed, False

    def _compare(self, block: Block) -> None:
        if self.skipped:
            return
        if self.printed is None:
            raise block.failure("an output with no block before it that prints")
        self.outputs.append((block, self.printed.replace(str(Path.cwd()), ANY_PATH)))


def play(page: Path, *, small: bool = True) -> list[tuple[Block, str]]:
    """Runs all blocks of a page in order, and returns every shown output with the printed one.

    Without `small`, sizes are as readers see them. Raises `Failure`.
    """
    playing, shown_blocks = Play(), blocks(page)
    with alone(playing.module):
        for block in shown_blocks:
            playing.block(block if small else as_written(block))
    return playing.outputs


def check(page: Path) -> None:
    """Runs all blocks of a page and compares the shown outputs. Raises `Failure`."""
    for block, printed in play(page):
        directions = block.directions
        differs = difference(block.text, printed, directions.output == "shape", directions.exact)
        if differs:
            raise block.failure(f"what is printed is not what is shown:\n{differs}")


def parse(block: Block) -> None:
    """Checks that the commands, options, keys and files of a block that is not run exist."""
    if block.language == "console":
        for command in _commands(block):
            known = block.directions.skip or programs.is_known(command.words)
            if reason := lookups.wrong(command) if known else programs.UNKNOWN:
                raise block.failure(f"{command}: {reason}")
    elif block.language == "python":
        try:
            ast.parse(block.text)
        except SyntaxError as error:
            raise block.failure(error) from error


def smaller(block: Block) -> str:
    """Returns the text of a block with the small sizes of its hidden lines."""
    text = block.text
    for each in block.directions.small:
        large, arrow, little = (piece.strip() for piece in each.partition("->"))
        word = rf"(?<!\w){re.escape(large)}(?!\w)"
        if not arrow or not large or not re.search(word, text):
            raise block.failure(f"small={each}: expected OLD -> NEW, with an OLD of the block")
        text = re.sub(word, lambda match, little=little: little, text)
    return text


def as_written(block: Block) -> Block:
    """Returns the block without its small sizes."""
    return replace(block, directions=replace(block.directions, small=()))


def _commands(block: Block, small: str = "") -> Iterator[shell.Command]:
    """Yields the commands of a console block, with `small` appended where applicable."""
    more, added = tuple(shlex.split(small)), not small
    try:
        for command in shell.commands(block.text):
            takes = bool(small) and programs.takes(command.words, more)
            added |= takes
            yield replace(command, words=(*command.words, *more)) if takes else command
    except ValueError as error:
        raise block.failure(error) from error
    if not added:
        raise block.failure(f"small={small} is for no command of the block")


def _wrong_text(block: Block) -> str:
    """Returns the error of a block that is only shown: unknown keys, or an invalid format."""
    try:
        if block.language == "toml":
            return wrong_document(block.text)
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
    except (ValueError, yaml.YAMLError) as error:
        return f"not valid {block.language}: {error}"
    return ""
