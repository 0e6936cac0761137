"""The notebooks run to their end, and are shipped as a run of them looks."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from documents import pages

PLACES = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|usr|var|work|Users|opt)/|[A-Z]:\\\\")
"""How paths of one machine begin."""


def outputs(notebook):
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def shipped_wrongly(notebook):
    """What is wrong with how a notebook is shipped; nothing is empty."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"cells were not run once each, in their order: {counts}"
    if notebook.metadata.kernelspec.name != "python3":
        yield "its kernel is not python3"
    for out in outputs(notebook):
        if out.output_type == "error":
            yield f"an error is shipped: {out.ename}"
        if PLACES.search(str(out)):
            yield f"a path of a machine is shipped: {str(out)[:200]}"
    if len(nbformat.writes(notebook)) > 400_000:
        yield "it is larger than 400 kB"


def execute(notebook, folder):
    """Run a notebook in `folder`, as its reader does. Raises what a cell raises."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(pages.ROOT)})
    return notebook


@pytest.mark.parametrize("path", pages.notebooks(), ids=pages.name)
def test_notebooks_are_shipped_with_what_they_print(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert list(shipped_wrongly(notebook)) == []
    assert outputs(notebook)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@pytest.mark.parametrize("path", pages.notebooks(), ids=pages.name)
def test_notebooks_run(path, tmp_path):
    notebook = execute(nbformat.read(path, as_version=4), tmp_path)
    assert [str(out) for out in outputs(notebook) if out.output_type == "error"] == []


def made(*cells):
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    return notebook


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_that_raises_or_shows_a_machine_is_caught(tmp_path):
    from nbclient.exceptions import CellExecutionError

    good = execute(made("import privfed\nprivfed.__version__", "1 + 1"), tmp_path)
    assert list(shipped_wrongly(good)) == []
    with pytest.raises(CellExecutionError):
        execute(made("1 / 0"), tmp_path)
    (told,) = shipped_wrongly(execute(made(f"print({str(Path.home() / 'x')!r})"), tmp_path))
    assert told.startswith("a path of a machine")


def test_a_notebook_that_was_not_run_is_caught():
    (told,) = shipped_wrongly(made("1"))
    assert told.startswith("cells were not run")
