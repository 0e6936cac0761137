"""What a client sends has norm 1 at most, whatever it holds and however much of it."""

import numpy as np
import pytest
from description_setup import asked, vectors
from lanes import every_case

from privfed.analytics.count_model import CountModel
from privfed.analytics.counted_table import of_counts
from privfed.analytics.questions import SIZES, chosen_rows
from privfed.privacy.clipping import clip_rows

CELLS = [
    ["", "NA", "12", "-3.5e9", "Bonn", "a very long word", "1e400", "0", "nan"],
    ["5", "", "words", "-1", "100", "1e9", "50.5", "0", "3"],
    ["2020-03-01", "", "no date", "1900-01-01", "2020-12-31", "2021-02-03", "x", "5", "2020-05-05"],
    ["a", "b", "true", "", "c", "a", "a", "b", "NA"],
]


@every_case("rows", [1, 3, 9])
def test_no_client_is_longer_than_one(rows):
    rng = np.random.default_rng(rows)
    for _ in range(20):
        owners = rng.integers(0, 3, 40)
        owners[:3] = 0, 1, 2
        columns = [rng.choice(column, 40) for column in CELLS]
        norms = np.linalg.norm(vectors(asked(rows), columns, owners), axis=1)
        assert (norms <= 1 + 1e-12).all()


def test_the_bound_is_reached_by_who_says_the_same_in_every_row():
    same = [[column[2]] * 5 for column in CELLS]
    (norm,) = np.linalg.norm(vectors(asked(5), same, [0] * 5), axis=1)
    assert norm == pytest.approx(1.0)


def test_more_rows_than_counted_would_break_it():
    """A planted fault: rows are not bounded, and the clip alone holds what was charged."""
    import torch

    same = [[column[2]] * 30 for column in CELLS]
    (row,) = vectors(asked(5), same, [0] * 30, most=30)
    assert np.linalg.norm(row) > 5.0
    bounded = clip_rows(torch.tensor(row[None]), 1.0)
    assert float(bounded.rows.norm()) <= 1.0
    assert bounded.bound == 1.0


def test_a_client_that_is_counted_twice_would_break_it():
    """A planted fault: two vectors of one client are longer than what is charged for one."""
    same = [[column[2]] for column in CELLS]
    (row,) = vectors(asked(1), same, [0])
    assert np.linalg.norm(2 * row) == pytest.approx(2.0)


def test_rows_are_chosen_by_each_client_alone():
    """Whoever else is in the table, and wherever its rows stand."""
    rng = np.random.default_rng(0)
    owners, order = rng.integers(0, 5, 60), rng.integers(0, 2**63, 60).astype(np.uint64)
    chosen, whose = chosen_rows(owners, order, 3)
    assert np.bincount(whose).max() == 3
    assert (np.diff(whose) >= 0).all()
    mine = {*order[chosen[whose == 2]].tolist()}
    without = owners != 4
    again, of = chosen_rows(owners[without], order[without], 3)
    assert {*order[without][again[of == 2]].tolist()} == mine
    shuffled = rng.permutation(60)
    again, of = chosen_rows(owners[shuffled], order[shuffled], 3)
    assert {*order[shuffled][again[of == 2]].tolist()} == mine


def test_a_client_tells_its_number_of_rows_in_one_cell():
    same = [[column[2]] * 40 for column in CELLS]
    (row,) = vectors(asked(2), same, [0] * 40)
    cells = row[-len(SIZES) :]
    assert (cells > 0).sum() == 1
    assert SIZES[int(cells.argmax())] == 33


def test_stretches_are_the_amplitudes():
    amplitudes = asked(3).amplitudes
    keys = of_counts(asked(3))
    stretches = keys["stretches"]
    module = CountModel.model_validate({"stretches": stretches}).build((4,), 1)
    assert np.allclose(dict(module.named_buffers())["amplitudes"], amplitudes)
    assert len(stretches) < 40
