"""The notebooks run to their end, and are shipped as a run of them looks."""

import re
from pathlib import Path

import nbformat
import pytest
from documents import pages
from documents.notebooks import execute, outputs, read, shipped_wrongly, text_to_ship
from lanes import every_case


@every_case("path", pages.notebooks(), ids=pages.name)
def test_notebooks_are_shipped_with_what_they_print(path):
    notebook = read(path)
    assert list(shipped_wrongly(notebook)) == []
    assert outputs(notebook)
    assert text_to_ship(notebook) == path.read_text("utf-8")


@every_case("path", pages.notebooks(), ids=pages.name)
def test_what_notebooks_link_is_there(path):
    problem = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    targets = [link for text in problem for link in re.findall(r"\]\(([^)#]+)", text)]
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@pytest.mark.parametrize("path", pages.notebooks(), ids=pages.name)
def test_notebooks_run(path, tmp_path):
    shipped, ran = read(path), execute(read(path), tmp_path)
    assert list(shipped_wrongly(ran)) == []
    assert [kinds(cell) for cell in ran.cells] == [kinds(cell) for cell in shipped.cells]


def kinds(cell):
    """Which kinds of outputs a cell has, each in all its forms."""
    return [(out.output_type, sorted(out.get("data", {}))) for out in cell.get("outputs", [])]


def made(*cells):
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    return notebook


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_that_raises_warns_or_shows_a_machine_is_caught(tmp_path):
    from nbclient.exceptions import CellExecutionError

    good = execute(made("import privfed\nprivfed.__version__", "1 + 1"), tmp_path)
    assert list(shipped_wrongly(good)) == []
    assert "language_info" not in text_to_ship(good)
    with pytest.raises(CellExecutionError):
        execute(made("1 / 0"), tmp_path)
    (problem,) = shipped_wrongly(execute(made(f"print({str(Path.home() / 'x')!r})"), tmp_path))
    assert problem.startswith("a path of a machine")
    warns = execute(made("import warnings\nwarnings.warn('x')"), tmp_path)
    assert any(problem.startswith("a warning") for problem in shipped_wrongly(warns))


def test_a_notebook_that_was_not_run_is_caught():
    (problem,) = shipped_wrongly(made("1"))
    assert problem.startswith("cells were not run")


def test_a_large_picture_is_caught():
    notebook = made("1")
    notebook.cells[0].execution_count = 1
    picture = nbformat.v4.new_output("display_data", {"image/png": "A" * 90_000})
    notebook.cells[0].outputs = [picture]
    assert list(shipped_wrongly(notebook)) == ["a picture is larger than 60 kB"]
