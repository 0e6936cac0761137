"""What differs between two configurations, without building either."""

import copy
import sys

import pytest
from small import small

from accounting.documents import from_toml
from privfed.report.runs.compared import differences


@pytest.fixture
def document():
    return from_toml(small().toml())


def keys(first, second):
    return {each.key: (each.first, each.second) for each in differences(first, second)}


def test_only_keys_that_differ_are_named(document):
    other = from_toml(small("client.lr=0.1", "cohort.size=5").toml())
    assert keys(document, document) == {}
    assert keys(document, other) == {"client.lr": (0.5, 0.1), "cohort.size": (4, 5)}


def test_keys_of_another_part_stand_beside_it(document):
    other = from_toml(small("server.optimizer=fedavg").toml())
    differing = keys(document, other)
    assert differing["server.optimizer"] == ("fedavgm", "fedavg")
    assert differing["server.momentum"] == (0.9, None)


def test_a_default_that_a_later_version_added_is_no_difference(document):
    older = copy.deepcopy(document)
    del older["run"]["heads"]  # of its section
    del older["server"]["momentum"]  # of a part
    del older["cohort"]["availability"]  # names a part
    assert keys(older, document) == keys(document, older) == {}
    document["run"]["heads"] = "/elsewhere"
    document["server"]["momentum"] = 0.5
    assert keys(older, document) == {
        "run.heads": (None, "/elsewhere"),
        "server.momentum": (None, 0.5),
    }


def test_parts_from_outside_are_not_imported(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside_part.py").write_text("raise SystemExit('imported')\n")
    document["server"]["optimizer"] = "outside_part:Optimizer"
    other = copy.deepcopy(document)
    del other["server"]["momentum"]
    assert keys(document, other) == {"server.momentum": (0.9, None)}
    assert "outside_part" not in sys.modules


def test_tables_are_compared_key_by_key_and_types_count(document):
    other = copy.deepcopy(document)
    document["data"]["features_of"] = {"age": "0..120", "sex": ["f", "m"]}
    other["data"]["features_of"] = {"age": "0..100", "sex": ["f", "m"]}
    other["run"]["seed"] = 0.0
    other["anything"] = 1
    assert keys(document, other) == {
        "run.seed": (0, 0.0),
        "data.features_of.age": ("0..120", "0..100"),
        "anything": (None, 1),
    }
