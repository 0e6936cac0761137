"""Declarations read off public samples: what each line says, and that the sample is accepted."""

import csv
import io
import tomllib
from datetime import date, datetime, timedelta

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes import every_case
from pyarrow import parquet

from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.declaring.columns import rounded_range
from privfed.data.declaring.declaration import SampleSites
from privfed.data.declaring.declare import declare, declare_file, declare_object
from privfed.data.sources.table import Table
from privfed.data.tables.delimited import delimiter_of, encoding_of
from privfed.data.tables.readable import TableObject

ROWS = 40


def written(path, *words):
    return CliRunner().invoke(main, ["declare", str(path), "--label", "y", *words])


def declared(path, *words):
    """The [data] section for a sample, and the text of the whole."""
    result = written(path, *words)
    assert result.exit_code == 0, result.output
    return tomllib.loads(result.stdout)["data"], result.stdout


def filled(text):
    """As a user goes on: with the two numbers that only they know."""
    whole = text.replace("clients = 0 ", "clients = 5 ").replace("size = 0 ", "size = 2 ")
    assert whole != text
    return whole


def accepted(path, text):
    """The examples that `train` reads from what was written."""
    file = path.parent / "run.toml"
    file.write_text(filled(text), encoding="utf-8")
    return load(file).source.load(5, Streams(0))


def sample(tmp_path, columns, delimiter=",", encoding="utf-8", name="t.csv"):
    """A CSV file of `columns`, with two classes to learn."""
    out = io.StringIO()
    rows = csv.writer(out, delimiter=delimiter)
    count = len(next(iter(columns.values())))
    rows.writerow([*columns, "y"])
    rows.writerows(zip(*columns.values(), np.arange(count) % 2, strict=True))
    path = tmp_path / name
    path.write_bytes(out.getvalue().encode(encoding))
    return path


X = [n % 7 / 2 for n in range(ROWS)]


def line(text, key):
    """The line that declares `key`, or says why it is left out."""
    return next(row for row in text.splitlines() if row.startswith((f"{key} =", f"#   {key}:")))


def test_every_line_says_why_a_column_is_what_it_is(tmp_path):
    days = [date(2023, 1, 1) + timedelta(days=9 * n) for n in range(ROWS)]
    path = sample(
        tmp_path,
        {
            "record": range(100, 100 + ROWS),
            "who": [f"h{n % 5}" for n in range(ROWS)],
            "age": ["unknown" if n == 3 else "" if n == 5 else 20 + n % 30 for n in range(ROWS)],
            "income": [1e9 if n == 7 else 1000.5 + n for n in range(ROWS)],
            "admitted": [f"{day:%d.%m.%Y}" for day in days],
            "sex": ["" if n == 8 else "fm"[n % 2] for n in range(ROWS)],
            "note": [f"seen {n} times" for n in range(ROWS)],
            "word": [f"w{n % 30}" for n in range(ROWS)],
            "always": ["x"] * ROWS,
            "nothing": [""] * ROWS,
        },
    )
    data, text = declared(path, "--client", "who")
    assert data["features"] == {"age": [20.0, 49.0], "income": [1000.0, 1040.0]}
    assert data["missing"] == {"age": 30.5, "sex": "none"}
    assert data["missing_words"] == ["unknown"]
    assert data["categories"] == {"sex": ["f", "m"]}
    assert data["dates"] == {
        "admitted": {"first": "2023-01-01", "last": "2023-12-18", "format": "%d.%m.%Y"}
    }
    says = {
        "record": "a different integer in every row",
        "age": "'unknown' counts as empty; 2 of 40 empty: the median is taken",
        "income": "1 of 40 outliers, clipped",
        "admitted": "dates from 2023-01-01 to 2023-12-18, as days since 1970",
        "sex": "a category of 2 words; 1 of 40 empty: no category",
        "note": "a different word in every row",
        "word": "30 different words, but a category has at most 20",
        "always": "the same in every row",
        "nothing": "empty in every row",
        "client": "the owner of each row: the unit of privacy; 5 in the sample",
    }
    for key, why in says.items():
        assert why in line(text, key), key
    examples = accepted(path, text)
    assert examples.x.shape == (ROWS, 2 + 1 + 2)
    at = {"age": 0, "income": 1, "admitted": 2}
    assert examples.x[7, at["income"]] == 1.0, "the outlier is clipped"
    assert examples.x[3, at["age"]] == examples.x[5, at["age"]] == pytest.approx(-8 / 29)
    expected = [-1 + 2 * 9 * n / (ROWS * 9 - 9) for n in range(ROWS)]
    np.testing.assert_allclose(examples.x[:, at["admitted"]], expected, atol=1e-5)
    assert examples.x[8, 3:].tolist() == [0.0, 0.0], "none of the category's values"


NAMES = st.text(st.sampled_from("ab.*?[]!\"'# =\\\n\u2028éß,;{}"), max_size=5)
WORDS = st.sampled_from(
    ["", "a", "b", "NA", "unknown", "é", "x,y", "two\nlines", 'q"q', "]", "\u2028", " "]
)
CELLS = {
    "words": WORDS,
    "numbers": st.floats(allow_nan=False, width=32).map(str),
    "extreme": st.sampled_from(["1e308", "-1e308", "5e-324", "inf", "-inf", "0", ""]),
    "whole": st.integers(-3, 3).map(str),
    "flags": st.sampled_from(["true", "false"]),
    "mixed": st.one_of(st.integers(0, 40).map(str), st.sampled_from(["unknown", "-", "", "NA"])),
    "dates": st.dates(date(1, 1, 1)).map(date.isoformat),
    "german": st.one_of(
        st.dates(date(1900, 1, 1)).map(lambda day: f"{day:%d.%m.%Y}"), st.sampled_from(["", "?"])
    ),
    "times": st.datetimes(datetime(1900, 1, 1)).map(lambda when: f"{when:%Y-%m-%d %H:%M:%S}"),
    "commas": st.sampled_from(["1,5", "2,5", "3", "-7,25", ""]),
}
FORMS = st.sampled_from(
    [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "latin-1"), ("|", "utf-16"), (",", "cp1252")]
)


@st.composite
def tables(draw):
    """Columns of cells of one kind each, under names that mean something to patterns and TOML."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    rows = draw(st.sampled_from([1, 3, 25]))
    kinds = [draw(st.sampled_from([*CELLS])) for _ in names]
    return {
        name: draw(st.lists(CELLS[kind], min_size=rows, max_size=rows))
        for name, kind in zip(names, kinds, strict=True)
    }


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(tables(), FORMS, st.sampled_from(["words", "classes", "numbers"]))
def test_what_is_declared_is_accepted_on_the_very_file(tmp_path, columns, form, label):
    delimiter, encoding = form
    rows = len(next(iter(columns.values())))
    labels = {"words": ["no", "yes"], "classes": ["0", "2"], "numbers": ["0.5", "1e9"]}[label]
    columns = columns | {"y": [labels[n % 2] for n in range(rows)]}
    columns |= {"x": [str(n % 3 / 2) for n in range(rows)]}
    out = io.StringIO()
    table = csv.writer(out, delimiter=delimiter)
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    path = tmp_path / "t.csv"
    path.write_bytes(out.getvalue().encode(encoding, errors="replace"))
    if label == "words" and rows == 1:
        with pytest.raises(Refused, match="the same in every row"):
            declare(path, "y", "", str(path))
        return
    examples = accepted(path, declare(path, "y", "", str(path)))
    assert len(examples) == rows
    assert examples.x.isfinite().all()
    assert (examples.x.abs() <= 1).all()


def test_a_declared_feature_means_its_own_column_alone(tmp_path):
    path = sample(tmp_path, {"x[1]": X, "a.b c": X})
    data, _ = declared(path)
    other = path.with_name("other.csv")
    other.write_text(path.read_text().replace("x[1]", "x1"))
    table = Table(**{key: data[key] for key in data if key in Table.model_fields})
    assert table.load(5, Streams(0)).x.shape == (ROWS, 2)
    with pytest.raises(Refused, match="has no such column"):
        table.model_copy(update={"path": str(other)}).load(5, Streams(0))


def test_a_form_of_date_that_is_not_clear_is_named_and_left_out(tmp_path):
    path = sample(
        tmp_path, {"x": X, "when": [f"0{1 + n % 9}/0{1 + n % 7}/2020" for n in range(ROWS)]}
    )
    _, text = declared(path)
    assert "ambiguous format, '%d/%m/%Y' or '%m/%d/%Y'" in line(text, "when")


def test_parquet_columns_of_every_type_are_declared(tmp_path):
    days = [date(2020, 1, 1) + timedelta(days=n % 9) for n in range(ROWS)]
    columns = {
        "flag": [bool(n % 3) for n in range(ROWS)],
        "word": pyarrow.array([None if n == 2 else "ab"[n % 2] for n in range(ROWS)]),
        "coded": pyarrow.array(["u", "v"] * (ROWS // 2)).dictionary_encode(),
        "day": days,
        "time": [datetime(2020, 1, 1 + n % 9, 12) for n in range(ROWS)],
        "number": pyarrow.array([None if n == 1 else n % 6 / 4 for n in range(ROWS)]),
        "list": [[n] for n in range(ROWS)],
        "y": [n % 2 for n in range(ROWS)],
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    data, text = declared(path)
    assert (data["features"].keys(), data["dates"].keys()) == ({"flag", "number"}, {"day", "time"})
    assert data["categories"] == {"word": ["a", "b"], "coded": ["u", "v"]}
    assert data["missing"].keys() == {"word", "number"}
    assert "of type list" in line(text, "list")
    assert accepted(path, text).x.shape == (ROWS, 2 + 2 + 4)


@every_case("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_by_the_rows_not_by_the_header_alone(tmp_path, mark):
    path = sample(tmp_path, {"a": X, "b, c": ["x; y\nz"] * ROWS}, mark)
    assert delimiter_of(path, "utf-8") == mark
    single = tmp_path / "one.csv"
    single.write_text("a\n1\n2\n")
    assert delimiter_of(single, "utf-8") is None


@every_case("encoding", ["utf-8", "utf-16", "cp1252"])
def test_the_encoding_of_a_sample_is_found_and_that_of_private_data_declared(tmp_path, encoding):
    path = sample(tmp_path, {"x": X, "é": ["ä", "ö"] * (ROWS // 2)}, encoding=encoding)
    assert encoding_of(path) == encoding
    data, _ = declared(path)
    assert (data.get("encoding", "utf-8"), data["categories"]) == (encoding, {"é": ["ä", "ö"]})
    table = Table(path=str(path), label="y", classes=2, features={"x": [0.0, 3.0]})
    if encoding != "utf-8":
        with pytest.raises(Refused, match=r"not UTF-8; .* set data\.encoding"):
            table.load(5, Streams(0))


def test_labels_that_are_empty_and_one_that_says_nothing_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    for cells, message in ((["1", ""], "row 2: the label is empty"), (["a", "a"], "the same")):
        path.write_text("x,y\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
        assert message in written(path).stderr.replace("\n         ", " ")


def test_bounds_leave_an_outlier_beyond_and_keep_a_tail():
    rng = np.random.default_rng(0)
    calm = rng.normal(50, 10, 400)
    low, high = rounded_range(np.append(calm, 1e6))
    assert low <= calm.min()
    assert calm.max() - 5 < high < 100
    assert rounded_range(calm)[1] >= calm.max()
    zeros = np.append(np.zeros(99), 7.0)
    assert rounded_range(zeros) == (0.0, 7.0), "mostly alike is no outlier"


def test_where_no_column_is_left_the_reasons_are_told_on_request(tmp_path):
    rows = [f"{n},{'yn'[n % 2]}" for n in range(40)]
    (tmp_path / "s.csv").write_text("\n".join(["record,ill", *rows]))
    with pytest.raises(Refused, match="cannot be declared as a table") as refused:
        declare(tmp_path / "s.csv", "ill", "", "s.csv", None, None)
    assert "record: a different integer in every row" in refused.value.private


STAYS = {
    "patient": [f"p{n // 4}" for n in range(ROWS)],
    "hospital": [f"h{n // 8 % 3}" for n in range(ROWS)],
    "x": X,
}
"""Ten patients, each of whom was at one of three hospitals."""
HOUSED = ("--client", "patient", "--site", "hospital")


def test_a_column_of_sites_is_declared_with_how_many_the_sample_has(tmp_path):
    path = sample(tmp_path, STAYS)
    data, text = declared(path, *HOUSED)
    assert (data["site"], data["sites"]) == ("hospital", 3)
    assert "sites_per_client" not in data
    assert data["features"].keys() == {"x"}
    assert "categories" not in data
    assert "a public constant: as in the sample" in line(text, "sites")
    examples = accepted(path, text)
    assert examples.site_names == ("h0", "h1", "h2")
    assert load(path.parent / "run.toml").data.sites == 3


def test_clients_of_the_sample_at_several_sites_are_declared_so(tmp_path):
    moved = {**STAYS, "hospital": [n % 2 if n < 12 else 7 for n in range(ROWS)]}
    path = sample(tmp_path, moved)
    data, text = declared(path, *HOUSED)
    assert (data["sites"], data["sites_per_client"]) == (3, 2)
    assert accepted(path, text).site_names == ("0", "1", "7")


def test_sites_of_a_table_in_python_are_declared_alike(tmp_path):
    frame = pyarrow.table({**STAYS, "y": [n % 2 for n in range(ROWS)]})
    ours = declare_object(TableObject(frame, "the sample"), "y", "patient", "hospital")
    theirs = declare_file(sample(tmp_path, STAYS), "y", "patient", "t.csv", site="hospital")
    assert ours.sites == theirs.sites == SampleSites("hospital", 3, 1)
    assert ours.section()["site"] == "hospital"


@every_case(
    "words, message",
    [
        (("--site", "hospital"), "no column names each row's client"),
        (("--site", "y", "--client", "patient"), "--label and --site are both 'y'"),
        (("--site", "patient", "--client", "patient"), "--client and --site are both 'patient'"),
        (("--site", "hospitl", "--client", "patient"), "--site is "),
    ],
)
def test_a_column_of_sites_that_is_none_is_refused(tmp_path, words, message):
    result = written(sample(tmp_path, STAYS), *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "h0" not in result.stderr
