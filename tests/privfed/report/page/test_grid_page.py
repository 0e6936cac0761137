"""The page of a grid: cells that sort, the worst over attacks, failures, joint ε, figures."""

import json

import pytest
from commands import run
from grids import BASE, in_process, write
from html_page import Document

from privfed.core.errors import Refused
from privfed.grid import engine
from privfed.report.page.write import write_grid_page

GRID = """
base = "base.toml"
seeds = [0, 1]
[grid]
"attack.name" = ["sign_flip", "alie"]
"client.lr" = [0.1, 0.5]
[[figure]]
name = "map"
kind = "heat"
x = "client.lr"
worst = "attack.name"
title = "a <b>title</b> of $\\\\frac{x$"
[[figure]]
name = "work"
x = "examples"
by = "attack.name"
where = {"client.lr" = 0.1}
"""
ATTACKED = BASE.replace("evaluate_every = 2", "evaluate_every = 2\nsimulation_metrics = true")
ATTACKED += '[attack]\nname = "sign_flip"\nfraction = 0.25\n[aggregation]\nbyzantine = 1\n'


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A grid of attacks, carried out by the command."""
    path = write(tmp_path_factory.mktemp("grid"), GRID, ATTACKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "work", in_process)
        answer = run("experiment", path)
    assert answer.exit_code == 0, answer.output
    assert "page" in answer.stderr + answer.stdout
    return path


@pytest.fixture(scope="module")
def document(grid):
    return Document(grid.with_suffix(".html").read_text("utf-8"))


def rows(document, caption):
    """The lines of the table whose caption begins so."""
    tables = document.html.split("<table")[1:]
    (table,) = (t for t in tables if f"<caption>{caption}" in t)
    read = Document("<table" + table.split("</table>")[0] + "</table>")
    return [" ".join(line.split()) for line in read.texts("tr")]


def test_an_experiment_writes_its_page(document):
    assert document.all("h1")[0].text == "grid"
    assert "4 cells over 2 seeds: 8 done" in document.html
    assert document.texts("strong") == ["No guarantee.", "Simulation."]


def test_cells_sort_and_say_what_epsilon_means(document):
    (heading, *lines) = rows(document, "Mean, standard deviation")
    assert len(lines) == 4
    assert heading.startswith("attack.name client.lr seeds accuracy")
    assert all("(nominal)" in line for line in lines)
    assert sum("void (the attacker read raw updates)" in line for line in lines) == 2
    caption = next(text for text in document.texts("caption") if text.startswith("Mean"))
    for words in ("δ 0.001", "unit client", "relation add/remove", "sampler poisson"):
        assert words in caption
    assert document.all("table")[1].attributes["class"] == "sortable"
    assert len(document.all("script")) == 1


def test_the_worst_over_attacks_has_a_line_for_each_other_value(document):
    heading, *lines = rows(document, "The worst accuracy over attacks")
    assert heading == "client.lr worst attack accuracy"
    assert [line.split()[0] for line in lines] == ["0.1", "0.5"]
    assert all(line.split()[1] in ("sign_flip", "alie") for line in lines)


def test_together_nothing_is_guaranteed_where_any_cell_is_void(document):
    _, *lines = rows(document, "Joint guarantee of all runs over the same population")
    assert all(line.startswith("∞ 4 0.001 client add/remove void") for line in lines)


def test_what_only_a_simulation_measures_is_drawn_on_request(grid, document):
    assert len(document.all("svg")) == 1
    page = write_grid_page(grid, simulation=True)
    assert page.path.name == "grid.simulation.html"
    shown = Document(page.path.read_text("utf-8"))
    assert len(shown.all("svg")) == 2
    assert "Not covered by any ε." in shown.texts("strong")


def test_titles_of_figures_are_text(document):
    assert document.all("b") == []
    assert "a <b>title</b> of $\\frac{x$" in [text.strip() for text in document.texts("text")]


def test_cells_that_are_refused_are_listed_with_their_reason(tmp_path):
    path = write(tmp_path, '[grid]\n"cohort.size" = [4, 400]\n', BASE)
    path.write_text('base = "base.toml"\n' + path.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "work", in_process)
        run("experiment", path)
    document = Document(path.with_suffix(".html").read_text("utf-8"))
    (_, line) = rows(document, "Runs that are not done")
    assert line.startswith("refused cohort.size is 400")
    assert line.endswith("1 cohort.size 400, seed 0")


def test_a_grid_without_a_table_is_refused(tmp_path):
    path = write(tmp_path)
    with pytest.raises(Refused, match="run the experiment first"):
        write_grid_page(path)
    answer = run("report", path, "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["error"]["kind"]) == (2, "refused")


def test_the_command_writes_where_it_is_told(grid, tmp_path):
    answer = run("report", grid, "--out", tmp_path / "page.html")
    assert (answer.exit_code, answer.stdout) == (0, f"wrote {tmp_path / 'page.html'}\n")
