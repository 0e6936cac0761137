"""What stands in private data is quoted nowhere, wherever it stands, unless a command is asked to.

Files of every source are broken in every position, and what stands there is looked for in all that
a user gets to see. A case is files, the configuration, where the message has to point, and what may
not be quoted.
"""

import ast
import functools
import gzip
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import traceback
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow
import pytest
import torch
from click.testing import CliRunner
from lanes import every_case
from printing_worker import SECRET, Unlike, says_much
from pyarrow import parquet
from small import trained
from waiting import until

import privfed
from privfed.cli.answering import answers_errors, never_quotes, quotes_on_request
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Broken, PrivfedError, Refused, private_text, public_text
from privfed.core.failures import _uncaught_hook, guarded
from privfed.grid import cell_job
from privfed.grid.cell_job import Job, run_cell
from privfed.grid.process_pool import Ended, WorkerDied, work
from privfed.run import process_group as follow
from privfed.run.check import check

NUMBER = 91827
HEADER = "who,x,sex,y"
GOOD = [f"{who},0.{n},f,{n % 2}" for who in "abcdef" for n in range(4)]
TABLE = {
    "source": '"table"',
    "path": '"t.csv"',
    "client": '"who"',
    "label": '"y"',
    "classes": "2",
    "features": "{x = [0, 1]}",
    "categories": '{sex = ["f", "m"]}',
    "clients": "6",
    "holdout": '"clients"',
}
LEAF = {"source": '"leaf"', "path": '"leaf"', "classes": "4", "clients": "2"}
TFF = {
    "source": '"tff"',
    "path": '"t.h5"',
    "x": '"pixels"',
    "label": '"label"',
    "classes": "2",
    "shape": "[1]",
    "bounds": "[0, 1]",
    "clients": "2",
}
HUGGING_FACE = TFF | {
    "source": '"huggingface"',
    "path": '"hf"',
    "x": '"x"',
    "label": '"y"',
    "client": '"who"',
}
FOLDERS = {
    "source": '"folders"',
    "path": '"people"',
    "shape": "[1, 1, 1]",
    "labels": '["0", "1"]',
    "clients": "2",
}
TEXT = {"source": '"text"', "path": '"plays"', "clients": "2"}
IDX = {"source": '"idx"', "path": '"idx"', "clients": "2"}


def csv(row, **changes):
    """`row` as the third of a table, and the keys that change."""
    lines = [HEADER, *GOOD[:2], row, *GOOD[2:]]
    return {"t.csv": "\n".join(lines)}, TABLE | changes


def of_type(name, column, **changes):
    """A Parquet file with another column of x."""
    table = pyarrow.table({"who": ["a", "b"], "sex": ["f", "f"], "y": [0, 1], name: column})
    return {"t.parquet": table}, TABLE | {"path": '"t.parquet"'} | changes


def archive(**arrays):
    keys = {"path": '"t.npz"', "features": '{"*" = [0, 1]}', "categories": "{}"}
    whole = {"who": np.array(["a", "b"]), "y": np.array([0, 1]), **arrays}
    return {"t.npz": whole}, TABLE | keys


def leaf(users, *more, text=False, raw=None):
    files = {"leaf/train/a.json": raw or json.dumps({"user_data": users})}
    for n, other in enumerate(more):
        files[f"leaf/train/b{n}.json"] = json.dumps({"user_data": other})
    return files, LEAF | ({"text": "true"} if text else {})


def tff(clients, **changes):
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        for client, fields in clients.items():
            for name, array in fields.items():
                file[f"examples/{client}/{name}"] = array
    return {"t.h5": stored.getvalue()}, TFF | changes


def hugging_face(**columns):
    whole = {"who": ["a", "b"], "x": [0.0, 1.0], "y": [0, 1], **columns}
    return {"hf/train.parquet": pyarrow.table(whole)}, HUGGING_FACE


def folders(name, table=None):
    """An image of one pixel by this name, after a good one or with a table of labels."""
    if table:
        return {f"people/{name}": GRAY, "t.csv": table}, FOLDERS | {"label_table": '"t.csv"'}
    return {"people/a/0/1.ppm": GRAY, f"people/{name}": GRAY}, FOLDERS


def tweets(x, y=1):
    """Two users of Sent140, of whom the second is odd."""
    users = {"a": {"x": [["1", "hello"]], "y": [1]}, "b": {"x": [x], "y": [y]}}
    return leaf(users)[0], LEAF | TWEETS


def plays(*texts):
    return {f"plays/{n}.txt": text for n, text in enumerate(texts)}, TEXT


def idx(images, labels=b"\0\0\x08\x01\0\0\0\x01\0", suffix=""):
    names = ("images-idx3-ubyte", "labels-idx1-ubyte")
    contents = zip(names, (images, labels), strict=True)
    return {f"idx/{name}{suffix}": content for name, content in contents}, IDX


FINE = {"x": [[0.5]], "y": [1]}
GRAY = b"P5 1 1 255\n\x7f"
PIXEL = {"pixels": np.ones((1, 1)), "label": np.ones(1, int)}
TWEETS = {"text": "true", "classes": "0", "labels": '["0", "1"]', "field": "1"}
IMAGE = b"\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01\0"
LABELS = {"classes": "0", "labels": '["0", "1"]'}
BOUNDED = {"classes": "0", "label_bounds": "[0, 1]"}
STRICT = {"outside": '"refuse"'}
PUBLIC = {"holdout": '"test"', "test_path": '"public.csv"'}
SHARED = "\n".join([HEADER, *GOOD, f"{SECRET},1,f,0"])
BOTH = {"t.csv": SHARED, "public.csv": f"{HEADER}\n{SECRET},1,f,0"}
BARE = {"t.csv": f"{SECRET},1,f,0\n" + "\n".join(GOOD)}
THIRD = r"t\.csv, row 3\b.*"
USER = r"a\.json, user 2\b.*"
MARKED = np.array([(1,), (2,)], dtype=[(SECRET, "<i4")])
BROKEN_HEADER = b"\x93NUMPY\x01\0\x13\0" + f"{{'{SECRET}': 1}}\n".encode()
CASES = {
    "a word for a number": (csv(f"a,{SECRET},f,1"), THIRD + "'x'.*is not a number"),
    "beyond its bounds": (csv(f"a,{NUMBER},f,1", **STRICT), THIRD + r"'x'.*\[0, 1\]"),
    "an unknown category": (csv(f"a,1,{SECRET},1", **STRICT), THIRD + "'sex'.*one of f, m"),
    "a word for a class": (csv(f"a,1,f,{SECRET}"), THIRD + "'y'.*is not a number"),
    "an unknown class": (csv(f"a,1,f,{SECRET}", **LABELS), THIRD + "'y'.*one of 0, 1"),
    "a class beyond": (csv(f"a,1,f,{NUMBER}"), THIRD + "'y'.*from 0 to 1"),
    "a word to predict": (csv(f"a,1,f,{SECRET}", **BOUNDED), THIRD + "'y'.*is not a number"),
    "a number to predict": (csv(f"a,1,f,{NUMBER}", **BOUNDED, **STRICT), THIRD + "'y'.*bounds"),
    "a label that is no column": (
        csv(f"a,1,f,{NUMBER}", label='["y", "z"]', classes="0"),
        r"'z', but t\.csv has no such column",
        "sex",
    ),
    "neither 0 nor 1": (
        csv(f"a,{NUMBER},f,1", label='["x", "y"]', classes="0", features="{}"),
        r"t\.csv, row 2\b.*'x' is neither",
        "0.1",
    ),
    "a client with blanks": (csv(f"{SECRET} ,1,f,0"), THIRD + "'who'.*one name"),
    "a row too long": (csv(f"a,1,f,0,{SECRET}"), THIRD + "5 columns, but 4 are expected"),
    "a row too short": (csv(f"{SECRET},1"), THIRD + "2 columns, but 4 are expected"),
    "rows in a row": (
        csv(f"Row #7: Expected 5 columns, got 6: {SECRET},,,,"),
        THIRD + "4 are expected",
    ),
    "bad encoding": (
        ({"t.csv": f"{HEADER}\na,1,{SECRET}".encode() + b"\xff,0\n"}, TABLE),
        r"t\.csv, row 1, column 3.*UTF-8",
        None,
    ),
    "bad encoding of the header": (
        ({"t.csv": f"who,x,sex,y,{SECRET}".encode() + b"\xff\na,1,f,0,0\n"}, TABLE),
        r"t\.csv",
        None,
    ),
    "no header": ((BARE, TABLE), r"'x', but t\.csv has no such column.*one of the 4"),
    "two columns alike": (
        ({"t.csv": f"who,x,{SECRET},y,{SECRET}\na,1,f,0,0\n"}, TABLE),
        r"t\.csv has the same name for columns 3 and 5",
    ),
    "a column that a pattern means": (
        (
            {"t.csv": f"who,{SECRET},sex,y\na,1,f,0\nb,zebra,f,0\n"},
            TABLE | {"features": '{"*"=[0,1]}'},
        ),
        r"t\.csv, row 2: column number 2 \(of '\*'\)",
        "zebra",
    ),
    "clients who train and test": ((BOTH, TABLE | PUBLIC), "1 clients of the test set also train"),
    "a type with names": (
        of_type("x", pyarrow.array([{SECRET: 1}, {SECRET: 2}])),
        r"t\.parquet: column 'x' is of type struct; expected numbers",
    ),
    "words for numbers": (of_type("x", [SECRET, "1"]), r"t\.parquet, row 1: column 'x'"),
    "lists of words": (of_type("x", [[SECRET], [""]]), "column 'x' is of type list", None),
    "an archive of words": (archive(**{SECRET: np.array(["a", "b"])}), r"t\.npz.*number 3", None),
    "an archive of records": (archive(**{SECRET: MARKED}), r"t\.npz.*number 3.*void32", None),
    "arrays of other lengths": (
        archive(**{SECRET: np.zeros(3)}),
        r"t\.npz.*number 3.* has 3 rows",
        None,
    ),
    "a broken archive": (
        ({"t.npz": {"who.npy": f"{SECRET}".encode()}}, TABLE | {"path": '"t.npz"'}),
        r"'x', but t\.npz has no such column",
        "are who",
    ),
    "an array with a broken header": (
        (
            {"t.npz": {f"{n}.npy": BROKEN_HEADER for n in ("who", "x", "y")}},
            TABLE | {"path": '"t.npz"', "categories": "{}"},
        ),
        r"t\.npz: the array 'x' is missing, damaged",
    ),
    "no Parquet file": (
        ({"t.parquet": SECRET}, TABLE | {"path": '"t.parquet"'}),
        r"t\.parquet",
        None,
    ),
    "a table that ends": (
        ({"t.csv.gz": gzip.compress(SHARED.encode())[:-20]}, TABLE | {"path": '"t.csv.gz"'}),
        r"t\.csv\.gz",
        None,
    ),
    "a word in LEAF": (
        leaf({"a": FINE, "b": {"x": [[0.1], [SECRET]], "y": [1, 1]}}),
        USER + "example 2",
    ),
    "other keys in LEAF": (
        leaf({"a": FINE, "b": {"x": [{SECRET: 1}], "y": [1]}}),
        USER + "example 1",
        None,
    ),
    "too large for LEAF": (leaf({"a": FINE, "b": {"x": [[10**400]], "y": [1]}}), USER, None),
    "a label in LEAF": (leaf({"a": FINE, "b": {"x": [[1]], "y": [SECRET]}}), USER + "0 to 3"),
    "a user of another form": (leaf({"a": FINE, SECRET: {"x": [1], "y": []}}), USER + "one length"),
    "a user twice": (
        leaf({"a": FINE, SECRET: FINE}, {SECRET: FINE}),
        r"b0\.json, user 1 .*" + USER,
    ),
    "broken JSON": (
        leaf({}, raw=f'{{"user_data":\n {{"{SECRET}": {SECRET}'),
        r"a\.json, line 2",
        None,
    ),
    "a bad escape": (leaf({}, raw=f'{{"{SECRET}": "\\x"}}'), r"a\.json, line 1, column \d+", None),
    "other JSON": (leaf({}, raw=json.dumps({SECRET: SECRET})), r"a\.json has no object", None),
    "bad encoding in LEAF": (
        leaf({}, raw=b'{"a":\n"' + SECRET.encode() + b"\xff"),
        r"a\.json, line 2",
        None,
    ),
    "numbers as text": (
        leaf({"a": {"x": ["ab"], "y": ["c"]}, "b": {"x": [SECRET], "y": [1]}}, text=True),
        USER + "x or y is not text",
    ),
    "text for numbers": (leaf({"a": FINE, "b": {"x": [SECRET], "y": ["a"]}}), USER, None),
    "a tweet without a text": (
        tweets([SECRET]),
        USER + "has no text there",
    ),
    "a label of a tweet": (
        tweets(["1", "b"], SECRET),
        USER + "example 1 is no class.*one of 0, 1",
    ),
    "a client of HDF5 with blanks": (tff({"A": PIXEL, f"{SECRET} ": PIXEL}), "client 2 has spaces"),
    "a class beyond in HDF5": (
        tff({"A": PIXEL, SECRET: {**PIXEL, "label": np.array([NUMBER])}}),
        r"t\.h5, client 2, example 1 is no class",
        str(NUMBER),
    ),
    "another shape in HDF5": (
        tff({"A": PIXEL, SECRET: {**PIXEL, "pixels": np.ones((1, 91827))}}),
        "client 2, an example of 'pixels' has another shape",
        str(NUMBER),
    ),
    "a missing array in HDF5": (
        tff({"A": PIXEL, SECRET: {"pixels": np.ones((1, 1))}}),
        "client 2",
        None,
    ),
    "bad encoding in HDF5": (
        tff(
            {"a": {"pixels": np.array([SECRET.encode() + b"\xff"], dtype=h5py.string_dtype())}},
            text="true",
            label='""',
            classes="0",
            shape="[]",
            bounds="[]",
        ),
        "client 1, example 1: 'pixels' is not UTF-8",
        None,
    ),
    "no HDF5 file": (({"t.h5": SECRET}, TFF), r"t\.h5 cannot be read", None),
    "a word for a class in Parquet": (hugging_face(y=["1", SECRET]), "row 2 is no class"),
    "a client with blanks in Parquet": (hugging_face(who=["a", f"{SECRET} "]), "row 2.*one name"),
    "words for numbers in Parquet": (hugging_face(x=["1", SECRET]), "'x' holds no numbers", None),
    "other columns in Parquet": (
        ({"hf/train.parquet": pyarrow.table({SECRET: [1]})}, HUGGING_FACE),
        "has 0 columns 'x' among 1 columns",
    ),
    "a folder that is no class": (folders(f"b/{SECRET}/1.ppm"), "client 2, image 1 is no class"),
    "another file among images": (folders(f"b/1/{SECRET}.txt"), "label 1 holds another entry"),
    "no image in a folder": (
        ({f"people/{SECRET}/1/{SECRET}.png": SECRET}, FOLDERS),
        "client 1, image 1 cannot be read as an image",
        None,
    ),
    "an image without a row": (
        folders(f"a/{SECRET}.ppm", "file,label\na/1.ppm,0"),
        "no label of .*client 1, image 1",
    ),
    "bad encoding in a play": (
        plays("A:\nHail!\n", f"B:\n{SECRET}".encode() + b"\xff"),
        r"1\.txt, line 2",
        None,
    ),
    "no speech": (plays(SECRET), "plays holds no speech", None),
    "no images": (
        idx(SECRET.encode()),
        "images-idx3-ubyte is of another type",
        SECRET[:4].encode().hex(),
    ),
    "more images": (
        idx(IMAGE[:4] + SECRET.encode() + b"\0\0"),
        "holds 1 bytes after its header",
        str(int.from_bytes(b"SECR", "big")),
    ),
    "no gzip": (idx(SECRET.encode(), SECRET.encode(), ".gz"), "an incomplete gzip", "SE"),
    "a label beyond": (idx(IMAGE, b"\0\0\x08\x01\0\0\0\x01\xd3"), "label 1 of .*beyond 9", "211"),
    "other files": (({f"idx/{SECRET}": b""}, IDX), "0 pairs .* among 1 files"),
}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pyarrow.Table):
            parquet.write_table(content, path)
        elif isinstance(content, dict):
            _archive(path, content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _archive(path, arrays):
    if not any(isinstance(content, bytes) for content in arrays.values()):
        np.savez(path, **arrays)
        return
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(name, content)


def settings(data):
    pairs = [(f"data.{key}", value) for key, value in data.items() if value not in ("0", "{}")]
    small = [("cohort.size", "2"), ("privacy.delta", "1e-2"), ("run.rounds", "2")]
    return [f"{key}={value}" for key, value in pairs + small]


def asked(command, data, *words):
    given = [word for pair in settings(data) for word in ("--set", pair)]
    return CliRunner().invoke(main, [command, *map(str, words), *given])


@pytest.mark.parametrize("name", CASES)
def test_what_stands_in_data_is_quoted_on_request_only(tmp_path, monkeypatch, name):
    """Case by case: the message points to the place, and the value is in it with the flag alone."""
    (files, data), place, *quoted = CASES[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path, files)
    private = {SECRET, str(NUMBER), *filter(None, quoted)}
    for words in ((), ("--json",)):
        result = asked("check", data, *words)
        assert result.exit_code == 2, result.output
        assert re.search(place, result.stderr), result.stderr
        shown = result.output.replace(str(tmp_path), "")
        assert not [value for value in private if value in shown], shown
    with pytest.raises(Refused) as refused:
        check(load(None, settings(data)))
    printed = "".join(traceback.format_exception(refused.value)).replace(str(tmp_path), "")
    assert SECRET not in printed, "a traceback quotes the exception that led here"
    with_flag = asked("check", data, "--show-values").stderr
    assert re.search(place, with_flag)
    expected = quoted[0] if quoted else SECRET if SECRET in str(files) + str(data) else str(NUMBER)
    assert expected is None or expected in with_flag, with_flag


SOURCE = f"""
import warnings
from privfed.data.sources.digits import Digits
from privfed.core.errors import Refused

SECRET = "-".join(["{SECRET[:6]}", "{SECRET[7:]}"])

class Source(Digits):
    def load(self, clients, streams):
        warnings.warn(SECRET, stacklevel=1)
        try:
            dict()[SECRET]
        except KeyError as error:
            raise RAISED from error
"""
FOREIGN = {
    "bug": ("ValueError(SECRET)", 1),
    "no memory": ("MemoryError(SECRET)", 2),
    "no error of the system": ("OSError(SECRET)", 2),
    "refusal": ('Refused("it is odd", SECRET)', 2),
}


@every_case("kind", FOREIGN)
def test_texts_of_a_users_own_source_and_its_libraries_are_quoted_on_request(
    tmp_path, monkeypatch, kind
):
    raised, code = FOREIGN[kind]
    module = f"hostile_{kind.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(SOURCE.replace("RAISED", raised))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["check", "--set", f"data.source={module}:Source"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _printed  # which pytest would keep
        result = CliRunner().invoke(main, words)
        shown = CliRunner().invoke(main, [*words, "--show-values"])
    assert result.exit_code == code
    assert SECRET not in result.output
    assert SECRET in shown.stderr.replace(f"UserWarning: {SECRET}", "") + str(shown.exception)
    assert f"{module}.py:10: UserWarning\n" in result.stderr
    assert f"UserWarning: {SECRET}" in shown.stderr
    assert code == 2 or f"{module}.py" in result.stderr, "a bug keeps where it came from"


def _printed(message, category, filename, lineno, file=None, line=None):
    print(warnings.formatwarning(message, category, filename, lineno, line), file=sys.stderr)


BAD = "\n".join([HEADER, *GOOD[:2], f"a,{SECRET},f,1"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on a good table."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder, {"t.csv": "\n".join([HEADER, *GOOD])})
    data = TABLE | {"path": json.dumps(str(folder / "t.csv"))}
    result = asked("train", data, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def broken(finished):
    """That run, and then a cell of its table is broken."""
    good = (finished / "t.csv").read_text()
    write(finished, {"t.csv": BAD})
    yield finished
    write(finished, {"t.csv": good})


COMMANDS = {
    "train": ["train", "RUN.toml", "--out", "new"],
    "resume": ["train", "--resume", "run", "--set", "run.rounds=3"],
    "check": ["check", "RUN.toml"],
    "evaluate": ["evaluate", "run"],
    "other data": ["evaluate", "run", "--data", "t.csv"],
    "personalise": ["evaluate", "run", "--personalise", "1"],
    "inversion": ["attack", "inversion", "run", "--out", "new"],
    "property": ["attack", "property", "run", "--out", "new"],
    "predict": ["predict", "run", "--data", "t.csv", "--out", "new.csv"],
    "membership": ["attack", "membership", "run", "--out", "new"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_reads_private_data_quotes_it_on_request(broken, name, monkeypatch):
    monkeypatch.chdir(broken)
    (broken / "RUN.toml").write_text((broken / "run/config.toml").read_text())
    quiet = CliRunner().invoke(main, COMMANDS[name])
    shown = CliRunner().invoke(main, [*COMMANDS[name], "--show-values"])
    assert (quiet.exit_code, shown.exit_code) == (2, 2), quiet.output
    assert "t.csv, row 3: column 'x'" in quiet.stderr
    assert "--show-values gives details" in quiet.stderr
    assert SECRET not in quiet.output
    assert f"it holds '{SECRET}'" in shown.stderr
    assert not [*broken.glob("new*")]


def test_declare_takes_its_sample_for_public_only_once_it_is_read(tmp_path):
    """A private file by mistake: what is refused quotes nothing, though what is written would."""
    write(tmp_path, {"t.csv": f"who,{SECRET}\na,1\n"})
    words = ["declare", str(tmp_path / "t.csv"), "--label", "y"]
    quiet = CliRunner().invoke(main, words)
    assert quiet.exit_code == 2
    assert SECRET not in quiet.output
    assert SECRET in CliRunner().invoke(main, [*words, "--show-values"]).stderr


def test_all_commands_have_the_flag_but_those_that_read_nothing_private():
    def flagged(group, prefix=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from flagged(command, f"{name} ")
            elif any(option.name == "show_values" for option in command.params):
                yield prefix + name

    attacks = {"attack inversion", "attack property", "attack membership"}
    reading = {"train", "check", "evaluate", "declare", "predict", "export", "describe"}
    reading |= {"survive", "regress"}
    sites = {"federation run", "site check"}
    assert set(flagged(main)) == reading | attacks | sites
    assert set(main.commands) - reading - {"attack"} == {
        "audit",
        "calibrate",
        "new",
        "canary",
        "claim",
        "compare",
        "federation",
        "flower",
        "nvflare",
        "experiment",  # never quotes: its reasons stand in tables
        "list",
        "runs",
        "site",
        "report",  # never quotes: what it writes goes to others
        "verify",
    }


@every_case("error", [ValueError(SECRET), OSError(SECRET), Refused("odd", SECRET)])
def test_a_cell_of_an_experiment_gives_no_private_reason(tmp_path, monkeypatch, error):
    def train(*_):
        raise error

    monkeypatch.setattr(cell_job, "train", train)
    monkeypatch.setattr(cell_job, "assembled", lambda raw: raw)
    result = run_cell(Job("cell", {}, str(tmp_path), False))
    assert result["status"] in ("failed", "refused")
    assert result["reason"]
    assert SECRET not in json.dumps(result) + (tmp_path / "result.json").read_text()


ENDS = [SystemExit(SECRET), Unlike(SECRET), ValueError(SECRET), OSError(2, SECRET)]


@pytest.mark.parametrize("error", [*ENDS, Refused("odd", SECRET)])
def test_another_rank_quotes_nothing(monkeypatch, capsys, error):
    def joining(*_):
        raise error

    monkeypatch.setattr(follow, "joining", joining)
    monkeypatch.setattr(sys, "argv", ["follow", "1", "2", "1"])
    with pytest.raises(SystemExit):
        follow.main()
    said = capsys.readouterr()
    assert "rank: " in said.err
    assert SECRET not in said.out + said.err


def test_a_command_that_never_quotes_does_not_quote_a_bug(capsys):
    def command():
        raise ValueError(SECRET)

    commands = ((never_quotes(command), {}), (quotes_on_request(command), {"show_values": False}))
    for wrapped, given in commands:
        with pytest.raises(SystemExit) as ended:
            wrapped(**given)
        assert ended.value.code == 1
        shown = capsys.readouterr().err
        assert SECRET not in shown
        assert ("--show-values" in shown) == bool(given), "a flag that the command does not have"


@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize("wrapper", [never_quotes, quotes_on_request])
def test_however_a_part_ends_a_command_its_text_is_not_printed(capsys, wrapper, error):
    def command():
        raise error

    given = {"show_values": False} if wrapper is quotes_on_request else {}
    with pytest.raises(SystemExit) as ended:
        wrapper(command)(**given)
    assert isinstance(ended.value.code, int)
    shown = capsys.readouterr()
    assert type(error).__name__ in shown.err or "No such file" in shown.err
    assert SECRET not in shown.out + shown.err


def test_an_exit_with_a_number_is_an_exit():
    def command():
        raise SystemExit(7)

    with pytest.raises(SystemExit) as ended:
        never_quotes(command)()
    assert ended.value.code == 7


def test_what_python_prints_by_itself_quotes_nothing(capsys):
    before = threading.excepthook, sys.unraisablehook, warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _printed
        with guarded():
            says_much()
    shown = capsys.readouterr()
    for kind in ("UserWarning", "KeyError", "ValueError"):
        assert kind in shown.err
    assert SECRET not in shown.out + shown.err
    assert before == (threading.excepthook, sys.unraisablehook, warnings.formatwarning)


def test_an_interrupt_that_nobody_could_catch_comes_once_more():
    """Of a person's Ctrl-C that hit a destructor: else the run would go on, unheard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _uncaught_hook(False)(SimpleNamespace(exc_type=KeyboardInterrupt, exc_value=None))
        with pytest.raises(KeyboardInterrupt):
            until(lambda: False, "the interrupt")  # a long sleep would not see it before its end
    finally:
        signal.signal(signal.SIGINT, before)


def unallocated():
    torch.empty(10**15)


def overflowing():
    torch.empty(2**40, 2**40)


def unallocated_by_numpy():
    np.empty(10**15)


@pytest.mark.parametrize("command", [unallocated, overflowing, unallocated_by_numpy])
def test_memory_that_is_not_there_is_one_message(command, capsys):
    with pytest.raises(SystemExit) as ended:
        answers_errors(command)()
    assert ended.value.code == 2
    assert "not enough memory; lower run.chunk" in capsys.readouterr().err


def test_workers_quote_nothing_however_they_end(capfd):
    ended = [
        event.result
        for event in work(says_much, (SystemExit(SECRET), Unlike(SECRET)), 1)
        if isinstance(event, Ended)
    ]
    assert [type(result) for result in ended] == [WorkerDied, WorkerDied]
    shown = capfd.readouterr()
    for kind in ("UserWarning", "KeyError", "ValueError", "SystemExit", "Unlike"):
        assert kind in shown.err
    assert SECRET not in shown.out + shown.err


def test_only_what_privfed_or_the_system_wrote_is_public():
    assert public_text(Refused("odd", SECRET)) == "odd"
    assert private_text(Refused("odd", SECRET)) == SECRET
    assert public_text(Broken("odd")) == "odd"
    assert public_text(KeyError(SECRET)) == "KeyError"
    assert private_text(KeyError(SECRET)) == repr(SECRET)
    missing = FileNotFoundError(2, os.strerror(2), "t.csv")
    said = "t.csv: No such file or directory"
    assert (public_text(missing), private_text(missing)) == (said, "")
    odd = OSError(2, SECRET, "t.csv")
    assert public_text(odd) == said
    assert SECRET in private_text(odd)
    assert public_text(OSError(123456, SECRET)) == "OSError"
    assert (public_text(OSError(SECRET)), private_text(OSError(SECRET))) == ("OSError", SECRET)


def test_a_refusal_keeps_what_is_private_on_its_way_to_another_process():
    import pickle

    error = pickle.loads(pickle.dumps(Refused("odd", private=SECRET)))
    assert (str(error), error.private, type(error)) == ("odd", SECRET, Refused)


PACKAGE = Path(privfed.__file__).parent
QUOTES_CODE_OR_CONFIGURATION = {
    "auditing/joint_audit.py",
    "core/schedules.py",
    "auditing/run_audit.py",
    "auditing/released_function.py",
    "cli/calibrate.py",
    "config/overrides.py",
    "testing/__init__.py",
    "config/reading.py",
    "auditing/prior_runs.py",
    "deploy/region/relay.py",
    "deploy/site/site_check.py",
    "grid/tables.py",
    "privacy_attacks/subject.py",
    "client/silos.py",
    "models/precision.py",
    "models/pretrained.py",
    "models/recipes.py",
    "models/calling.py",
    "core/parts.py",
    "plan/calibration/example_sampling.py",
    "plan/calibration/solving.py",
    "plan/plan.py",
    "plan/solved_parts.py",
    "privacy/mechanisms/buffered.py",
    "analytics/count_model.py",
    "plan/rule.py",
    "run/watch/watcher.py",
    "store/lineage.py",
    "trained/stored_model.py",
}
"""Where a message has another exception's: of code, made-up examples and files without clients."""


@functools.cache
def handlers(path):
    text = path.read_text(encoding="utf-8")
    return [
        (node, [each for each in ast.walk(node) if isinstance(each, ast.Raise)])
        for node in (ast.walk(ast.parse(text)) if "except" in text else ())
        if isinstance(node, ast.ExceptHandler)
    ]


def test_no_message_about_data_contains_that_of_an_exception():
    """In `privfed.data`, neither in the message nor in the chain that a traceback prints."""
    quoting = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for handler, raises in handlers(path):
            for raised in raises:
                first = raised.exc.args[:1] if isinstance(raised.exc, ast.Call) else []
                uses = [each.id for arg in first for each in ast.walk(arg) if hasattr(each, "id")]
                if handler.name and handler.name in uses and "public_text" not in uses:
                    quoting.add(name)
                cause = raised.cause
                bare = raised.exc is None
                apart = isinstance(cause, ast.Constant) and cause.value is None
                assert bare or apart or not name.startswith("data/"), (name, raised.lineno)
    quoting -= {name for name in quoting if name.startswith("secure/")}  # caught by the protocol
    assert quoting <= QUOTES_CODE_OR_CONFIGURATION, quoting - QUOTES_CODE_OR_CONFIGURATION
    assert issubclass(Refused, PrivfedError)


def test_no_message_contains_the_whole_of_an_exception():
    """As `repr` has it: that of a text that cannot be decoded holds all of the file."""
    assert SECRET in repr(UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, "odd"))
    whole = set()
    for path in PACKAGE.rglob("*.py"):
        for handler, _ in handlers(path):
            for part in ast.walk(handler):
                shown = isinstance(part, ast.FormattedValue) and part.conversion in map(ord, "ra")
                called = isinstance(part, ast.Call) and ast.unparse(part.func) in ("repr", "ascii")
                value = part.value if shown else part.args[0] if called else None
                if isinstance(value, ast.Name) and value.id == handler.name:
                    whole.add((path.name, part.lineno))
    assert not whole


def test_a_broken_file_of_a_run_is_quoted_by_no_command(finished, tmp_path, monkeypatch):
    """Who was public in it, say: names of people stand there, and not as UTF-8."""
    shutil.copytree(finished / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    files = [path for path in Path("run").rglob("*.*") if path.name != ".lock"]
    assert {"public_clients.json", "config.toml", "metrics.jsonl"} <= {path.name for path in files}
    for path in files:
        good = path.read_bytes()
        path.write_bytes(b'{"format": 1, "' + SECRET.encode() + b'": ["\xff"]}\n')
        looks = ["audit", "run"], ["runs", "."], ["compare", "run", "run"]
        for words in (*looks, ["train", "--resume", "run"], ["evaluate", "run"]):
            result = CliRunner().invoke(main, words)
            assert SECRET not in result.output + str(result.exception), (path, words)
            assert result.exit_code == 5 or words[0] != "audit", path
        path.write_bytes(good)


MEASURES = re.compile(r"(len|int|tuple)\(.*\)|self\.\w+|.*\.shape(\[.*\])?|.* [+-] .*")
"""Numbers, places and what the run file says."""
NO_DATA = {
    "or_labels",
    *(
        "at",
        "called",
        "classes",
        "count",
        "delimiter",
        "examples.classes",
        "file",
        "first",
        "folder",
    ),
    *("fraction", "problem", "arrays[name].dtype.name", "high", "hint", "images", "key", "label"),
    *("labels", "', '.join(labels)", "leaked[0]", "line", "low", "name", "number", "path"),
    *("', '.join(place)", "Path.cwd()", "type_name(kind)", "_problem(words, row)", "row", "sample"),
    *("second", "shown", "test", "train", "user.place", "users[user.name].place", "vocabulary"),
    *("where", "why", "words.first_row(empty)"),
    *("encoding", "format", "where.format(row=row)", "public_text(error)", "public_text(refused)"),
    "place(int(beyond.any(1).argmax()))",
    *("_TABLES", "table", "table.hint(names)", "table.naming", "numbers.dtype.name"),
    *("type(dataset).__name__", "type(table).__name__"),
    *("place(index)", "place(int(finite.argmin()))", "place(next(wrong, 0))"),
    *("sites.per_client", "sites.count", "sites.partition", "site", "other"),
    *("column", "holder", "empty", "words.first_row(nothing)"),
    *("SHAPE", "_EXAMPLES", "_EXPECTED", "_FORM", "', '.join(_FORMATS)", "height", "width"),
    *("' or '.join(map(str, stored))", "declared if self.names else numbered", "expected", "field"),
    *("place(row)", "place(wrong)", "split", "str(folder)", "library.MAX_IMAGE_PIXELS"),
    *(
        "kind",
        "', '.join(map(repr, shapes.inputs))",
        "words if name == Y else '; pass an array of numbers'",
    ),
    *("files.first_row(empty)", "present.count(name)"),
}
"""What else messages about data contain; each was looked at, and holds nothing out of a file."""


def test_what_messages_about_data_contain_was_looked_at():
    """Something new in a message may be a cell: then it belongs into `private`."""
    new = set()
    for path in (PACKAGE / "data").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused":
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.FormattedValue):
                        new.add(ast.unparse(part.value))
    assert not {text for text in new - NO_DATA if not MEASURES.fullmatch(text)}


def test_scores_on_other_data_say_in_json_too_that_no_epsilon_covers_them(finished):
    def of(*words):
        result = CliRunner().invoke(main, ["evaluate", str(finished / "run"), *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    other = ("--data", str(finished / "t.csv"))
    note = json.loads(of(*other, "--json"))["note"]
    assert "not covered" in note
    assert " ".join(note.split()) in " ".join(of(*other).split())
    assert json.loads(of("--json"))["note"] is None
    assert "not covered" not in of()
    assert "no ε covers" in json.loads(of("--personalise", "1", "--json"))["note"]


def test_scores_on_examples_of_clients_that_train_say_so(tmp_path):
    outcome = trained(tmp_path / "run", "data.holdout=examples", "run.rounds=1")
    result = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run"), "--json"])
    note = json.loads(result.stdout)["note"]
    assert (
        note == outcome.to_json()["note"] == "simulation: scored on examples of clients that train"
    )
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run")]).stdout
    assert note in " ".join(shown.split())
