"""Renders the pages of runs and grids as HTML, and writes them to files."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from accounting import regular
from accounting.documents import Encoded, called
from accounting.durable import make_folder, write_atomically
from privfed.core.errors import Refused
from privfed.core.text import visible
from privfed.grid.results import Files
from privfed.report.page.blocks import Page
from privfed.report.page.grid_page import grid_page
from privfed.report.page.grid_tables import files_of, grid_facts
from privfed.report.page.run_facts import run_facts
from privfed.report.page.run_page import run_page
from privfed.store.run_directory import RunDirectory

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def render(page: Page, style: str = "") -> str:
    """Returns the page as HTML; all text in it is escaped.

    Args:
      page: the content of the page.
      style: file name of a further style sheet in the folder of templates; "" for none.
    """
    templates = Environment(
        loader=PackageLoader("privfed.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _source("sort.js") if page.sortable else ""
    return templates.get_template("page.html").render(
        page=page,
        style=Markup(_source("page.css") + (_source(style) if style else "")),
        script=Markup(script),
        policy=_policy(script),
    )


def _policy(script: str) -> str:
    """Returns the content security policy, which permits no script except this one."""
    if not script:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'"


def _source(name: str) -> str:
    """Returns the text of a file in the folder of the templates."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Returns `value` with control characters made visible, if it is text but not `Markup`."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@dataclass(frozen=True)
class Written(Encoded):
    """The result of writing a page.

    Attributes:
      path: the file of the page.
      about: the path of the run, grid file or claim that the page is about.
      simulation: whether the page shows values that no ε covers.
      refuted: whether canaries refute the claimed ε of the run.
    """

    path: Path = field(metadata=called("page"))
    about: Path = field(metadata=called("of"))
    simulation: bool = field(metadata=called("simulation_only"))
    refuted: bool = False


def write_run_page(
    run: Path | RunDirectory, out: Path | None = None, simulation: bool = False
) -> Written:
    """Writes the HTML page about a run.

    Args:
      run: the run, or its path.
      out: the file; by default report/page.html in the run's directory or, with `simulation`,
        private/simulation.html.
      simulation: whether to show values that no ε covers. The page is then private, and must not
        be published.

    Raises:
      Broken: if the run's files contradict each other.
      Refused: if there is no run, or the file cannot be written or has other content.
    """
    facts = run_facts(run)
    path = out or own_place(facts.record.path, simulation)
    write_page(path, render(run_page(facts, simulation)), simulation)
    return Written(path, facts.record.path, simulation, facts.audit.refuted)


def write_grid_page(
    grid: Path | Files, out: Path | None = None, simulation: bool = False
) -> Written:
    """Writes the HTML page about a grid of runs.

    Args:
      grid: the grid file, or the files of its tables.
      out: the file; by default GRID.html or, with `simulation`, GRID.simulation.html next to the
        tables.
      simulation: whether to show values that no ε covers.

    Raises:
      Refused: if the grid has no table yet, or the file cannot be written or has other content.
    """
    files = files_of(grid) if isinstance(grid, Path) else grid
    path = out or files.named(".simulation.html" if simulation else ".html")
    write_page(path, render(grid_page(grid_facts(files), simulation)), simulation)
    return Written(path, files.grid, simulation)


def own_place(run: Path, simulation: bool, name: str = "page") -> Path:
    """Returns the default path of a run's page `name`; creates its folder if it is missing.

    With `simulation`, it is private/simulation.html, whatever the `name`. Raises `Refused` if the
    folder is a link.
    """
    folder = run / ("private" if simulation else "report")
    if folder.is_symlink():
        raise Refused(
            f"{folder} is a link, which may point outside the run directory; name a file by --out"
        )
    make_folder(folder, 0o700 if simulation else 0o777)
    return folder / ("simulation.html" if simulation else f"{name}.html")


def write_page(path: Path, page: str, simulation: bool = False) -> None:
    """Writes the HTML text `page` to the file `path`, atomically.

    With `simulation`, the page is marked as that of a simulation and gets mode 0600. Raises
    `Refused` for the reasons of `refuse_place`.
    """
    refuse_place(path, simulation)
    kind = _KINDS[simulation]
    content = page.replace(_HEAD, f"{_HEAD}\n{kind}", 1)
    if simulation and not path.exists():
        path.touch(0o600)
    write_atomically(path, content.encode())
    if simulation:
        path.chmod(0o600)


_HEAD = '<meta name="referrer" content="no-referrer">'
_KINDS = {
    False: '<meta name="generator" content="privfed report">',
    True: '<meta name="generator" content="privfed report, simulation">',
}
"""The element that marks a page, by whether the page shows values that no ε covers."""


def refuse_place(path: Path, simulation: bool = False) -> None:
    """Raises `Refused` if no page can be written at `path`, or must not be.

    The folder of `path` has to exist. A file at `path` has to be empty or a page of the same kind:
    with values of a `simulation`, or without.
    """
    if path.is_dir():
        raise Refused(f"--out is {path}, but that is a folder; name a file for the page")
    if not path.parent.is_dir():
        raise Refused(
            f"--out is {path}, but its folder does not exist; create the folder, or name another "
            "file"
        )
    if not path.exists() or not path.stat().st_size:
        return
    with regular.opened(path) as file:
        beginning = file.read(_BEGINNING).decode("utf-8", "replace")
    if _KINDS[simulation] not in beginning:
        raise Refused(
            f"--out is {path}, but that file exists and is not a page that this command wrote; "
            "nothing was changed; name another file"
        )


_BEGINNING = 1000
"""Number of bytes of a file in which the mark of a page is sought."""
