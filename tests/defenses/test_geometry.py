"""Inner products of rows: exact for any number of them, and computed only where they are needed."""

import pytest
import torch
from lanes import every_case, mostly_slow

from defenses.before.bucketing import Bucketing
from defenses.by_sums.mean import Mean
from defenses.columns import product
from defenses.geometry import Geometry
from defenses.weighing import Composed


def cloud(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", mostly_slow([1, 2, 39, 40, 41, 90], 1, 40, 41))
@pytest.mark.parametrize("away", [0.0, 50.0])
def test_every_pair_is_there_however_many_rows(n, away):
    rows, keep = cloud(n + 3, 8500) + away, torch.arange(1, n + 1)
    geometry, used = Geometry.of(rows, keep), rows[keep]
    assert geometry.rows == n
    torch.testing.assert_close(
        geometry.distances(), (used[:, None] - used[None, :]).square().sum(2)
    )
    torch.testing.assert_close(geometry.inner(), used @ used.T)
    torch.testing.assert_close(geometry.norms, used.square().sum(1))


def test_mixtures_lie_as_the_mixed_rows_do():
    rows, weights = cloud(45, 30), torch.softmax(cloud(7, 45, seed=1), dim=1) * 1.5
    mixed, geometry = weights @ rows, Geometry.of(rows).mixed(weights)
    assert geometry.rows == 7
    torch.testing.assert_close(geometry.inner(), mixed @ mixed.T)
    torch.testing.assert_close(geometry.norms, mixed.square().sum(1))


def test_what_asks_for_no_products_costs_none(monkeypatch):
    def refused(*_):
        raise AssertionError("inner products were computed")

    monkeypatch.setattr("defenses.geometry._amid", refused)
    rows = cloud(12, 5)
    torch.testing.assert_close(Mean()(rows, 0), rows.mean(0))
    mean = Composed(before=(Bucketing(bucket_size=3),), rule=Mean())
    torch.testing.assert_close(mean(rows, 2, generator=torch.Generator()), rows.mean(0))
    torch.testing.assert_close(Geometry.of(rows).norms, rows.square().sum(1))
    with pytest.raises(AssertionError, match="inner products"):
        Geometry.of(rows).distances()


@every_case("full", [1, 4, 40])
@every_case("keep", [None, torch.arange(0, 40, 2)])
def test_products_are_the_same_whether_weights_are_few_or_many(full, keep):
    rows = cloud(40, 20)
    used = rows if keep is None else rows[keep]
    weights = cloud(6, len(used), seed=1)
    weights[:, full:] = 0.0
    torch.testing.assert_close(product(weights, rows, keep), weights @ used)


@pytest.mark.parametrize("away", [1e2, 1e4])
def test_cosines_are_exact_where_rows_are_far_from_the_origin(away):
    rows = (cloud(12, 10_000) + away).float()
    exact = torch.nn.functional.cosine_similarity(rows.double()[:, None], rows.double()[None], 2)
    assert (Geometry.of(rows).cosines() - exact).abs().max() < 1e-9
