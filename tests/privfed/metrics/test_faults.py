"""Planted faults: rows that would break the guarantee, or count somebody otherwise than once."""

import numpy as np
import pytest
import torch
from scorings import DIGITS, MEASURES, Population, population

from privfed.metrics import measure_row
from privfed.metrics.accuracy import Accuracy
from privfed.metrics.mean_loss import MeanLoss
from privfed.metrics.measure_row import MeasureRow, group_means


def without(crowd, client):
    """The same people without one."""
    begin, end = crowd.offsets[client], crowd.offsets[client + 1]
    there = np.r_[0:begin, end : len(crowd.y)]
    sizes = np.delete(np.diff(crowd.offsets), client)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Population(crowd.outputs[there], crowd.y[there], offsets)


def sensitivity(row, crowd):
    """How far the sum of rows moves, at most, as one of the clients leaves."""
    total = crowd.rows(row).sum(0)
    moves = [
        (total - without(crowd, client).rows(row).sum(0)).norm()
        for client in range(len(crowd.offsets) - 1)
    ]
    return float(max(moves))


def by_examples(examples, offsets, groups, count):
    sizes = torch.from_numpy(np.diff(offsets))
    return group_means(examples, offsets, groups, count) * sizes[:, None] / 10


def twice(examples, offsets, groups, count):
    means = group_means(examples, offsets, groups, count)
    return means + means.roll(1, 0) * (len(means) > 1)


class Unclipped(MeanLoss):
    """A loss that goes where it likes."""

    def vectors(self, outputs, y, scoring):
        low, high = self.bounds(scoring)
        return (2 * (self.values(outputs, y, scoring) - low) / (high - low) - 1)[:, None]


class Sure(Accuracy):
    """The spread of a client beside its mean, at a price."""

    def parts(self, means):
        return torch.cat([means, 1 - means.square() / 2], 1)


def test_one_client_moves_the_sum_by_one_at_most():
    row = MeasureRow.of([MEASURES["accuracy"], MEASURES["loss"]], DIGITS)
    assert sensitivity(row, population("digits", 12)) <= 1 + 1e-9


@pytest.mark.parametrize("fault", [by_examples, twice])
def test_a_client_that_counts_by_its_examples_or_twice_is_seen(fault, monkeypatch):
    monkeypatch.setattr(measure_row, "group_means", fault)
    row = MeasureRow.of([MEASURES["accuracy"], MEASURES["loss"]], DIGITS)
    assert sensitivity(row, population("digits", 12)) > 1.1


def test_an_unclipped_loss_is_seen_and_bounded_all_the_same():
    y = torch.zeros(3, dtype=torch.int64)
    outputs = -40 * torch.eye(10)[y]
    assert Unclipped().vectors(outputs, y, DIGITS).norm(dim=1).max() > 5
    row = MeasureRow.of([Unclipped()], DIGITS)
    rows = row.of_clients(row.of_examples(outputs, y), np.arange(4))
    assert float(rows.norm(dim=1).max()) <= 1 + 1e-9


def test_parts_beyond_the_bound_are_shortened():
    row = MeasureRow.of([Sure()], DIGITS)
    crowd = population("digits", 20)
    means = torch.tensor([[0.9]], dtype=torch.float64)
    assert float(Sure().parts(means).norm()) > 1.05
    assert float(crowd.rows(row).norm(dim=1).max()) <= 1 + 1e-9
