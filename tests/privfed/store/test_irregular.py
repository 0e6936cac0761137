"""What is no regular file in the place of one: nothing waits for it, and it hides no other run."""

import ast
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from commands import run as command
from lanes import every_case
from small import trained

import accounting
import privfed
from accounting import regular
from accounting.durable import append, write_atomically
from accounting.errors import Misplaced

SECONDS = 60
FILES = (
    *("ledger.jsonl", "metrics.jsonl", "report/summary.json", "checkpoint.safetensors"),
    *("config.toml", "aborts.jsonl", "excluded.jsonl", "counted_by.txt", "constants.safetensors"),
    *("report/public_clients.json", "report/metrics.csv", "releases/000001.safetensors"),
    *("private/canaries.f64", "private/canaries.safetensors", "private/key", "private/population"),
)
READERS = {
    "audit": ("audit", "RUN"),
    "audit of two": ("audit", "RUN", "GOOD"),
    "runs": ("runs", "FOLDER"),
    "compare": ("compare", "RUN", "GOOD"),
    "report": ("report", "RUN"),
    "resume": ("train", "--resume", "RUN", "--set", "run.rounds=3"),
    "evaluate": ("evaluate", "RUN"),
    "export": ("export", "RUN", "--to", "OUT.safetensors"),
    "membership": ("attack", "membership", "RUN", "--shadows", 4),
    "counted": ("train", "--set", 'privacy.prior=["RUN"]', "--set", "run.rounds=0"),
    "started from": ("train", "--set", "model.init=RUN", "--set", "run.rounds=0"),
}
FROM_USERS = {
    "accounting/regular.py",
    *("privfed/config/reading.py", "privfed/config/catalog.py", "privfed/cli/carriers.py"),
    *("privfed/deploy/site/user_modules.py", "privfed/deploy/site/site_check.py"),
    *("privfed/deploy/files/federation_file.py", "privfed/report/page/write.py"),
    *("privfed/cli/experiment.py", "privfed/data/sources/folders.py"),
    "privfed/testing/__init__.py",  # runs that it wrote itself
    *("privfed/data/sources/text.py", "privfed/data/sources/hugging_face.py"),
}
"""Modules that read what users name, which may be a pipe of their shell, or what privfed ships."""
LOOKED_BEFORE = {
    *("privfed/data/tables/columns.py", "privfed/store/folders.py", "privfed/core/errors.py"),
    *("privfed/data/tables/delimited.py", "privfed/auditing/judged_models.py"),
}
"""Modules whose every file was asked whether it is one where it was named (`columns.read_columns`
and `models._read`)."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "good", "run.rounds=2", "data.clients=24", "audit.canaries=20")
    return folder


@pytest.fixture
def runs(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    shutil.copytree(finished / "good", tmp_path / "runs" / "bad")
    return tmp_path / "runs"


def put_fifo(path):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def ended(folder, words, answers):
    places = {"RUN": "bad", "GOOD": "good", "FOLDER": ".", "OUT": "out"}
    for name, place in places.items():
        words = [str(word).replace(name, str(folder / place)) for word in words]
    result = command(*words)
    answers.put((result.exit_code, result.output))


def assert_none_waits(runs, commands):
    """In processes of their own, since nothing else ends one that waits."""
    spawned = multiprocessing.get_context("fork")
    for words in commands:
        answers = spawned.Queue()
        process = spawned.Process(target=ended, args=(runs, words, answers))
        process.start()
        process.join(SECONDS)
        process.kill()
        assert process.exitcode == 0, words
        code, output = answers.get()
        assert code in (0, 2, 3, 4, 5), (words, output)
        assert "Traceback" not in output


@pytest.mark.parametrize("name", FILES[:4])
def test_neither_an_audit_nor_a_listing_waits_for_a_fifo(runs, name):
    put_fifo(runs / "bad" / name)
    assert_none_waits(runs, (READERS["audit"], READERS["runs"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_no_command_waits_for_a_fifo(runs, name):
    put_fifo(runs / "bad" / name)
    assert_none_waits(runs, READERS.values())


def listed(folder):
    rows = json.loads(command("runs", folder, "--json").stdout)["rows"]
    return {Path(row["run"]).name: row["state"] for row in rows}


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "report/summary.json"])
def test_a_bad_run_hides_no_other(runs, name):
    put_fifo(runs / "bad" / name)
    assert set(states := listed(runs)) == {"good", "bad"}
    assert states["good"] != states["bad"]


def test_a_link_to_itself_hides_no_run(runs):
    (runs / "loop").symlink_to("loop")
    (runs / "nowhere").symlink_to("missing")
    assert set(listed(runs)) == {"good", "bad"}


def test_only_regular_files_are_read_and_appended_to(tmp_path):
    put_fifo(tmp_path / "fifo")
    for act in (regular.read_bytes, regular.read_text, lambda path: append(path, b"line")):
        for path in (tmp_path / "fifo", Path("/dev/zero")):
            with pytest.raises(Misplaced, match="a FIFO or a device; expected a regular file"):
                act(path)
    with pytest.raises(IsADirectoryError):
        regular.read_bytes(tmp_path)
    put_fifo(tmp_path / ".file.tmp")
    write_atomically(tmp_path / "file", b"content")
    assert regular.read_text(tmp_path / "file") == "content"


OPENING = {
    *("load", "loadtxt", "genfromtxt", "fromfile", "memmap", "File"),
    *("read_csv", "read_table", "read_json", "ParquetFile", "open_file", "open_stream"),
}
"""Functions of libraries that open the file whose path they are given."""
LIBRARIES = {
    *("np", "numpy", "torch", "json", "tomllib", "pickle", "h5py", "csv", "pq", "parquet", "ipc"),
    *("feather", "pd", "pandas", "pyarrow"),
}


def opens(call):
    """Whether `call` opens a file to read it, or has a library do so."""
    name = called(call.func)
    owner = called(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    mode = [each.value for each in call.args if isinstance(each, ast.Constant)]
    mode += [each.value.value for each in call.keywords if each.arg == "mode"]
    if name in ("read_text", "read_bytes"):
        return owner != "regular"
    if name != "open":
        return (name in OPENING and owner in LIBRARIES) or name in ("load_file", "safe_open")
    if owner == "os":
        return not {"O_WRONLY", "O_DIRECTORY"} & {called(each) for each in ast.walk(call)}
    if owner in ("gzip", "bz2", "lzma", ""):
        return True
    return not call.args or any("r" in str(each) for each in mode)


def called(node):
    """The last name of what is called, or of whose method it is."""
    return getattr(node, "attr", getattr(node, "id", "an expression"))


def reads(tree):
    """Calls that open a file to read it in functions that do not look at what it is first."""
    opening = [*filter(opens, calls(tree))]
    walked = ast.walk(tree) if opening else ()
    functions = [each for each in walked if isinstance(each, ast.FunctionDef)]
    within = {call: function for function in functions for call in calls(function)}
    for call in opening:
        looked = [each for each in calls(within.get(call, call)) if is_a_look(each)]
        if not any(each.lineno <= call.lineno for each in looked):
            yield call.lineno


def calls(tree):
    return [each for each in ast.walk(tree) if isinstance(each, ast.Call)]


def is_a_look(call):
    """Whether `call` refuses, or asks, what is no regular file."""
    return called(call.func) == "is_file" or called(getattr(call.func, "value", None)) == "regular"


@every_case(
    ("source", "lines"),
    [
        ("path.read_text()", [1]),
        ("regular.read_text(path)", []),
        ("with open(path) as file: pass", [1]),
        ("with path.open('rb') as file: pass", [1]),
        ("with path.open('wb') as file: pass", []),
        ("with path.open(encoding='utf-8') as file: pass", [1]),
        ("RunDirectory.open(path)", []),
        ("os.open(path, os.O_RDONLY)", [1]),
        ("os.open(path, os.O_WRONLY)", []),
        ("np.load(path)", [1]),
        ("json.load(path.open('r'))", [1, 1]),
        ("torch.load(path)", [1]),
        ("h5py.File(path, 'r')", [1]),
        ("def f(path):\n regular.refuse_irregular(path)\n np.load(path)", []),
        ("def f(path):\n np.load(path)\n regular.refuse_irregular(path)", [2]),
        ("def f(path):\n if path.is_file():\n  np.load(path)", []),
        ("os.open(folder, os.O_RDONLY | os.O_DIRECTORY)", []),
        ("loss.load(path)", []),
    ],
)
def test_the_guard_sees_what_opens_files(source, lines):
    assert [*reads(ast.parse(source))] == lines


def test_files_of_runs_are_read_in_one_place():
    found = {}
    for package in (accounting, privfed):
        root = Path(package.__file__).parent
        for path in root.rglob("*.py"):
            if lines := [*reads(ast.parse(path.read_text("utf-8")))]:
                found[str(path.relative_to(root.parent))] = lines
    allowed = FROM_USERS | LOOKED_BEFORE
    assert found.keys() <= allowed, "use accounting.regular, or say why not in FROM_USERS"
