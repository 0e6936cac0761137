"""Tables of one's own: what is in them, and every way in which they are wrong."""

import gzip
import io
import json
import pickle
import zipfile

import numpy as np
import pyarrow
import pytest
import torch
from click.testing import CliRunner
from lanes import every_case
from pyarrow import parquet

from privfed.cli.main import main
from privfed.config.reading import load as load_run
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.partitions.basic import Natural
from privfed.data.pieces import Mapped
from privfed.data.population import populate
from privfed.data.sources.table import Table
from privfed.data.tables.columns import read_array
from privfed.data.tables.dates import Dates

STREAMS = Streams(0)


def gzipped(content):
    """Without the time, which would give the two workers of a test run different test names."""
    return gzip.compress(content, mtime=0)


CSV = """ward,age,weight,sex,ill,stay
a,20,50.0,f,no,1.5
b,60,80.0,m,yes,9
a,100,110,f,no,4
"""


def table(tmp_path, text=CSV, name="patients.csv", **changes):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return made(path, **changes)


def made(path, **changes):
    keys = {
        "path": str(path),
        "client": "ward",
        "label": "ill",
        "labels": ["no", "yes"],
        "features": {"age": [0.0, 100.0], "weight": [50.0, 110.0]},
        "categories": {"sex": ["m", "f"]},
    } | changes
    return Table(**{key: value for key, value in keys.items() if value is not None})


def load(source):
    return source.load(2, STREAMS)


EXPECTED = [[-0.6, -1.0, 0, 1], [0.2, 0.0, 1, 0], [1.0, 1.0, 0, 1]]


def test_numbers_are_scaled_by_declared_bounds_and_words_become_categories(tmp_path):
    examples = load(table(tmp_path))
    np.testing.assert_allclose(examples.x, EXPECTED, atol=1e-6)
    assert examples.y.tolist() == [0, 1, 0]
    assert (examples.classes, examples.meaning.names) == (2, ("no", "yes"))
    assert [examples.clients[k] for k in examples.owners] == ["a", "b", "a"]


def test_bounds_not_the_data_decide_the_scale(tmp_path):
    """One client's extreme value must not move another client's features."""
    calm = load(table(tmp_path))
    wild = load(table(tmp_path, CSV + "c,1000000,-7,x,yes,1\n"))
    assert torch.equal(wild.x[:3], calm.x)
    assert wild.x[3].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert (calm.counts["clipped_values"], wild.counts["clipped_values"]) == (0, 3)


@every_case("kind", ["parquet", "tsv", "csv.gz", "bom", "quoted"])
def test_other_files_hold_the_same(tmp_path, kind):
    rows = [line.split(",") for line in CSV.splitlines()]
    path, changes = tmp_path / f"patients.{kind}", {}
    if kind == "parquet":
        columns = {
            "ward": ["a", "b", "a"],
            "age": [20, 60, 100],
            "weight": [50.0, 80.0, 110.0],
            "sex": pyarrow.array(["f", "m", "f"]).dictionary_encode(),
            "ill": ["no", "yes", "no"],
        }
        parquet.write_table(pyarrow.table(columns), path)
    elif kind == "tsv":
        path.write_text("\n".join("\t".join(row) for row in rows))
        changes["delimiter"] = "\t"
    elif kind == "csv.gz":
        path.write_bytes(gzipped(CSV.encode()))
    elif kind == "bom":
        path.write_text(CSV, encoding="utf-8-sig")
    else:
        path.write_text("\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows))
    examples = load(made(path, **changes))
    np.testing.assert_allclose(examples.x, EXPECTED, atol=1e-6)
    assert examples.y.tolist() == [0, 1, 0]


def test_words_that_look_missing_are_still_words(tmp_path):
    """NA is Namibia where the column is of words, and nothing where it is of numbers."""
    text = "ward,age,weight,sex,ill\na,NA,50,NA,no\nb,60,80,m,yes\n"
    examples = load(table(tmp_path, text, missing=50.0, categories={"sex": ["NA", "m"]}))
    assert examples.x.tolist() == [[0.0, -1.0, 1, 0], [pytest.approx(0.2), 0.0, 0, 1]]


def test_whole_numbers_several_columns_and_a_number_to_predict(tmp_path):
    text = "a,b,c,y,z\n1,0,1,2,10\n0,0,1,0,30\n"
    common = {"client": "", "labels": None, "features": {"a": [0.0, 1.0]}, "categories": {}}
    classes = load(table(tmp_path, text, label="y", classes=3, **common))
    assert (classes.y.tolist(), classes.classes, classes.owners) == ([2, 0], 3, None)
    several = load(table(tmp_path, text, label=["b", "c"], **common))
    assert several.y.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert several.meaning.names == ("b", "c")
    number = load(table(tmp_path, text, label="z", label_bounds=[0.0, 20.0], **common))
    assert number.y.tolist() == [[0.0], [1.0]]
    assert number.y * number.meaning.scale + number.meaning.shift == pytest.approx(
        np.array([[10.0], [20.0]])
    )


def test_many_columns_are_named_by_a_pattern(tmp_path):
    text = "pixel2,y,pixel10,pixel1\n0,1,10,20\n"
    source = table(
        tmp_path,
        text,
        client="",
        label="y",
        labels=None,
        classes=2,
        features={"pixel*": [0.0, 20.0]},
        categories={},
    )
    assert load(source).x.tolist() == [[-1.0, 0.0, 1.0]]


def test_a_columns_own_name_goes_before_a_pattern_and_no_pattern_means_the_label(tmp_path):
    text = "who,x,xx,y\nann,1,10,1\nbob,0,0,0\n"
    keys = {"client": "who", "label": "y", "labels": None, "classes": 2, "categories": {}}
    bounds = {"*": [0.0, 10.0], "x": [0.0, 1.0]}
    for features in (bounds, dict(reversed(bounds.items()))):
        assert load(table(tmp_path, text, features=features, **keys)).x[0].tolist() == [1.0, 1.0]


@every_case(
    "column",
    [
        pyarrow.array([0, 1], pyarrow.timestamp("s")),
        pyarrow.array([0, 1], pyarrow.duration("s")),
        pyarrow.array([[0], [1]]),
        pyarrow.array([{"a": 1}, {"a": 2}]),
    ],
)
def test_columns_of_other_types_are_refused_by_name(tmp_path, column):
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"x": column, "y": [0, 1]}), path)
    keys = {"label": "y", "labels": None, "classes": 2, "categories": {}, "client": ""}
    with pytest.raises(Refused, match="column 'x' is of type"):
        load(made(path, features={"x": [0.0, 1.0]}, **keys))
    words = made(path, features={"*": [0.0, 1.0]}, **{**keys, "categories": {"x": ["a"]}})
    with pytest.raises(Refused):
        load(words)


def test_labels_beyond_their_bounds_are_counted(tmp_path):
    text = "x,y\n1,1\n1,50\n"
    keys = {"client": "", "labels": None, "categories": {}, "features": {"x": [0.0, 1.0]}}
    examples = load(table(tmp_path, text, label="y", label_bounds=[0.0, 10.0], **keys))
    assert examples.counts == {"clipped_values": 0, "clipped_labels": 1}
    keys |= {"label": "y", "label_bounds": [0.0, 10.0], "outside": "refuse"}
    with pytest.raises(Refused, match="row 2: column 'y' is outside its declared bounds"):
        load(table(tmp_path, text, **keys))


def test_an_archive_of_arrays_stays_in_its_file(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 4)).astype(np.uint8)
    path = tmp_path / "images.npz"
    arrays = {"ward": np.array(["a", "b", "a", "b", "c", "c"]), "ill": np.arange(6) % 2}
    keys = {"features": {"x": [0.0, 255.0]}, "categories": {}, "labels": None, "classes": 2}
    for save in (np.savez, np.savez_compressed):
        save(path, x=images, **arrays)
        examples = load(made(path, **keys))
        assert isinstance(examples.x, Mapped)
        assert examples.x.shape == (6, 3, 4)
        got = examples.x[torch.tensor([4, 0])]
        np.testing.assert_allclose(got, images[[4, 0]] / 127.5 - 1, atol=1e-6)
        mapped = isinstance(read_array(path, "x", "'x'"), np.memmap)
        assert mapped == (save is np.savez), "only what is not compressed can be mapped"
    federation = populate(made(path, **keys), Natural(), 3, 0.5, STREAMS, "examples")
    assert isinstance(federation.examples.x, Mapped)
    for client, name in enumerate(federation.examples.clients):
        rows = np.arange(*federation.offsets[client : client + 2])
        ours = federation.examples.x[torch.from_numpy(rows)]
        wards = [
            arrays["ward"][np.abs(images / 127.5 - 1 - x.numpy()).sum((1, 2)).argmin()]
            for x in ours
        ]
        assert set(wards) <= {name}


BAD = {
    "ragged": (
        "ward,age,weight,sex,ill\na,1,2,f\n",
        {},
        "row 1 cannot be read: there are 4 columns, but 5 are expected; quote cells",
        "a,1,2,f",
    ),
    "no such file": (None, {}, "patients.csv does not exist"),
    "missing column": (
        CSV,
        {"features": {"aeg": [0.0, 1.0]}},
        "names 'aeg', but .* has no such column; expected one of the 6",
        "mean 'age'",
    ),
    "missing label": (CSV, {"label": "iil"}, "data.label names 'iil', but .* no such column"),
    "missing client": (CSV, {"client": "wrad"}, "data.client names 'wrad', but .* no such column"),
    "missing category": (CSV, {"categories": {"race": ["a"]}}, "data.categories.*'race'"),
    "null client": (CSV + ",1,60,f,no,1\n", {}, "row 4: the client column 'ward' is empty"),
    "null number": (CSV + "a,,60,f,no,1\n", {}, "row 4: column 'age' is empty"),
    "null word": (CSV + "a,1,60,,no,1\n", {}, "row 4: column 'sex' is empty"),
    "null label": (CSV + "a,1,60,f,,1\n", {}, "row 4: the label 'ill' is empty"),
    "a client that reads as none": (
        CSV + "NULL,1,60,f,no,1\n",
        {},
        "row 4: the client column 'ward' holds a word for an empty cell",
        "'NULL'",
    ),
    "a client but for blanks": (CSV + "a ,1,60,f,no,1\n", {}, "row 4.*one name", "'a '"),
    "no row": ("ward,age,weight,sex,ill\n", {}, "holds no row"),
    "another delimiter": (CSV.replace(",", ";"), {}, "divided by ';': set data.delimiter"),
    "a word for a number": (
        CSV + "a,old,60,f,no,1\n",
        {},
        "row 4: column 'age' is not a number",
        "'old'",
    ),
    "labels as strings": (
        CSV,
        {"labels": None, "classes": 2},
        "row 1: column 'ill' is not a number",
        "'no'",
    ),
    "an undeclared label": (
        CSV + "a,1,60,f,maybe,1\n",
        {},
        "row 4: the label 'ill' is none.*one of no",
        "'maybe'",
    ),
    "outside": (
        CSV + "a,101,60,f,no,1\n",
        {"outside": "refuse"},
        "row 4: column 'age' is outside",
        "101",
    ),
    "unknown word": (
        CSV + "a,1,60,x,no,1\n",
        {"outside": "refuse"},
        "row 4: column 'sex' holds an undeclared",
        "'x'",
    ),
    "class beyond": (
        CSV,
        {"label": "stay", "labels": None, "classes": 9},
        "row 1: the label 'stay' is not a class; expected an integer from 0 to 8",
        "1.5",
    ),
    "columns twice": ("ward,ward,ill\n1,2,3\n", {}, "the same name for columns 1 and 2", "'ward'"),
    "empty file": ("", {}, "patients.csv cannot be read: the file is empty"),
    "not zero or one": (
        CSV,
        {"label": ["age", "stay"], "labels": None, "features": {"weight": [0.0, 1.0]}},
        "row 1: the label 'age' is neither 0 nor 1",
        "20",
    ),
    "not UTF-8": (
        b"ward,age,weight,sex,ill\na,1,2,\xff,no\n",
        {},
        "row 1, column 4.*save the file as UTF-8",
    ),
}


@every_case("case", BAD)
def test_a_bad_table_is_refused_by_row_and_column(tmp_path, case):
    content, changes, message, *private = BAD[case]
    path = tmp_path / "patients.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Refused, match=message) as refused:
        load(made(path, **changes))
    for quoted in private:
        assert quoted in refused.value.private
        assert quoted not in str(refused.value).replace(str(tmp_path), "")


@every_case(
    "name, content, message",
    [
        ("t.csv.gz", gzipped(CSV.encode() * 9)[:-20], "t.csv.gz cannot be read"),
        ("t.parquet", b"PAR1 and no more", "t.parquet cannot be read"),
        ("t.npz", b"PK and no more", "t.npz cannot be read"),
        ("folder.csv", None, "is a folder .*; expected a CSV"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(Refused, match=message):
        load(made(path))


def test_python_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    path = tmp_path / "objects.npz"
    bomb = np.empty(1, dtype=object)
    bomb[0] = Bomb()
    np.savez(path, ward=np.array(["a"]), x=bomb, ill=np.array([0]))
    with pytest.raises(Refused, match="never unpickles"):
        load(made(path, features={"x": [0.0, 1.0]}, categories={}, labels=None, classes=2))
    pickled = tmp_path / "pickled.npz"
    with zipfile.ZipFile(pickled, "w") as archive:
        for name in ("ward", "x", "ill"):
            archive.writestr(f"{name}.npy", pickle.dumps(Bomb()))
    with pytest.raises(Refused, match="missing, damaged or was not saved by NumPy"):
        load(made(pickled, features={"x": [0.0, 1.0]}, categories={}))
    assert not (tmp_path / "exploded").exists()


@every_case(
    "changes, message",
    [
        ({"labels": None}, "exactly one must be set"),
        ({"classes": 3}, "exactly one must be set"),
        ({"labels": ["no"]}, "the label has one class"),
        ({"features": {"age": [3.0, 3.0]}}, "bounds of 'age'"),
        ({"features": {"age": [3.0]}}, "at least 2"),
        ({"features": {"ward": ["med", "surg", "rare"]}}, "in data.categories instead"),
        ({"features": {}, "categories": {}}, "name at least one column"),
        ({"label": ["ill", "stay"]}, "remove labels, classes"),
        ({"labels": ["no", "no"]}, "names a value twice"),
        ({"categories": {"sex": ["m", "m"]}}, "sex is .* names a value twice"),
        ({"labels": None, "label_bounds": [1.0]}, "expected .low, high."),
        ({"client": "ill"}, "both the client column and the label"),
        ({"label": "age"}, "'age' is the label or the client column"),
        ({"categories": {"ward": ["a"]}}, "'ward' is the label or the client column"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        table(tmp_path, **changes)


def run_file(tmp_path, text, *lines):
    (tmp_path / "a table.csv").write_text(text)
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        [run]
        rounds = 5
        [data]
        source = "table"
        path = {json.dumps(str(tmp_path / "a table.csv"))}
        client = "who"
        label = "y"
        classes = 2
        features = {{ x = [0, 1] }}
        {chr(10).join(lines)}
        [cohort]
        size = 2
        [privacy]
        delta = 1e-2
        noise_multiplier = 1.0
        """
    )
    return path


def train(*words):
    return CliRunner().invoke(main, ["train", *map(str, words)])


def rows(sizes):
    rng = np.random.default_rng(0)
    lines = ["who,x,y"]
    for client, size in enumerate(sizes):
        lines += [f"c{client},{x:.3f},{int(x > 0.5)}" for x in rng.random(size)]
    return "\n".join(lines) + "\n"


def test_a_csv_and_a_short_toml_train_over_the_clients_they_name(tmp_path):
    path = run_file(tmp_path, rows([5, 6, 7, 8, 9, 10]), "clients = 5", 'holdout = "clients"')
    result = train(path, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout.splitlines()[-1])
    public = json.loads((tmp_path / "run/report/public_clients.json").read_text())["clients"]
    assert printed["public_clients"] == len(public) > 0
    assert set(public) < {f"c{n}" for n in range(6)}
    terms = json.loads((tmp_path / "run/ledger.jsonl").read_text().splitlines()[0])["terms"]
    assert terms["public_clients"] == len(public)
    assert "declared public" in result.stderr


def test_one_client_and_one_of_ten_thousand_examples_train(tmp_path):
    one = run_file(tmp_path, rows([20]), "clients = 2", 'holdout = "examples"')
    assert train(one, "--out", tmp_path / "one").exit_code == 0
    large = run_file(tmp_path, rows([10_000, 1, 1, 3]), "clients = 4", 'holdout = "examples"')
    result = train(large, "--out", tmp_path / "large", "--set", "client.epochs=1")
    assert result.exit_code == 0, result.output
    assert "simulation: scored on examples of clients that train" in result.stdout


@every_case(
    "lines, message",
    [
        (['holdout = "clients"'], "data.clients is missing"),
        (["clients = 4"], 'data.holdout = "clients"'),
        (
            ["clients = 4", 'holdout = "clients"', "holdout_fraction = 1e-9"],
            "holds out 0 of 3 clients",
        ),
        (["clients = 4", 'holdout = "clients"', "shape = 3"], "data.shape is not a known key"),
        (["clients = 4", 'partition = "iid"'], "states the owners of examples"),
    ],
)
def test_what_would_publish_clients_data_is_refused_with_nothing_written(tmp_path, lines, message):
    path = run_file(tmp_path, rows([5, 6, 7]), *lines)
    result = train(path, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_clipped_values_are_counted_for_simulations_only_and_the_unit_is_said(tmp_path):
    text = rows([5, 6, 7]).replace("c0,", "c0,9", 1)
    path = run_file(tmp_path, text, "clients = 4", 'holdout = "clients"')
    train(path, "--out", tmp_path / "a")
    assert "clipped" not in (tmp_path / "a/metrics.jsonl").read_text()
    opened = ["--set", "run.simulation_metrics=true", "--set", "run.seed=3"]
    result = train(path, "--out", tmp_path / "b", *opened)
    line = json.loads((tmp_path / "b/metrics.jsonl").read_text().splitlines()[-1])
    assert line["simulation_only"]["clipped_values"] == 1
    assert "one client with all its examples" in result.stdout
    assigned = run_file(tmp_path, text, "clients = 4", 'partition = "iid"', 'holdout = "examples"')
    assert "one simulated client" in train(assigned, "--out", tmp_path / "c").stdout


def damaged(path, how):
    """An archive whose array x is cut, encrypted, or changed; others are whole."""
    np.savez_compressed(path, x=np.arange(4.0), y=np.arange(4) % 2)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x.npy")
    if how == "encrypted":
        content[member.header_offset + 6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
    elif how == "changed":
        start = member.header_offset + 30 + len("x.npy")
        content[start + 30 : start + 60] = b"\xff" * 30
    path.write_bytes(content)
    if how == "shorter":
        out = io.BytesIO()
        np.lib.format.write_array(out, np.arange(4.0))
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", out.getvalue()[:-8])
            archive.writestr("y.npy", out.getvalue())


@every_case("how", ["encrypted", "changed", "shorter"])
def test_a_broken_member_of_an_archive_is_named(tmp_path, how):
    damaged(tmp_path / "t.npz", how)
    keys = {"label": "y", "labels": None, "classes": 2, "categories": {}, "client": ""}
    with pytest.raises(
        Refused, match=r"t\.npz: (the array )?'x' (is encr|is missing, dam|is trunc)"
    ):
        load(made(tmp_path / "t.npz", features={"x": [0.0, 3.0]}, **keys))


def test_empty_cells_count_as_what_was_declared_for_their_column(tmp_path):
    text = "ward,age,weight,sex,day,ill\na,,?,f,,no\nb,40,60,,03.01.2020,yes\n"
    keys = {
        "missing": {"age": 50.0, "weight": 80.0, "sex": "none", "day": "2020-01-02"},
        "missing_words": ["?"],
        "dates": {"day": Dates(first="2020-01-01", last="2020-01-03", format="%d.%m.%Y")},
    }
    x = load(table(tmp_path, text, **keys)).x.tolist()
    assert x[0] == [0.0, pytest.approx(0.0), 0.0, 0.0, 1.0]
    assert x[1] == [pytest.approx(-0.2), pytest.approx(-2 / 3), 1.0, 0.0, 0.0]
    for gone in keys["missing"]:
        fewer = {key: value for key, value in keys["missing"].items() if key != gone}
        with pytest.raises(Refused, match=f"column '{gone}' is empty; "):
            load(table(tmp_path, text, **(keys | {"missing": fewer})))
    with pytest.raises(Refused, match="row 2: column 'day' is not a date in the format 'iso'"):
        load(
            table(
                tmp_path,
                text,
                **keys | {"dates": {"day": Dates(first="2020-01-01", last="2021-01-01")}},
            )
        )


@every_case(
    "changes, message",
    [
        ("missing='x'", "data.missing is 'x'; expected 'refuse', a number or a table of keys"),
        ("missing={age=[1]}", "data.missing.age is [1]; expected a number or text"),
        ("missing={aeg=1}", "'aeg', but that is no feature, date or category"),
        ("missing={age='none'}", "'age' is a feature; expected a number"),
        ("missing={sex=1}", "'sex' is a category; expected \"none\""),
        ("label=3", "data.label is 3; expected text or a list"),
        ("encoding='klingon'", "data.encoding is 'klingon': expected the name of an encoding"),
        ("dates={day=3}", "data.dates.day is 3; expected a table of keys and values"),
        ("dates={day={first='x',last='2020-01-01'}}", "'x' is not a date"),
        ("dates={age={first='2019-01-01',last='2020-01-01'}}", "'age' is listed in dates and"),
    ],
)
def test_what_may_stand_in_a_declaration_is_said_in_its_own_words(changes, message):
    keys = ["source=table", "path=p", "label=y", "classes=2", "clients=3"]
    keys += ["features={age=[0,1]}", "categories={sex=['f']}", changes]
    with pytest.raises(Refused) as refused:
        load_run(None, [f"data.{key}" for key in keys])
    assert message in str(refused.value)
    assert "literal" not in str(refused.value)
