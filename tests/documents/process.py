"""Code of a page in this process, which looks new to it and is left as it was."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from privfed.grid.process_pool import Ended, Started


def one_by_one(
    do: Callable[[Any], Any], jobs: Iterable[Any], count: int
) -> Iterator[Started[Any] | Ended[Any]]:
    """What `work` of a grid does, in this process: others take longer to start than small cells."""
    for job in jobs:
        yield Started(job)
        yield Ended(job, do(job))


@contextlib.contextmanager
def alone(module: ModuleType) -> Iterator[None]:
    """A new folder to work in, in which `module` is the program that runs."""
    main, path, before = sys.modules["__main__"], [*sys.path], {*sys.modules}
    with (
        mock.patch("privfed.grid.engine.work", one_by_one),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, MPLBACKEND="Agg"),
    ):
        sys.modules["__main__"], sys.path[:0] = module, [folder]
        try:
            yield
        finally:
            sys.modules["__main__"], sys.path[:] = main, path
            for name in {*sys.modules} - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                    del sys.modules[name]


def execute(code: str, name: str, module: ModuleType) -> None:
    """Run `code` as a notebook does: the value of an expression at its end is shown."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), vars(module))
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), vars(module))
        if value is not None:
            print(repr(value))


def place(error: BaseException, page: str) -> str:
    """The line of the page that raised `error`, where it is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame[0] == page]
    return f" (line {frames[-1].lineno})" if frames else ""
