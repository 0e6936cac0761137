"""Tables and arrays as users hold them: whatever library, the same examples; nothing read off."""

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from lanes import every_case
from patients import DECLARED, SEEDED, SMALL, net, patients
from small import model

import privfed
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.run.train import train

NOISE = {"noise_multiplier": 0.5, "delta": 1e-2}


def examples(table):
    keys = {k: v for k, v in table.section.items() if k not in ("source", "clients", "holdout")}
    return table.section["source"].model_validate(keys).load(60, Streams(0))


def same(ours, theirs):
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert ours.clients == theirs.clients
    assert np.array_equal(ours.owners, theirs.owners)


def test_pandas_arrow_and_hugging_face_are_the_same_people():
    frame = patients(20)
    expected = examples(privfed.Table(frame, **DECLARED))
    same(expected, examples(privfed.Table(pyarrow.table(frame), **DECLARED)))
    datasets = pytest.importorskip("datasets")
    same(expected, examples(privfed.Table(datasets.Dataset.from_pandas(frame), **DECLARED)))


def test_words_numbers_and_dates_are_read_in_whatever_type_a_frame_has_them():
    frame = patients(20)
    declared = {**DECLARED, "dates": {"seen": {"first": "2020-01-01", "last": "2020-12-31"}}}
    days = pd.date_range("2020-02-01", periods=len(frame), freq="D")
    plain = examples(privfed.Table(frame.assign(seen=days.strftime("%Y-%m-%d")), **declared))
    typed = frame.assign(
        seen=days.date,
        sex=frame["sex"].astype("category"),
        age=frame["age"].astype("Float64"),
        readmitted=frame["readmitted"].astype("string"),
        other=[object()] * len(frame),  # not declared: nobody reads it
    )
    same(plain, examples(privfed.Table(typed, **declared)))


def test_a_table_gives_the_run_that_its_file_gives(tmp_path):
    frame, public = patients(60), patients(30, seed=1)
    frame.to_csv(tmp_path / "p.csv", index=False)
    public.to_csv(tmp_path / "t.csv", index=False)
    given = privfed.Table(frame, test=public, **DECLARED)
    arguments = {"model": "mlp", **SMALL, **SEEDED}
    privfed.train(given, out=tmp_path / "given", **arguments)
    in_file = privfed.Table(tmp_path / "p.csv", test=tmp_path / "t.csv", **DECLARED)
    privfed.train(in_file, out=tmp_path / "in_file", **arguments)
    typed = [
        "model.name=mlp", "model.loss=binary_cross_entropy", "data.source=table",
        "data.client=patient",
        f"data.path={tmp_path / 'p.csv'}", f"data.test_path={tmp_path / 't.csv'}",
        "data.label=readmitted", 'data.labels=["no", "yes"]', "data.clients=60",
        "data.features={ age = [18, 94], bmi = [11, 42] }", 'data.categories={ sex = ["f", "m"] }',
        "cohort.size=20", "run.rounds=4", "privacy.epsilon=8", "privacy.delta=1e-3",
        "run.randomness=seeded", "run.seed=3",
    ]  # fmt: skip
    train(load(None, typed), tmp_path / "typed")
    trained = [model(tmp_path / name) for name in ("given", "in_file", "typed")]
    for other in trained[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in trained[0].items())


class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, place):
        return torch.from_numpy(self.x[place]), int(self.y[place])


def images(clients=12):
    rng = np.random.default_rng(0)
    return {f"c{k}": (rng.integers(0, 256, (k % 3 + 1, 4, 4)), rng.integers(0, 3, k % 3 + 1))
            for k in range(clients)}  # fmt: skip


SHAPED = {"shape": (4, 4), "bounds": (0, 255), "classes": 3, "clients": 12}


def test_datasets_and_arrays_are_the_same_people():
    arrays = images()
    expected = examples(privfed.Arrays(arrays, **SHAPED))
    datasets = {name: Pairs(x, y) for name, (x, y) in arrays.items()}
    other = examples(privfed.Arrays(datasets, **SHAPED))
    everybody = torch.arange(len(expected.y))
    assert torch.equal(expected.x[everybody], other.x[everybody])
    assert torch.equal(expected.y, other.y)
    assert expected.clients == other.clients == tuple(sorted(arrays))
    assert expected.x[everybody].shape == (len(everybody), 4, 4)
    assert expected.x[everybody].min() >= -1
    assert expected.x[everybody].max() <= 1


def test_arrays_train_predict_and_score(tmp_path):
    arrays, rng = images(), np.random.default_rng(1)
    public = (rng.integers(0, 256, (9, 4, 4)), rng.integers(0, 3, 9))
    federation = privfed.Arrays(arrays, test=public, **SHAPED)
    run = privfed.train(
        federation, cohort={"size": 5}, rounds=2, privacy=NOISE, out=tmp_path / "run"
    )
    predicted = run.predict(public[0])
    assert predicted.num_rows == 9
    assert {"probability_0", "probability_2"} <= {*predicted.column_names}
    assert run.evaluate(public)["accuracy"] == run.evaluate()["accuracy"]
    assert run.config.source.squared_norm == 16.0


@every_case(
    ("federation", "expected"),
    [
        (lambda: patients(3), 'privfed.Table(population, label="…"'),
        (lambda: {"anna": (np.zeros((1, 2)), np.zeros(1))}, "privfed.Arrays(population, shape="),
        (lambda: "patients.csv", "privfed.declare(public_sample"),
        (lambda: 7, "population is a int; expected a privfed.Table"),
    ],
)
def test_people_without_a_declaration_are_refused_with_the_call_that_makes_one(
    federation, expected
):
    with pytest.raises(privfed.Refused) as refused:
        privfed.train(federation())
    assert expected in str(refused.value)


def test_a_declaration_that_says_nothing_of_columns_is_refused():
    table = privfed.Table(patients(3), label="readmitted", labels=["no", "yes"], clients=3)
    with pytest.raises(privfed.Refused, match="features, dates and categories are empty"):
        privfed.check(table)


@every_case(
    ("spoil", "where"),
    [
        ({"age": "secret-71"}, "row 2: column 'age' is not a number"),
        ({"sex": None}, "row 2: column 'sex' is empty"),
        ({"readmitted": "secret"}, "row 2: the label 'readmitted' is none of the classes"),
        ({"patient": None}, "row 2: the client column 'patient' is empty"),
    ],
)
def test_a_bad_cell_is_named_by_row_and_column_and_never_quoted(spoil, where):
    frame = patients(5).astype(object)
    for column, value in spoil.items():
        frame.loc[1, column] = value
        if column == "age":
            frame[column] = frame[column].astype(str)
    with pytest.raises(privfed.Refused) as refused:
        privfed.check(privfed.Table(frame, **DECLARED), **SMALL)
    assert f"the table, {where}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_column_of_several_types_is_refused_without_quoting_it():
    frame = patients(5).astype(object)
    frame.loc[1, "age"] = "secret-71"
    with pytest.raises(privfed.Refused) as refused:
        privfed.check(privfed.Table(frame, **DECLARED), **SMALL)
    assert "the table cannot be converted to Arrow" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "secret" in refused.value.private


@every_case(
    ("federation", "expected"),
    [
        (
            {"secret": (np.zeros((2, 4, 4)), np.zeros(3, int))},
            "client 1 has another number of labels",
        ),
        ({"secret": (np.zeros((2, 5, 4)), np.zeros(2, int))}, "expected (4, 4), as declared"),
        ({"secret": 7}, "the arrays, client 1 holds a int; expected a pair"),
        (
            {1: (np.zeros((1, 4, 4)), [0]), "1": (np.zeros((1, 4, 4)), [0])},
            "the same name when written as text",
        ),
        ({}, "no client has an example in the arrays; give"),
    ],
)
def test_arrays_of_another_form_are_refused_without_naming_a_client(federation, expected):
    with pytest.raises(privfed.Refused) as refused:
        privfed.Arrays(federation, **SHAPED)
    assert expected in str(refused.value)
    assert "secret" not in str(refused.value)


@every_case(
    ("inputs", "expected"),
    [
        ({"ids": {"shape": [4]}}, "inputs.ids: bounds is [], tokens is 0 and mask is false"),
        (
            {"ids": {"shape": [4], "token": 9}},
            "inputs.ids.token is not a known key; expected one of bounds, mask, shape, tokens, "
            "unknown (did you mean 'tokens'?)",
        ),
        ({"ids": {"shape": [4], "tokens": "9"}}, "inputs.ids.tokens is '9'; expected an integer"),
        ({"ids": 7}, "inputs.ids is 7; expected a table of keys and values"),
    ],
)
def test_an_input_that_is_declared_wrongly_is_named(inputs, expected):
    with pytest.raises(privfed.Refused) as refused:
        privfed.Arrays({"a": {"ids": np.zeros((1, 4))}}, inputs=inputs, clients=5, classes=2)
    assert expected in str(refused.value)
    assert "Value error" not in str(refused.value)


def test_an_input_without_numbers_is_refused():
    arrays = {"a": (np.array([["x"] * 4] * 2), np.zeros(2, int))}
    people = privfed.Arrays(arrays, shape=[4], bounds=(0, 1), classes=2, clients=5)
    with pytest.raises(privfed.Refused, match="x holds no numbers; pass an array of numbers"):
        examples(people)


def test_labels_that_are_words_are_told_to_be_declared():
    federation = {f"c{k}": (np.zeros((2, 4, 4)), np.array(["secret", "b"])) for k in range(12)}
    with pytest.raises(privfed.Refused) as refused:
        privfed.check(privfed.Arrays(federation, **SHAPED), cohort={"size": 5})
    assert "y holds no numbers; declare words by labels=[…]" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_declaration_from_a_frame_is_that_from_its_file(tmp_path):
    sample, path = patients(40), tmp_path / "sample.csv"
    sample.to_csv(path, index=False)
    ours = privfed.declare(sample, label="readmitted", client="patient")
    theirs = privfed.declare(path, label="readmitted", client="patient")
    differ = {key for key in theirs.keys if ours.keys[key] != theirs.keys[key]}
    assert differ == {"path"}
    assert "[data.features]" in str(ours)
    assert "path =" not in str(ours).replace("test_path", "")
    checked = privfed.check(ours.table(patients(60, seed=5), clients=60, holdout="clients"),
                            model=net(), **SMALL)  # fmt: skip
    assert checked.epsilon <= 8
    assert checked.rounds == 4


def test_what_cannot_be_declared_is_refused():
    with pytest.raises(
        privfed.Refused, match="label is 'readmited', but the sample has no such column"
    ):
        privfed.declare(patients(4), label="readmited", client="patient")


def test_pairs_are_spans_of_dates_and_labels_are_words():
    frame = patients(20)
    days = pd.date_range("2020-02-01", periods=len(frame), freq="D")
    again = frame.assign(seen=days.strftime("%Y-%m-%d"), readmitted=frame["readmitted"] == "yes")
    declared = {**DECLARED, "labels": [False, True]}
    span = {"first": "2020-01-01", "last": "2020-12-31"}
    expected = examples(privfed.Table(again, dates={"seen": span}, **declared))
    pair = (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-12-31"))
    same(expected, examples(privfed.Table(again, dates={"seen": pair}, **declared)))
    as_array = {**declared, "labels": np.array([False, True])}
    same(expected, examples(privfed.Table(again, dates={"seen": span}, **as_array)))


def test_a_stream_is_read_once_and_a_transform_is_not_skipped():
    frame = patients(20)
    stream = pyarrow.table(frame).to_reader()
    same(examples(privfed.Table(frame, **DECLARED)), examples(privfed.Table(stream, **DECLARED)))
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_pandas(frame)
    with pytest.raises(
        privfed.Refused, match="has a transform that is applied only when rows are read"
    ):
        examples(privfed.Table(dataset.with_transform(lambda rows: rows), **DECLARED))
    splits = datasets.DatasetDict({"train": dataset})
    for ask in (lambda: privfed.train(splits), lambda: examples(privfed.Table(splits, **DECLARED))):
        with pytest.raises(privfed.Refused, match="DatasetDict of several tables"):
            ask()


@every_case("rows", [patients(3)["age"], patients(3).groupby("sex"), 7])
def test_what_is_no_table_is_refused_by_its_type(rows):
    with pytest.raises(privfed.Refused, match=f"is a {type(rows).__name__}; expected"):
        examples(privfed.Table(rows, **DECLARED))


def test_paths_and_tables_are_not_mixed_and_never_quoted():
    for rows, test in (("p.csv", patients(3)), (patients(3), "t.csv")):
        with pytest.raises(privfed.Refused, match="expected both as paths, or both as tables"):
            privfed.Table(rows, test=test, **DECLARED)


def test_datasets_are_scored_and_predicted_too(tmp_path):
    arrays, rng = images(), np.random.default_rng(1)
    public = Pairs(rng.integers(0, 256, (9, 4, 4)), rng.integers(0, 3, 9))
    federation = privfed.Arrays(arrays, test=public, **SHAPED)
    sizes = {"cohort": {"size": 5}, "rounds": 1, "privacy": NOISE}
    run = privfed.train(federation, out=tmp_path / "run", **sizes)
    assert run.evaluate(public)["accuracy"] == run.evaluate()["accuracy"]
    predicted = run.predict(public)["prediction"].to_pylist()
    assert predicted == run.predict(public.x)["prediction"].to_pylist()
