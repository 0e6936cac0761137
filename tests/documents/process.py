"""Code of a page in this process, isolated from the process's state."""

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
    """Runs a grid's `work` in this process, because processes start more slowly than small cells
    run.
    """
    for job in jobs:
        yield Started(job)
        yield Ended(job, do(job))


@contextlib.contextmanager
def alone(module: ModuleType) -> Iterator[None]:
    """Enters a new working folder in which `module` is the main program."""
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
    """Runs `code` like a notebook: the value of a final expression is shown."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), vars(module))
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), vars(module))
        if value is not None:
            print(repr(value))


def place(error: BaseException, page: str) -> str:
    """Returns the line of the page that raised `error`, if there is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame[0] == page]
    return f" (line {frames[-1].lineno})" if frames else ""
