"""Flower's environment: privfed's pinned versions, but for two that Flower asks to be older."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
IN_CONFLICT = {"packaging", "rich"}


def pinned(name):
    lines = (ROOT / name).read_text().splitlines()
    return {line.partition("==")[0]: line for line in lines if line}


def test_the_versions_are_the_same_but_for_two():
    everywhere, there = pinned("constraints.txt"), pinned("constraints.flower.txt")
    assert everywhere.keys() - there.keys() == IN_CONFLICT
    assert there == {name: line for name, line in everywhere.items() if name not in IN_CONFLICT}


def test_flower_is_an_extra_of_its_own_and_no_part_of_dev():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    assert extras["flower"] == ["flwr>=1.41,<1.43"]
    assert not any("flower" in each or "flwr" in each for each in extras["dev"])
