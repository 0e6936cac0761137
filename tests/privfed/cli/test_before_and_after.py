"""What surrounds a run: check, list, declare, evaluate."""

import csv
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from lanes import every_case
from small import SMALL, small, trained

from privfed.cli.main import main
from privfed.config.catalog import catalog, key_of, schema
from privfed.config.reading import load
from privfed.core.registry import BUILT_IN
from privfed.plan.plan import plan
from privfed.run.check import check
from privfed.trained.evaluate import evaluate

SETTINGS = [word for option in SMALL for word in ("--set", option)]


def cells(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_check_says_what_train_and_calibrate_say():
    printed = json.loads(run("check", *SETTINGS, "--json").stdout)
    rate, rounds = 4 / 12, 7
    calibrated = json.loads(
        run(
            *("calibrate", "--sampling-rate", rate, "--rounds", rounds, "--delta", 1e-3),
            *("--noise-multiplier", 2.0, "--json"),
        ).stdout
    )
    for key in ("epsilon", "accountants", "noise_multiplier", "relation", "sampler", "delta"):
        assert printed[key] == calibrated[key], key
    assert printed["event"]["release"]["of"] == {"kind": "gaussian", "noise_multiplier": 2.0}
    assert printed["sensitivity"] == 0.4


def test_the_forecast_by_hand():
    forecast = check(small("privacy.clip=0.5")).forecast
    d = 3 * 6 + 3
    assert forecast.parameters == d
    assert forecast.empty == pytest.approx((1 - 4 / 12) ** 12)
    assert forecast.down == forecast.up == 4 * d * 4
    assert (forecast.signal, forecast.noise) == (0.5, pytest.approx(2.0 * 0.5 * np.sqrt(d) / 4))
    assert forecast.seconds > 0
    open_run = check(small("privacy.mechanism=none")).forecast
    assert (open_run.signal, open_run.noise) == (None, None)
    assert open_run.up == 4 * (d + 1) * 4, "without privacy a client also sends its weight"


def test_a_run_with_little_to_learn_from_is_told_so():
    assert "faint" not in run("check", *SETTINGS).stdout
    shown = run("check", *SETTINGS, "--set", "privacy.noise_multiplier=900").stdout
    assert "the model may learn little, and only at small learning rates" in shown


def test_the_header_of_train_is_the_table_of_check(tmp_path):
    def facts(text):
        lines = text.split("\n\n")[0].splitlines()
        pairs = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] != "training time"}

    checked = facts(run("check", *SETTINGS).stdout)
    header = facts(run("train", *SETTINGS, "--out", tmp_path / "run").stdout)
    assert header.pop("run")
    assert checked == header
    assert {
        "privacy",
        "event",
        "accountants",
        "protects",
        "signal-to-noise",
        "traffic",
    } <= checked.keys()


def test_check_lists_every_refusal_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(
        *("check", *SETTINGS, "--set", "aggregation.rule=median", "--set", "cohort.size=99"),
        *("--set", "aggregation.weights=examples"),
    )
    assert result.exit_code == 2
    for reason in (
        "cohort.size is 99",
        "no proven sensitivity",
        "number of examples is private",
        "gives all rows equal weight",
    ):
        assert reason in result.stderr
    assert run("check", *SETTINGS).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_list_names_every_part_with_a_sentence():
    found = catalog()
    assert {kind: set(parts) for kind, parts in found.items()} == {
        kind: set(parts) for kind, parts in BUILT_IN.items()
    }
    for kind, parts in found.items():
        for name, line in parts.items():
            assert 10 < len(line) < 120, (kind, name, line)
    assert json.loads(run("list", "--json").stdout) == found
    shown = run("list").stdout
    for kind, parts in BUILT_IN.items():
        section, _, key = key_of(kind).rpartition(".")
        assert f"[{section}] {key}" in shown
        assert all(f"  {name} " in shown for name in parts)


@pytest.fixture(scope="module")
def judge():
    described = json.loads(run("list", "--schema").stdout)
    assert described == schema()
    judge = jsonschema.Draft202012Validator(described)
    judge.check_schema(described)
    return judge


RUN = {"format": 1, "data": {"clients": 5}, "client": {"privacy": {"mechanism": "none"}}}


@every_case(
    "sections, valid",
    [
        ({}, True),
        (tomllib.loads(load(None).toml()), True),
        (tomllib.loads(plan(load(None)).config.toml()), True),
        ({"data": {"source": "synthetic", "alpha": 0.5}}, True),
        ({"server": {"optimizer": "mine:Server", "own_key": 3}}, True),
        ({"data": {"source": "idx"}}, True),
        ({"server": {"momentm": 0.5}}, False),
        ({"server": {"momentum": "much"}}, False),
        ({"run": {"rounds": 1.5}}, False),
        ({"run": {"rounds": 0}}, False),
        ({"model": {"name": "cnn", "channels": "many"}}, False),
        ({"data": {"source": "dgits"}}, False),
        ({"serve": {}}, False),
        ({"format": 2}, False),
    ],
)
def test_the_schema_accepts_run_files_and_marks_mistakes(judge, sections, valid):
    assert judge.is_valid({**RUN, **sections}) is valid, list(
        judge.iter_errors({**RUN, **sections})
    )


def test_evaluate_repeats_the_runs_own_score_and_writes_predictions(tmp_path):
    outcome = trained(tmp_path / "run", "run.randomness=seeded")
    path = tmp_path / "predictions.csv"
    result = run("evaluate", tmp_path / "run", "--predictions", path, "--json")
    printed = json.loads(result.stdout)
    assert printed["accuracy"] == outcome.accuracy
    assert printed["loss"] == pytest.approx(outcome.measures["loss"])
    assert (printed["examples"], printed["own_test_set"]) == (outcome.test_examples, True)
    rows = cells(path)
    assert len(rows) == outcome.test_examples
    assert np.mean([row["label"] == row["prediction"] for row in rows]) == outcome.accuracy
    for row in rows:
        likely = [float(row[f"probability_{label}"]) for label in range(3)]
        assert sum(likely) == pytest.approx(1)
        assert likely[int(row["prediction"])] == max(likely)
    other = json.loads(
        run("evaluate", tmp_path / "run", "--set", "data.size_min=9", "--json").stdout
    )
    assert other["own_test_set"] is False
    assert other["examples"] >= 12 * 9
    shown = run("evaluate", tmp_path / "run", "--set", "data.size_min=9").stdout
    assert "not covered by the run's ε" in shown


def table(path, label, count=60):
    rng = np.random.default_rng(0)
    x, word = rng.random(count), rng.choice(["f", "m"], count)
    labels = {
        "words": np.where(x > 0.5, "yes", "no"),
        "numbers": (10 * x).round(2),
        "classes": (3 * x).astype(int),
    }[label]
    lines = ["who,x,word,empty,many,y"]
    lines += [
        f"c{n % 12},{100 * v:.1f},{w},,word{n},{y}"
        for n, (v, w, y) in enumerate(zip(x, word, labels, strict=True))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@every_case(
    "label, loss, measure",
    [
        ("words", "binary_cross_entropy", "auc"),
        ("classes", "cross_entropy", "accuracy"),
        ("numbers", "squared_error", "mae"),
    ],
)
def test_what_declare_writes_trains_and_predicts(tmp_path, monkeypatch, label, loss, measure):
    monkeypatch.chdir(tmp_path)
    table(Path("a sample.csv"), label)
    written = run("declare", "a sample.csv", "--label", "y", "--client", "who")
    assert written.exit_code == 0, written.output
    assert "#   empty: empty in every row\n" in written.stdout
    assert "#   many: a different word in every row" in written.stdout
    document = tomllib.loads(written.stdout)
    assert document["model"]["loss"] == loss
    low, high = document["data"]["features"]["x"]
    assert 0 <= low < 10
    assert 90 < high <= 100
    assert document["data"]["categories"] == {"word": ["f", "m"]}
    Path("run.toml").write_text(written.stdout)
    assert "data.clients is 0" in run("train", "run.toml").stderr
    assert document["cohort"]["size"] == document["data"]["clients"] == 0
    settings = ["--set", "data.clients=12", "--set", "cohort.size=4", "--set", "run.rounds=3"]
    result = run("train", "run.toml", *settings, "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])[measure] >= 0
    assert f"{measure} " in result.stderr
    scored = run("evaluate", "run", "--data", "a sample.csv", "--predictions", "p.csv", "--json")
    assert json.loads(scored.stdout)["examples"] == 60
    rows = cells(Path("p.csv"))
    given = cells(Path("a sample.csv"))
    for row, own in zip(rows, given, strict=True):
        assert row["label"] == own["y"] or float(row["label"]) == pytest.approx(
            float(own["y"]), abs=1e-4
        )


def test_several_labels_are_predicted_by_name(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((40, 2))
    lines = ["a,b,cold,wet", *(f"{a:.2f},{b:.2f},{int(a > 0.5)},{int(b > 0.5)}" for a, b in x)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "run.toml").write_text(
        f"""
        [data]
        source = "table"
        path = "{tmp_path / "t.csv"}"
        partition = "iid"
        clients = 10
        label = ["cold", "wet"]
        features = {{ a = [0, 1], b = [0, 1] }}
        [model]
        loss = "multi_label"
        k = 1
        [cohort]
        size = 5
        [run]
        rounds = 3
        """
    )
    assert run("train", tmp_path / "run.toml", "--out", tmp_path / "run").exit_code == 0
    found = evaluate(tmp_path / "run", [], tmp_path / "p.csv")
    assert "recall_at_1" in found.measures
    rows = cells(tmp_path / "p.csv")
    assert [*rows[0]] == ["row", "label", "prediction", "probability_cold", "probability_wet"]
    assert {row[key] for row in rows for key in ("label", "prediction")} <= {
        *("", "cold", "wet", "cold wet")
    }
    assert all(
        ("wet" in row["prediction"]) == (float(row["probability_wet"]) > 0.5) for row in rows
    )


@every_case(
    "words, message",
    [
        (["evaluate", "nowhere"], "not a run directory"),
        (["evaluate", "RUN", "--set", "client.lr=1"], "set only keys of [data]"),
        (["evaluate", "RUN", "--set", "data.features=9"], "do not fit the model of RUN"),
        (["evaluate", "RUN", "--data", "x"], "data.path is not a known key"),
        (["declare", "nowhere.csv", "--label", "y"], "does not exist"),
        (["declare", "t.csv", "--label", "z"], "'z', but t.csv has no such column"),
        (["check", "nowhere.toml"], "does not exist"),
        (["evaluate", "RUN", "--predictions", "gone/p.csv"], "the folder gone is missing"),
        (
            ["declare", "t.csv", "--label", "y", "--client", "y"],
            "a client is not a label to predict",
        ),
        (["declare", "t.csv", "--label", "y", "--delimiter", ";;"], "expected one character"),
    ],
)
def test_bad_input_around_a_run_is_one_message(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), "words")
    trained(tmp_path / "RUN", "run.rounds=1")
    result = run(*words)
    assert result.exit_code in (2, 5), result.output
    assert message in result.stderr.replace("\n         ", " ")
    assert "Traceback" not in result.stderr
