"""The files for those who carry the project on say what is so."""

import re
import tomllib

import yaml
from documents.pages import ROOT

import privfed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def test_the_citation_is_what_its_schema_asks_for():
    """The keys that the Citation File Format 1.2.0 requires, and no others than it knows."""
    required = {"authors", "cff-version", "message", "title"}
    used = {"type", "abstract", "version", "license", "keywords"}
    assert required <= CITATION.keys() <= required | used
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    assert CITATION["authors"] == [{"name": "the privfed contributors"}]
    assert all(isinstance(word, str) for word in CITATION["keywords"])


def test_all_files_name_one_version_and_one_licence():
    assert privfed.__version__ == PROJECT["version"] == CITATION["version"]
    assert PROJECT["license"] == CITATION["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


def test_the_changelog_begins_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    title = re.search(r"^## (\S+) \((\S+)\)$", text, re.MULTILINE)
    assert title[1] == privfed.__version__
    assert title[2] == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", title[2])


def test_reports_go_to_no_address():
    for name in ("SECURITY.md", "CONTRIBUTING.md", "CITATION.cff"):
        assert not re.search(r"\S@\S+\.\w", (ROOT / name).read_text("utf-8")), name


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
