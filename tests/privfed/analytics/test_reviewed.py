"""What declared words, earlier releases and heavy tails come to in a description."""

import json

import numpy as np
import pytest
from commands import run
from description_setup import QUICK, SEEDED, folk, run_file, words
from lanes import every_case

from privfed.analytics.estimates import Sums
from privfed.analytics.questions import OTHER_NODE, NumbersQuestion, Questions, as_values
from privfed.analytics.statistics_file import read_statistics
from privfed.data.tables.delimited import Dialect


@every_case(
    ("values", "cells"),
    [
        (["01", "02", "1"], ["01", "02", "1"]),
        (["1.0", "007", "+5"], ["1.0", "007", "+5"]),
        ([0, 1, 2], ["0", "1.0", "2e0"]),
    ],
)
def test_a_declared_word_is_counted_as_it_stands(values, cells):
    nodes = as_values("code", values).places(words(cells), Dialect())[:, 0]
    assert nodes.tolist() == [OTHER_NODE + 1 + n for n in range(len(values))]


def test_a_declaration_counts_what_was_spent_before_its_description(tmp_path):
    """Two descriptions of the same people: the run file of the second counts the first, too."""
    file = run_file(tmp_path)
    common = ("--epsilon", "8", "--set", SEEDED, *QUICK)
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("describe", file, *common, "--out", first).exit_code == 0
    prior = ("--set", f"privacy.prior={json.dumps([str(first)])}")
    assert run("describe", file, *common, *prior, "--out", second).exit_code == 0
    text = run("declare", "--from", second, "--label", "sex").stdout
    assert f'prior = ["{first}", "{second}"]' in text


def noised(x, rng, noise=6.0, bounds=None):
    """What a release with this noise says of numbers `x` `[N]` of as many clients."""
    question = NumbersQuestion("c", bounds)
    asked = Questions((question,), 1)
    counts = np.zeros(asked.length)
    at = question.tree.paths(question.cells.of(x), 8)
    np.add.at(counts, at[at >= 0], 1.0)
    counts[question.length] += len(x)
    sums = counts * asked.amplitudes + rng.normal(0, noise, asked.length)
    return Sums.of(asked, sums, noise).columns()[0].numbers


@pytest.mark.parametrize("repeats", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_mean_lies_in_its_interval(repeats):
    rng = np.random.default_rng(1)
    population = [np.full(1500, 5.0), rng.pareto(1.1, 1500) + 1, -rng.exponential(10, 1500)]
    for numbers in (noised(x, rng) for x in population for _ in range(repeats)):
        assert numbers.mean.low <= numbers.mean.value <= numbers.mean.high


@every_case(
    "words", [("--delta", "1e-7"), ("--rows-per-client", "9"), ("--buckets", "7"), ("--letters", 3)]
)
def test_a_folder_is_read_again_as_it_is(tmp_path, words):
    assert run("describe", tmp_path, *words).exit_code == 2
    assert "is only read again" in run("describe", tmp_path, *words).output


def test_words_that_were_cut_are_not_taken_for_none(tmp_path):
    """Towns longer than what was read: the share counts them, and so do reasons."""
    columns = folk()
    longer = {"Bonn": "Bonn am Rhein", "Oslo": "Oslo", "Rome": "Rome"}
    columns["town"] = [longer[town] for town in columns["town"]]
    common = ("--epsilon", "inf", "--set", SEEDED, *QUICK)
    file = run_file(tmp_path, columns=columns)
    assert run("describe", file, *common, "--out", tmp_path / "out").exit_code == 0
    town = read_statistics(tmp_path / "out").column("town")
    counts = {each.value: each.count.value for each in town.values}
    part = (counts["Oslo"] + counts["Rome"]) / sum(counts.values())
    text = run("declare", "--from", tmp_path / "out", "--label", "sex").stdout
    assert f"2 words read from the sums, {part:.0%} of all" in text
    columns["town"] = [town.replace("Oslo", "Oslo city") for town in columns["town"]]
    file = run_file(tmp_path, columns=columns)
    assert run("describe", file, *common, "--out", tmp_path / "cut").exit_code == 0
    text = run("declare", "--from", tmp_path / "cut", "--label", "sex").stdout
    assert "more --letters" in text
