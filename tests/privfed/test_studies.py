"""The studies' files still say what this version reads, and their parts are whole."""

from pathlib import Path

import pytest

from privfed.config.reading import load
from privfed.parts import find

STUDIES = Path(__file__).parents[2] / "experiments"


def test_the_run_file_of_every_study_is_read():
    files = sorted(STUDIES.glob("*/*run.toml"))
    assert len(files) > 15
    for file in files:
        load(file)


@pytest.mark.parametrize("name", ["Images", "Many"])
def test_the_sources_of_benchmarks_declare_what_sources_have_to(name):
    find("source", f"experiments.benchmarks.workloads:{name}", "data.source")
