"""Notebooks, run as their readers run them, and shipped with their outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from documents.pages import ROOT
from nbformat import NotebookNode
from waiting import LONG

PLACES = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|usr|var|work|Users|opt)/|[A-Z]:\\\\")
"""Beginnings of paths on one machine."""
LARGEST_PICTURE = 80_000
"""Largest number of characters of a picture in base 64: 60 kB."""
LARGEST = 400_000
"""Largest number of characters of a notebook."""


def read(path: Path) -> NotebookNode:
    """Returns the notebook at `path`. Raises nbformat's error for an invalid one."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Runs a notebook in `folder`, as its reader does. Raises the error of a cell."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=LONG,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    return notebook


def text_to_ship(notebook: NotebookNode) -> str:
    """Returns the file of a notebook without information about the machine on which it ran."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for cell in notebook.cells:
        cell.metadata = {}
    return nbformat.writes(notebook) + "\n"


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    """Returns all outputs and errors of all cells."""
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def shipped_wrongly(notebook: NotebookNode) -> Iterator[str]:
    """Yields the faults of a shipped notebook."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"cells were not run once each, in their order: {counts}"
    if notebook.metadata.kernelspec.name != "python3":
        yield "its kernel is not python3"
    for out in outputs(notebook):
        yield from _output_wrongly(out)
    if len(nbformat.writes(notebook)) > LARGEST:
        yield f"it is larger than {LARGEST // 1000} kB"


def _output_wrongly(out: NotebookNode) -> Iterator[str]:
    if out.output_type == "error":
        yield f"an error is shipped: {out.ename}"
    if out.output_type == "stream" and out.name == "stderr":
        yield f"a warning is shipped: {out.text[:200]}"
    if PLACES.search(str(out)):
        yield f"a path of a machine is shipped: {str(out)[:200]}"
    if len(out.get("data", {}).get("image/png", "")) > LARGEST_PICTURE:
        yield "a picture is larger than 60 kB"
