"""Rules wherever rows lie: the same aggregate, and no wait for a GPU within loops.

On PyTorch's device "meta" there are shapes and no numbers: what looks at a number fails there, as
it would wait on a GPU.
"""

import pytest
import torch
from lanes import every_case
from rules import ROWS

from defenses import columns, geometry
from defenses.before.bucketing import Bucketing
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums import pull
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import Composed


def cloud(n=13, d=40_000):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    rows[:2] += 5.0
    return rows


@every_case("name", ROWS)
def test_rules_give_the_same_wherever_rows_lie(name, device):
    rows, few = cloud(), cloud(d=6)
    few[3] = torch.inf  # left out
    for each in (rows, few):
        out = ROWS[name](each.to(device), 2)
        assert out.device.type == device.type
        torch.testing.assert_close(out.cpu(), ROWS[name](each, 2), rtol=1e-4, atol=1e-5)


def test_rules_with_a_mean_a_center_or_coins_give_the_same_wherever_rows_lie(device):
    rows, center = cloud(), torch.full((40_000,), 0.5)
    clipping = CenteredClipping(radius=3.0)
    pairs = Composed(before=(Bucketing(bucket_size=2),), rule=TrimmedMean())

    def aggregates(place):
        here = rows.to(place)
        coins = torch.Generator().manual_seed(1)
        yield Mean()(here, 0)
        yield clipping.on_rows(here, center.to(place))
        yield clipping.on_rows(here, torch.zeros_like(center).to(place))
        yield pairs(here, 2, generator=coins)

    for there, here in zip(aggregates(device), aggregates("cpu"), strict=True):
        assert there.device.type == device.type
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)


def test_small_matrices_lie_on_the_cpu(device):
    rows = cloud().to(device)
    made = geometry.Geometry.of(rows)
    assert made.gram.device.type == made.norms.device.type == "cpu"
    assert made.gram.dtype == torch.float64
    broken = geometry.Geometry.of(rows, torch.arange(3, 9, device=device))
    assert broken.gram.shape == (7, 7)
    assert broken.norms.device.type == "cpu"


@every_case("width", [5, 8192, 3 * 8192 + 17])
def test_batched_products_are_those_of_chunks(width):
    rows = cloud(n=90, d=width)
    upper = torch.zeros(90, 90, dtype=torch.float64)
    for start in range(0, width, 8192):
        geometry._add_products(upper, rows[:, start : start + 8192])
    products = geometry.batched_products(rows)
    assert products.dtype == torch.float64
    torch.testing.assert_close(products.triu(), upper.triu(), rtol=1e-5, atol=1e-3)


def test_sums_of_a_long_row_keep_their_digits_where_products_are_batched():
    """Float32 alone would lose what 8,192 columns add to 10^8 others."""
    row = torch.full((1, 40 * 8192), 1e3)
    row[:, -1] = 1.0
    exact = float((row.double() ** 2).sum())
    assert float(geometry.batched_products(row)) == pytest.approx(exact, rel=1e-7)


def test_ways_by_blocks_of_rows_are_those_of_row_by_row():
    rows, center = cloud(d=300), torch.full((300,), 0.5)
    rows[4] = torch.inf
    rows[5, 7] = torch.nan
    by_blocks = pull.mean_of_blocks(rows, center, 3.0)
    torch.testing.assert_close(by_blocks, pull.mean_pull(rows, center, 3.0), rtol=1e-4, atol=1e-6)
    assert by_blocks.norm() > 0.1


def test_no_loop_over_rows_or_columns_waits_for_a_device():
    rows = torch.empty(100, 10**6, device="meta")
    assert geometry._about(rows, None, None).dtype == torch.float64
    assert geometry._about(rows, None, rows[3]).shape == (101, 101)
    trimmed = columns.by_column(rows, None, None, lambda x: TrimmedMean().columns(x, 20))
    assert trimmed.shape == (10**6,)
    mixing = torch.eye(100, dtype=torch.float64)
    assert columns.by_column(rows, None, mixing, lambda x: x.mean(1)).shape == (10**6,)
    assert columns.product(mixing[:1] + 1, rows, None).shape == (1, 10**6)
    assert columns.product(mixing[:1].to("meta"), rows, None).shape == (1, 10**6)
    assert pull.mean_of_blocks(rows, rows[0], 1.0).shape == (10**6,)
    with pytest.raises((RuntimeError, NotImplementedError)):
        rows.any().item()


def test_a_gpu_sorts_more_columns_per_step_than_a_cpu():
    assert columns._columns_per_step(torch.empty(100, 1, device="meta"), 1) == (1 << 24) // 100
    assert columns._columns_per_step(torch.empty(10**6, 1, device="meta"), 1) == 8192
    assert columns._columns_per_step(torch.empty(100, 1), 2) == 2 * 8192


def test_sparse_weights_on_the_cpu_weigh_rows_elsewhere(device):
    rows, fifth_alone = cloud(d=50), torch.zeros(1, 13, dtype=torch.float64)
    fifth_alone[0, 4] = 1.0
    assert torch.equal(columns.product(fifth_alone, rows.to(device), None).cpu()[0], rows[4])


@every_case("rule", [GeometricMedian(), NearestNeighbourMixing()])
def test_weights_are_made_on_the_cpu(rule, device):
    made = geometry.Geometry.of(cloud(d=50).to(device))
    given = () if isinstance(rule, GeometricMedian) else (None,)
    assert rule.mix(made, 2, *given).device.type == "cpu"
