"""Pinned versions: of all that is installed, and Flower's, but for those it asks to be older."""

import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from lanes import every_case
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[4]
ENGINES = {"flower": "flwr", "nvflare": "nvflare"}
"""Extras with versions of their own, and the package of each."""
IN_CONFLICT = {"packaging", "protobuf", "rich"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def pinned(name):
    lines = (ROOT / name).read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if line}


def test_the_versions_are_the_same_but_for_those_in_conflict():
    everywhere, there = pinned("constraints.txt"), pinned("constraints.flower.txt")
    assert {name for name in everywhere if there[name] != everywhere[name]} == IN_CONFLICT


SERVICES = {"mlflow", "wandb"}
"""Clients of services, whose tests are skipped where they are not installed."""


def test_nvidia_flare_adds_versions_and_changes_none():
    """The file includes the common versions, so it repeats none of them."""
    first, *lines = (ROOT / "constraints.nvflare.txt").read_text().splitlines()
    assert first == "--constraint constraints.txt"
    added = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert not added & pinned("constraints.txt").keys()


def test_engines_are_extras_of_their_own_and_dev_has_all_others_but_services():
    for extra, package in ENGINES.items():
        (engine,) = map(Requirement, EXTRAS[extra])
        version = pinned(f"constraints.{extra}.txt")[package].partition("==")[2]
        assert engine.specifier.contains(version)
    (others,) = (each for each in map(Requirement, EXTRAS["dev"]) if each.name == "privfed")
    assert others.extras == EXTRAS.keys() - {"dev", *ENGINES} - SERVICES


def installed(extra):
    """What `privfed[extra]` installs here, with whatever these packages ask for in turn."""
    found, waiting = set(), [("privfed", ""), ("privfed", extra)]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for each in map(Requirement, requires(package[0]) or []):
            if each.marker is None or each.marker.evaluate({"extra": package[1]}):
                name = canonicalize_name(each.name)
                waiting += [(name, ""), *((name, one) for one in each.extras)]
                yield name, each.specifier


@every_case("extra", ["", *sorted(EXTRAS.keys() - {*ENGINES} - SERVICES)])
def test_whatever_an_extra_installs_is_pinned_to_a_version_that_all_of_it_allow(extra):
    """So each resolves where `dev` does, which has all of them: that CI installs afresh."""
    pins = pinned("constraints.txt")
    for name, specifier in installed(extra):
        if name not in ("privfed", "setuptools"):
            assert specifier.contains(pins[name].partition("==")[2]), name


def test_nothing_is_pinned_that_is_not_installed():
    assert pinned("constraints.txt").keys() <= {name for name, _ in installed("dev")}


@pytest.fixture
def clone():
    """A fresh clone, in a folder that is gone afterwards: environments are large."""
    with tempfile.TemporaryDirectory() as folder:
        fetching = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "flwr"]
        if subprocess.run([*fetching, "--dest", folder], check=False).returncode:
            pytest.skip("no version of flwr can be installed here")
        path = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", ROOT, path], check=True)
        yield path


@pytest.mark.slow
def test_a_fresh_clone_makes_a_federation(clone, monkeypatch):
    """Its environment, from the pinned versions alone, and all of the story in it."""
    for name in ("FLOWER_VENV", "MAKEFLAGS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    told = subprocess.run(
        ["make", "federation", "ARGS=--deadline 12"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    listing = [clone / ".venv-flower/bin/python", "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    there = {canonicalize_name(line.partition("==")[0]) for line in listed}
    assert there - {"pip", "privfed", "setuptools"} <= pinned("constraints.flower.txt").keys()
