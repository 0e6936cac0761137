"""A Sphinx extension: what pages take from the code, from studies and from the imports.

A page says `<!-- generated: NAME -->`, and gets the Markdown that the module of that name makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.shell import BashLexer

from pages import api, commands, failures, files, keys, matrix, parts, rooms, studies
from pages.docstrings import as_rst, unsigned
from pages.links import relocated

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GENERATED = re.compile(r"^<!-- generated: (\w+)(?: ([\w.]+))? -->$", re.MULTILINE)
MAKERS: dict[str, Callable[..., str]] = {
    "run_file": keys.run_file,
    "grid_file": keys.grid_file,
    "parts": parts.by_kind,
    "parts_in_full": api.parts_in_full,
    "matrix": matrix.matrix,
    "assumptions": matrix.assumptions,
    "commands": commands.commands,
    "exit_codes": failures.exit_codes,
    "error_kinds": failures.error_kinds,
    "error_example": failures.error_example,
    "run_directory": files.run_directory,
    "dependencies": files.dependencies,
    "api": api.public_names,
    "modules": api.modules,
    "rooms": rooms.picture,
    "studies": studies.table_of_all,
}


def filled(text: str) -> str:
    """The page `text` with everything that it asks for."""
    return GENERATED.sub(
        lambda exchanges_before: MAKERS[exchanges_before[1]](*filter(None, [exchanges_before[2]])),
        text,
    )


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    source[0] = relocated(filled(source[0]), page, page)


def _include(app: Sphinx, included: Path, _: str, content: list[str]) -> None:
    page = Path(app.env.doc2path(app.env.docname))  # the event names no folder
    content[0] = relocated(content[0], (app.srcdir / included).resolve(), page)


def _outdated(app: Sphinx, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Pages that depend on code are written anew in each build."""
    paths = {name: Path(env.doc2path(name)) for name in env.found_docs}
    return [name for name, path in paths.items() if GENERATED.search(path.read_text("utf-8"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect everything; Sphinx calls this."""
    app.add_lexer("console", BashLexer)  # commands stand without a prompt, to be copied
    app.connect("source-read", _read)
    app.connect("include-read", _include)
    app.connect("env-get-outdated", _outdated)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-process-signature", unsigned)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
