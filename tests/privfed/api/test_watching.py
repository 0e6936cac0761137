"""What a call shows while it trains: nothing in a script, a plan if asked, a notebook's bar."""

import sys
import types

import pytest

import privfed
from privfed.api import going_on
from privfed.report import notebook

SMALL = {"rounds": 6, "epsilon": 8, "run": {"evaluate_every": 3}}


def test_a_script_is_silent_unless_it_asks(tmp_path, capsys):
    privfed.train(out=tmp_path / "silent", **SMALL)
    assert capsys.readouterr() == ("", "")
    privfed.train(out=tmp_path / "shown", progress=True, **SMALL)
    shown = capsys.readouterr().out
    assert "budget" in shown
    assert "round 6/6  accuracy" in shown


@pytest.fixture
def displayed(monkeypatch):
    """A notebook's display: what it was made to show, in order."""
    shown = []
    handle = types.SimpleNamespace(update=lambda piece: shown.append(piece))
    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda piece, display_id: shown.append(piece) or handle
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(going_on, "in_notebook", lambda: True)
    return shown


def test_a_notebook_has_a_bar_that_is_drawn_over(tmp_path, displayed, capsys):
    privfed.train(out=tmp_path / "run", **SMALL)
    assert displayed[0].startswith("<progress max=6 value=0>")
    assert "value=6" in displayed[-1]
    assert "ε 8.0000 of 8" in displayed[-1]
    assert capsys.readouterr() == ("", "")
    count = len(displayed)
    privfed.train(out=tmp_path / "silent", progress=False, **SMALL)
    assert len(displayed) == count


def test_a_notebook_shows_the_choice_of_keys_and_what_was_chosen(tmp_path, displayed):
    keys = {"model": "mlp", "client": {"lr": "auto"}, "privacy": {"clip": 0.5}}
    run = privfed.train(out=tmp_path / "run", **SMALL, **keys)
    assert "value=3></progress> choosing client.lr (&quot;auto&quot;): simulated run 3 of 9" in str(
        displayed
    )
    assert "choosing" not in displayed[-1]
    assert f"client.lr = {run.config.client.lr:g}: chosen from" in displayed[-1]


def test_a_notebook_shows_an_answer_once(displayed, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    answer = privfed.check(**SMALL)
    assert "budget" in str(answer)
    assert "budget" in answer._repr_html_()
    assert displayed == []  # rich would print into the cell what the cell shows anyway


def test_what_a_notebook_shows_is_escaped(displayed):
    bar = notebook.NotebookProgress(None)
    bar._notebook = sys.modules["IPython.display"]
    bar._display = bar._notebook.display("", display_id=True)
    bar.aborted(2, "<script>alert(1)</script>")
    assert "<script>" not in displayed[-1]
    assert "&lt;script&gt;" in displayed[-1]


def test_this_is_no_notebook():
    assert not notebook.in_notebook()
