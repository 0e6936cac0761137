"""Rows to predict: with labels or without, in any order of columns, to any kind of file."""

import csv
import gzip
import io
import json
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from lanes import every_case
from pyarrow import parquet
from safetensors.torch import load_file
from small import trained
from tables import AGE, FAST, ILL, SEX, WHO, written

from privfed.cli.main import main
from privfed.cli.trained_model import _to_standard_output
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.sources.idx import Idx
from privfed.data.sources.table import Table
from privfed.run.train import train
from privfed.trained.predict import predict


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table, beside which it lies."""
    folder = tmp_path_factory.mktemp("predict")
    written(folder / "t.csv", who=WHO, age=AGE, sex=SEX, ill=ILL)
    keys = [
        *("data.source=table", f"data.path={folder / 't.csv'}", "data.client=who", *FAST),
        *("data.label=ill", 'data.labels=["no", "yes"]', "data.clients=12", "privacy.delta=1e-2"),
        *("data.features={age=[18, 94]}", 'data.categories={sex=["f", "m"]}'),
        *("model.loss=binary_cross_entropy", "data.holdout=clients"),
    ]
    train(load(None, keys), folder / "run")
    local = ('model.local=["1.bias"]', "data.setting=cross_silo")
    train(load(None, [*keys, *local, "run.rounds=1"]), folder / "local")
    return folder / "run"


def asked(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def of(text):
    return list(csv.DictReader(io.StringIO(text)))


def by_hand(run, age, sex):
    """The probability of "yes", from the checkpoint's weights alone."""
    model = load_file(run / "checkpoint.safetensors")
    x = torch.tensor([[(age - 18) / 38 - 1, float(sex == "f"), float(sex == "m")]])
    weight, bias = model["model/1.weight"].double(), model["model/1.bias"].double()
    return float((x.double() @ weight.T + bias).sigmoid())


def test_rows_without_labels_are_predicted_as_the_weights_say(run, tmp_path):
    new = written(tmp_path / "new.csv", sex=SEX[:5], extra="abcde", age=AGE[:5])
    result = asked("predict", run, "--data", new)
    assert result.exit_code == 0, result.output
    rows = of(result.stdout)
    assert [*rows[0]] == ["row", "prediction", "probability_no", "probability_yes"]
    for number, (row, age, sex) in enumerate(zip(rows, AGE, SEX, strict=False), start=1):
        yes = by_hand(run, age, sex)
        assert int(row["row"]) == number
        assert float(row["probability_yes"]) == pytest.approx(yes, abs=1e-6)
        assert float(row["probability_no"]) == pytest.approx(1 - yes, abs=1e-6)
        assert row["prediction"] == ("yes" if yes > 0.5 else "no")
    assert "5, without labels" in result.stderr
    assert "not covered by the run's ε" in result.stderr
    beyond = written(tmp_path / "beyond.csv", age=[1000], sex=["x"])
    (row,) = of(asked("predict", run, "--data", beyond).stdout)
    assert float(row["probability_yes"]) == pytest.approx(by_hand(run, 94, "x"), abs=1e-6)


def test_with_labels_there_are_measures_and_with_clients_their_column(run, tmp_path):
    data = run.parent / "t.csv"
    printed = json.loads(
        asked("predict", run, "--data", data, "--out", tmp_path / "p.csv", "--json").stdout
    )
    scored = asked("evaluate", run, "--data", data, "--predictions", tmp_path / "e.csv", "--json")
    for name in ("auc", "accuracy", "loss"):
        assert printed[name] == json.loads(scored.stdout)[name]
    assert (printed["rows"], printed["labelled"]) == (48, True)
    assert printed["predictions"] == str(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "e.csv").read_text()
    rows = of((tmp_path / "p.csv").read_text())
    assert [row["who"] for row in rows] == WHO
    assert [row["label"] for row in rows] == ILL


def test_one_class_alone_is_predicted_though_nothing_can_be_scored(run, tmp_path):
    new = written(tmp_path / "one.csv", age=[30, 40], sex=["f", "m"], ill=["no", "no"])
    predictions = predict(run, [f"data.path={new}"])
    assert (predictions.rows, predictions.labelled, predictions.measures) == (2, True, {})
    assert "all scored examples have one class" in asked("predict", run, "--data", new).stderr


def test_what_of_a_model_stays_with_clients_is_said_to_be_missing(run):
    shown = asked("predict", run.parent / "local", "--data", run.parent / "t.csv")
    words = " ".join(shown.stderr.split())
    assert "lacks 1 parameters of this model (1.bias) are local to" in words
    assert "lacks" not in asked("predict", run, "--data", run.parent / "t.csv").stderr


def test_parquet_and_npz_hold_the_table_with_its_types(run, tmp_path):
    predictions = predict(run, [f"data.path={run.parent / 't.csv'}"], tmp_path / "p.npz")
    predict(run, [f"data.path={run.parent / 't.csv'}"], tmp_path / "p.parquet")
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    with np.load(tmp_path / "p.npz") as archive:
        assert [*archive] == [*table] == [*predictions.table]
        for name, column in predictions.table.items():
            assert archive[name].dtype == column.dtype
            assert archive[name].tolist() == table[name] == column.tolist()
    assert table["row"][:2] == [1, 2]


@pytest.mark.parametrize("cells, labelled", [(["", "", ""], False), (["no", "yes", "no"], True)])
def test_a_column_of_labels_that_is_empty_is_none(run, tmp_path, cells, labelled):
    new = written(tmp_path / "new.csv", age=[30, 40, 50], sex="fmf", ill=cells)
    assert predict(run, [f"data.path={new}"]).labelled is labelled


def several(path, **changes):
    keys = {"path": str(path), "label": ["cold", "wet"], "features": {"x": [0.0, 1.0]}}
    return Table(**keys | changes)


def number(path):
    return several(path, label="y", label_bounds=[0.0, 10.0])


@every_case(
    "columns, source, message",
    [
        ({"x": [1], "cold": [1]}, several, "has 1 of the 2 label columns; expected all"),
        ({"x": [1, 0], "cold": [1, 1], "wet": [0, ""]}, several, "row 2: the label is empty"),
        (
            {"x": [1, 0], "y": ["", 4]},
            number,
            "row 1: the label is empty, but other rows have labels",
        ),
        ({"y": [4]}, number, "names 'x', but .* has no such column"),
    ],
)
def test_labels_that_are_there_in_part_are_refused(tmp_path, columns, source, message):
    path = written(tmp_path / "t.csv", **columns)
    with pytest.raises(Refused, match=message):
        source(path).load_inputs()


def test_labels_of_every_kind_may_be_missing_and_training_still_needs_them(tmp_path):
    path = written(tmp_path / "t.csv", x=[0.5, 1])
    for source in (several(path), number(path), several(path, label="y", classes=4)):
        examples = source.load_inputs()
        assert (len(examples), examples.labelled) == (2, False)
        with pytest.raises(Refused, match="has no such column"):
            source.load(1, Streams(0))
    empty = written(tmp_path / "e.csv", x=[0.5], y=[""])
    with pytest.raises(Refused, match="row 1: the label 'y' is empty"):
        number(empty).load(1, Streams(0))


def test_images_without_labels_are_a_file_of_them(tmp_path):
    images = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    content = b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes() + images.tobytes()
    path = tmp_path / "new-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(content))
    examples = Idx(path=str(path)).load_inputs()
    assert (examples.x.shape, examples.labelled) == ((2, 1, 3, 3), False)
    labels = b"\0\0\x08\x01" + np.array([2], ">u4").tobytes() + b"\1\2"
    (tmp_path / "new-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    assert Idx(path=str(tmp_path)).load_inputs().labelled
    with pytest.raises(Refused, match=r"expected images \[N, height, width\]"):
        Idx(path=str(tmp_path / "new-labels-idx1-ubyte.gz")).load_inputs()


def test_columns_of_a_pattern_are_taken_in_the_files_order_and_that_is_said(tmp_path):
    path = written(tmp_path / "t.csv", p1=AGE, p2=AGE, who=WHO, y=[int(a > 50) for a in AGE])
    keys = ["data.source=table", f"data.path={path}", "data.client=who", "data.clients=12"]
    keys += ["data.label=y", "data.classes=2", "data.holdout=clients", "privacy.delta=1e-2"]
    train(load(None, [*keys, *FAST, 'data.features={"p*"=[0, 100]}']), tmp_path / "run")
    shown = asked("predict", tmp_path / "run", "--data", path)
    assert "columns that match 'p*' are read in the file's order" in shown.stderr


@every_case(
    "words, message",
    [
        (["--data", "t.csv", "--out", "t.csv"], "--out is t.csv, but that is a file of the data"),
        (["--data", "new.csv", "--out", "t.csv"], "--out is t.csv, but that is a file of the data"),
        (["--data", "new.csv", "--out", "p.xlsx"], "ends in .csv, .parquet, .npz"),
        (["--data", "new.csv", "--out", "gone/p.csv"], "the folder gone is missing"),
        (["--data", "new.csv", "--json"], "--json is given without --out"),
        (["--data", "nowhere.csv"], "does not exist"),
        (["--data", "empty.csv"], "holds no row"),
        (["--data", "new.csv", "--set", "client.lr=1"], "set only keys of [data]"),
        (["--data", "new.csv", "--set", "data.features={age=[0,9],sex=[0,1]}"], "do not fit"),
    ],
)
def test_bad_input_changes_nothing_and_is_one_message(run, monkeypatch, words, message):
    folder = run.parent
    monkeypatch.chdir(folder)
    written(folder / "new.csv", age=[30], sex=["f"])
    (folder / "empty.csv").write_text("age,sex\n")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    if "sex=[0,1]" in words[-1]:
        words = [*words, "--set", "data.categories={}"]
        written(folder / "new.csv", age=[3], sex=[1])
        before = {path: path.read_bytes() for path in folder.glob("*.*")}
    result = asked("predict", "run", *words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n         ", " ")
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before


def test_sources_that_always_have_labels_and_runs_that_have_not_begun_are_refused(run, tmp_path):
    trained(tmp_path / "run", "run.rounds=1", "data.source=digits")
    result = asked("predict", tmp_path / "run", "--data", "x")
    assert result.exit_code == 2
    with pytest.raises(Refused, match=r"only labelled rows; use run\.evaluate"):
        predict(tmp_path / "run", [])
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.toml").write_bytes((run / "config.toml").read_bytes())
    with pytest.raises(Refused, match="has no checkpoint"):
        predict(tmp_path / "new", [])


def test_a_terminal_is_shown_what_a_file_gets_as_it_is(monkeypatch, capfdbinary):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _to_standard_output(b"row,client\x1b[2J\n")
    assert capfdbinary.readouterr().out == b"row,client\\x1b[2J\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    _to_standard_output(b"row,client\x1b[2J\n")
    assert capfdbinary.readouterr().out == b"row,client\x1b[2J\n"
