"""The study of less noise: its tables at small sizes, and a page that says what its files say."""

import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from lanes import every_case

from accounting.events import ADD_REMOVE, ZERO_OUT
from experiments.less_noise.accounting_time import (
    accounting_time,
    empty_caches,
    median_seconds,
    question,
)
from experiments.less_noise.noise_table import (
    ALLOCATION,
    BUFFERED,
    IN_BANDS,
    OPTIMISED,
    POISSON,
    ROOT,
    Setting,
    noise_table,
    several,
)
from experiments.less_noise.tables import GRIDS, HERE, read, tables, write
from privfed.config.reading import load
from privfed.plan.calibration.solving import solve
from privfed.privacy.noise.factorization import UNIT, optimal_bands, square_root

SMALL = Setting(60, 6, 2.0)


@pytest.fixture(scope="module")
def small():
    return {row.method: row for row in noise_table([SMALL])}


def test_every_method_has_its_noise(small):
    assert small[ROOT].bands == small[OPTIMISED].bands == 6
    assert small[IN_BANDS].bands in several(6) == (2, 3, 6)
    assert small[OPTIMISED].relative < small[BUFFERED].relative < small[ROOT].relative + 0.02
    assert small[IN_BANDS].relative <= small[OPTIMISED].relative * (1 + 1e-4)
    assert 0 < small[ALLOCATION].relative < small[POISSON].relative < 1


def test_relations_are_those_of_the_draws(small):
    add_remove = {method for method, row in small.items() if row.relation == ADD_REMOVE}
    assert add_remove == {ALLOCATION, POISSON}
    assert {row.relation for row in small.values()} == {ADD_REMOVE, ZERO_OUT}


def test_a_plan_has_as_many_bands_as_the_table(small):
    answer = solve(question(IN_BANDS, SMALL))
    assert answer.question.bands == answer.question.groups == small[IN_BANDS].bands
    assert answer.bound.epsilon == pytest.approx(SMALL.epsilon, rel=1e-3)


@pytest.mark.slow
def test_accounting_is_timed_beside_poisson():
    began = time.process_time()
    rows = list(accounting_time((Setting(20, 10, 1.0),), repeats=1))
    taken = time.process_time() - began
    assert {row.work for row in rows} == {"epsilon", "calibration"}
    assert {row.method for row in rows} == {POISSON, ALLOCATION, IN_BANDS, OPTIMISED, BUFFERED}
    for row in rows:
        assert 0 < row.seconds < taken
        assert (row.over_poisson == 1.0) == (row.method == POISSON)


def test_each_time_begins_with_empty_caches():
    calls = []

    def task():
        calls.append(optimal_bands.cache_info().currsize)
        optimal_bands(3, 20)

    median_seconds(task, 2)
    assert calls[1:] == [0, 0]
    empty_caches()
    assert optimal_bands.cache_info().currsize == 0


def test_what_is_written_is_read(small, tmp_path):
    write(small.values(), tmp_path / "noise.csv")
    for line, row in zip(read(tmp_path / "noise.csv"), small.values(), strict=True):
        assert float(line["relative"]) == pytest.approx(row.relative, rel=1e-5)
        assert (line["method"], line["relation"], int(line["bands"])) == (
            *(row.method, row.relation),
            row.bands,
        )


@every_case(
    ("rounds", "apart", "epsilon", "method", "known"),
    [
        ("500", "10", "1", ROOT, 0.390),
        ("500", "10", "1", OPTIMISED, 0.352),
        ("500", "10", "1", BUFFERED, 0.372),
        ("2000", "100", "4", OPTIMISED, 0.143),
        ("2000", "100", "4", BUFFERED, 0.151),
        ("500", "50", "1", ALLOCATION, 0.154),
        ("500", "50", "1", IN_BANDS, 0.149),
        ("500", "50", "4", ALLOCATION, 0.239),
        ("500", "50", "4", IN_BANDS, 0.172),
    ],
)
def test_noise_is_what_other_programs_make_it(rounds, apart, epsilon, method, known):
    keys = {"rounds": rounds, "apart": apart, "epsilon": epsilon, "method": method}
    (row,) = (row for row in read(HERE / "noise.csv") if keys.items() <= row.items())
    assert float(row["relative"]) == pytest.approx(known, abs=1.5e-3)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_cell_was_run_within_its_budget(grid):
    load(HERE / grid / "run.toml")
    rows = read(HERE / grid / "grid.csv")
    methods = tomllib.loads((HERE / grid / "grid.toml").read_text("utf-8"))["method"]
    epsilons = {row["privacy.epsilon"] for row in rows}
    assert {row["method"] for row in rows} == {method["name"] for method in methods}
    assert len(rows) == len(methods) * len(epsilons) * 5
    for row in rows:
        assert row["status"] == "done"
        assert 0.99 < float(row["epsilon"]) / float(row["privacy.epsilon"]) <= 1


@every_case("grid", ["less_noise/digits", "less_noise/mnist", "banded"])
def test_bands_of_the_square_root_are_given(grid):
    file = Path(HERE).parent / grid / "grid.toml"
    methods = tomllib.loads(file.read_text("utf-8"))["method"]
    given = [
        each["set"]["privacy.toeplitz"] for each in methods if "privacy.toeplitz" in each["set"]
    ]
    assert given
    for coefficients in given:
        root = square_root(len(coefficients))
        assert np.abs(np.array(coefficients) - root).max() <= UNIT / 2
        assert (np.array(coefficients) % UNIT == 0).all()


def test_the_page_shows_what_the_tables_say():
    page = (HERE / "README.md").read_text("utf-8")
    for table in tables():
        assert table in page
