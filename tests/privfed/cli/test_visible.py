"""What others named or wrote does nothing to a terminal, wherever it is printed."""

import contextlib
import io
import json
import tomllib
import warnings
from pathlib import Path
from unicodedata import category

import click
import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from small import SMALL

from privfed.cli.answering import never_quotes, quoted, quotes_on_request
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.failures import guarded
from privfed.core.text import dump, visible, visible_toml
from privfed.report import console as terminal
from privfed.report import grid as experiment_report
from privfed.report import progress

ESC = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u200b\x7f\r\u2028"
HOSTILE = st.text(
    st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Cs", "Lu", "Ll"]), min_size=1, max_size=12
)


def unseen(text):
    """Characters that are obeyed or hidden, other than a newline or a tab."""
    shown = (c for c in text if c not in "\n\t")
    return [c for c in shown if category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@settings(max_examples=40)
@given(st.text(max_size=40))
def test_visible_text_keeps_the_rest_and_spells_out_what_is_obeyed(text):
    shown = visible(text)
    assert not unseen(shown)
    assert visible(shown) == shown
    if not unseen(text):
        assert shown == text


def test_it_is_spelt_as_python_writes_it():
    assert visible("a\x1b[31m\u202e\n\tb\udc80") == "a\\x1b[31m\\u202e\n\tb\\udc80"


@given(HOSTILE)
def test_toml_keeps_its_meaning(name):
    text = visible_toml(tomli_w.dumps({"a": name}))
    assert not unseen(text)
    if not any(category(letter) == "Cs" for letter in name):  # which no TOML can hold
        assert tomllib.loads(text) == {"a": name}


@given(HOSTILE)
def test_json_is_bare_of_them(name):
    assert not unseen(dump({name: name}))
    if not any(category(letter) == "Cs" for letter in name):  # two of which are one letter
        assert json.loads(dump({"name": name})) == {"name": name}


def screen(monkeypatch, lively=False):
    """A console of ours that writes into memory, and what it wrote."""
    found = terminal.PipeSafeConsole(
        file=io.StringIO(), markup=False, width=120, force_terminal=lively, color_system=None
    )
    return found, lambda: found.file.getvalue()


@given(HOSTILE)
@settings(max_examples=30)
def test_tables_lines_and_bars_show_names_bare(name):
    console, written = screen(None)
    table = Table(name, name)
    table.add_row(name, Text(name, style="cyan"))
    console.print(table, name, Text(name), f" drawn    {name}", highlight=False)
    console.print(progress.abort_line(3, name))
    with Progress(TextColumn("{task.description}"), console=console) as shown:
        shown.add_task(name)
    assert not unseen(written())


def test_brackets_in_a_name_are_no_markup(monkeypatch):
    console, written = screen(monkeypatch)
    console.print("runs/[/a] [bold]b")
    assert "runs/[/a] [bold]b" in written()


@given(
    name=HOSTILE, wrapper=st.sampled_from([never_quotes, quotes_on_request]), quoted=st.booleans()
)
@settings(max_examples=40)
def test_texts_of_exceptions_are_bare(name, wrapper, quoted):
    class Odd(Exception): ...

    with contextlib.suppress(ValueError):  # neither may a class be called by every text
        Odd.__name__ = name
    errors = [Refused(name, name), OSError(2, name, name), Odd(name), MemoryError(name)]
    for error in errors:

        def command(error=error):
            raise error

        given_ = {"show_values": quoted} if wrapper is quotes_on_request else {}
        result = CliRunner().invoke(_command(wrapper(command), given_))
        assert result.exit_code in (1, 2)
        assert not unseen(result.output), (error, result.output)


def _command(wrapped, keywords):
    @click.command()
    def run():
        wrapped(**keywords)

    return run


def test_warnings_are_bare(capsys):
    for quotes in (never_quotes, quotes_on_request):

        def command():
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                print(warnings.formatwarning(ESC, UserWarning, f"{ESC}.py", 3, ESC))
            return 0

        keywords = {"show_values": True} if quotes is quotes_on_request else {}
        with pytest.raises(SystemExit):
            quotes(command)(**keywords)
    assert not unseen(capsys.readouterr().out)
    with guarded():
        assert not unseen(warnings.formatwarning(ESC, UserWarning, f"{ESC}.py", 3))


NAMED = "a\x1b[31mb\u202ec"
TABLE = f'"{NAMED}",x,y\nu,0.5,0\nv,0.1,1\n'


def test_hostile_names_in_files_and_on_the_line_are_bare(tmp_path, monkeypatch):
    """Columns, clients, paths, keys and values of a run file, and folders of runs."""
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / NAMED
    odd.mkdir()
    (odd / "t.csv").write_text(TABLE, encoding="utf-8")
    (odd / "run.toml").write_text(f'[run]\n"{NAMED}" = "{NAMED}"\n'.replace("\x1b", "\\u001b"))
    table = ["data.source=table", f"data.path={json.dumps(str(odd / 't.csv'))}", "data.label=y"]
    table += ["data.clients=2", "data.classes=2", "data.features={x=[0,1]}"]
    lines = [
        ["check", str(odd / "run.toml")],
        ["check", str(odd / "none.toml")],
        ["check", "--set", f"client.lr={NAMED}"],
        ["check", "--set", f"client.{NAMED}=1"],
        ["check", "--set", f"server.optimizer={NAMED}"],
        ["check", "--set", f"model.name={NAMED}:f"],
        ["check", *_sets([*table, "data.client=who"]), "--show-values"],
        ["check", *_sets([*table, f"data.client={json.dumps(NAMED)}"]), "--show-values"],
        ["train", "--out", str(odd)],
        ["train", "--resume", str(odd / "none")],
        ["audit", str(odd)],
        ["audit", str(odd / "t.csv")],
        ["experiment", str(odd / "run.toml")],
        ["declare", str(odd / "t.csv"), "--label", "y", "--client", NAMED],
        [f"li{NAMED}st"],
        ["list", f"--{NAMED}"],
    ]
    for words in lines:
        for more in ([], ["--json"]) if words[0] != "declare" else ([],):
            result = CliRunner().invoke(main, [*words, *more])
            assert result.exit_code == (0 if words[0] == "declare" else 2), (words, result.output)
            assert not unseen(result.output), (words, result.output)


def _sets(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def test_a_run_and_an_audit_in_a_hostile_folder_are_bare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path(NAMED)
    for words in (["train", *_sets(SMALL), "--out", str(out)], ["audit", str(out)]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert not unseen(result.output)
    assert "a\\x1b[31mb\\u202ec" in CliRunner().invoke(main, ["evaluate", str(out / "no")]).output


def test_cells_of_a_grid_are_bare(monkeypatch):
    console, written = screen(monkeypatch)
    console.print(experiment_report.excluded_table({"cell": NAMED}))
    assert not unseen(written())


def test_paths_are_quoted_as_toml_whatever_they_contain():
    for path in ("runs/a", 'a "b"\\c', "tab\tdel\x7f", "été/😀", "\x1f"):
        assert tomllib.loads(f"path = {quoted(path)}")["path"] == path
