"""What declared words, earlier releases and heavy tails come to in a description."""

import json

import numpy as np
import pytest
from commands import run
from described import QUICK, SEEDED, run_file, words

from privfed.data.tables.delimited import Dialect
from privfed.statistics.asked import Asked
from privfed.statistics.estimates import Sums
from privfed.statistics.questions import OTHER_NODE, NumbersAsked, as_values


@pytest.mark.parametrize(
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
    question = NumbersAsked("c", bounds)
    asked = Asked((question,), 1)
    counts = np.zeros(asked.length)
    at = question.tree.paths(question.cells.of(x), 8)
    np.add.at(counts, at[at >= 0], 1.0)
    counts[question.length] += len(x)
    sums = counts * asked.amplitudes + rng.normal(0, noise, asked.length)
    return Sums.of(asked, sums, noise).columns()[0].numbers


def test_a_mean_lies_in_its_interval():
    rng = np.random.default_rng(1)
    people = [np.full(1500, 5.0), rng.pareto(1.1, 1500) + 1, -rng.exponential(10, 1500)]
    for numbers in (noised(x, rng) for x in people for _ in range(20)):
        assert numbers.mean.low <= numbers.mean.value <= numbers.mean.high
