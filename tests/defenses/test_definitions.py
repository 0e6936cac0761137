"""Each rule against its definition, written out by brute force, or a hand example."""

import itertools
import math

import numpy as np
import pytest
import torch
from by_definition import check, cloud, foolsgold_weights, sizes
from lanes import every_case
from scipy.optimize import minimize

from defenses.by_sums.geometric_median import GeometricMedian
from defenses.geometry import Geometry
from defenses.on_rows.bulyan import Bulyan
from defenses.on_rows.dnc import DivideAndConquer
from defenses.on_rows.fltrust import FlTrust
from defenses.on_rows.foolsgold import FoolsGold
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.mda import MinimumDiameter, closest_together
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean


def scores(rows, f):
    """Krum's, by the letter."""
    sums = []
    for i in range(len(rows)):
        others = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(len(rows)) if j != i)
        sums.append(sum(others[: max(1, len(rows) - f - 2)]))
    return np.array(sums)


def mean_around_median(values, count):
    median = np.median(values)
    return np.mean(sorted(values, key=lambda v: (abs(v - median), v))[:count])


@sizes
def test_krum(n, f):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        check(Krum(), rows, f, rows[scores(rows, f).argmin()])
        best = np.argsort(scores(rows, f))[: n - f]
        check(MultiKrum(), rows, f, rows[best].mean(0))


@sizes
def test_coordinates_against_sorting(n, f):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        ordered = np.sort(rows, axis=0)
        check(TrimmedMean(), rows, f, ordered[f : n - f].mean(0))
        check(Median(), rows, f, np.median(rows, axis=0))
        around = [mean_around_median(column, n - f) for column in rows.T]
        check(MeanAroundMedian(), rows, f, around)


def test_a_column_longer_than_a_chunk_is_sorted_whole():
    rows = np.random.default_rng(0).normal(size=(9, 20_000))
    check(Median(), rows, 0, np.median(rows, axis=0))
    check(Krum(), rows, 1, rows[scores(rows, 1).argmin()])


@every_case("n, f", [(7, 1), (8, 1), (11, 2), (15, 3)])
def test_bulyan(n, f):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        left, picked = list(range(n)), []
        while len(picked) < n - 2 * f:
            picked.append(left.pop(int(scores(rows[left], f).argmin())))
        expected = [mean_around_median(column, n - 4 * f) for column in rows[picked].T]
        check(Bulyan(), rows, f, expected)


@every_case("n, f", [(5, 1), (6, 2), (9, 2), (9, 4), (10, 3)])
def test_minimum_diameter_is_the_least_of_all_subsets(n, f):
    for seed in range(8):
        rows = cloud(n, seed=seed)
        distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        closest = closest_together(distances, f)
        assert len(closest) == n - f

        def diameter(subset, distances=distances):
            return distances[np.ix_(subset, subset)].max()

        least = min(diameter(list(s)) for s in itertools.combinations(range(n), n - f))
        assert diameter(closest) == least
        aggregate = MinimumDiameter()(torch.from_numpy(rows), f).numpy()
        np.testing.assert_allclose(aggregate, rows[closest].mean(0), atol=1e-12)


def test_minimum_diameter_within_two_where_the_search_is_cut_short():
    for seed in range(20):
        rows = cloud(14, seed=seed)
        distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        exact, rough = closest_together(distances, 5), closest_together(distances, 5, search=0)
        bound = 4 * distances[np.ix_(exact, exact)].max()  # squared
        assert distances[np.ix_(rough, rough)].max() <= bound
        assert len(rough) == 9


@every_case("n", [3, 6, 11])
def test_the_geometric_median_against_a_convex_solver(n):
    for seed in range(3):
        rows = cloud(n, seed=seed)

        def total(v, rows=rows):
            return np.sqrt(((rows - v) ** 2).sum(1) + 1e-12).sum()

        solved = min(
            (
                minimize(total, start, method="Powell", options={"xtol": 1e-10, "ftol": 1e-14})
                for start in (rows.mean(0), np.median(rows, axis=0))
            ),
            key=lambda solution: solution.fun,
        )
        aggregate = GeometricMedian(smoothing=1e-3)(torch.from_numpy(rows), 0).numpy()
        assert total(aggregate) <= solved.fun + 2e-3 * n
        np.testing.assert_allclose(aggregate, solved.x, atol=0.02)


def test_fltrust_and_foolsgold_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, -7.0], [0.0, 0.0]])
    root = torch.tensor([0.0, 1.0])
    trust = torch.tensor([0.8, 1.0, 0.0, 0.0])
    scaled = torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
    torch.testing.assert_close(FlTrust()(rows, 0, root=root), trust @ scaled / 1.8)
    assert FlTrust()(-rows.abs(), 0, root=root).tolist() == [0.0, 0.0], "nobody agrees"
    assert FlTrust()(rows, 0, root=torch.zeros(2)).tolist() == [0.0, 0.0]

    alike = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    check(FoolsGold(), alike.double().numpy(), 0, foolsgold_weights(alike.numpy()) @ alike.numpy())


def test_foolsgold_keeps_who_differs_from_all():
    rows = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.02]])
    torch.testing.assert_close(FoolsGold()(rows, 0), rows[2])


@pytest.mark.parametrize("copies", [2, 3])
def test_foolsgold_counts_nobody_where_every_row_has_its_like(copies):
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(copies))
    assert not FoolsGold()(rows.repeat(copies, 1), 0).any()


def test_foolsgold_on_random_rows():
    for seed in range(10):
        rows = cloud(8, seed=seed)
        check(FoolsGold(), rows, 0, foolsgold_weights(rows) @ rows)


@sizes
def test_dnc_against_the_singular_vectors(n, f):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        centered = rows - rows.mean(0)
        direction = np.linalg.svd(centered)[2][0]
        inliers = np.argsort((centered @ direction) ** 2)[: n - f]
        check(DivideAndConquer(), rows, f, rows[inliers].mean(0))


def test_distances_stay_precise_whoever_hides_behind_whom():
    """Hostile rows first, each so far out that beside it all others look like one point."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(14, 30)).astype(np.float32)
        rows[:4] *= np.array([[9e14], [2e11], [4e7], [1e4]], dtype=np.float32)
        distances = Geometry.of(torch.from_numpy(rows)).distances().numpy()[4:, 4:]
        honest = rows[4:].astype(float)
        exact = ((honest[:, None] - honest[None]) ** 2).sum(-1)
        np.testing.assert_allclose(distances, exact, rtol=1e-4, atol=1e-4)


def test_rows_far_from_the_origin_lose_no_precision():
    """At a center of norm 1000 and a spread of 1, and whoever comes first."""
    rng = np.random.default_rng(0)
    far = 1000.0 * np.ones(500) / math.sqrt(500)
    rows = rng.normal(size=(20, 500)) / math.sqrt(500) + far
    for first in (rows[0], -far, 1e9 * rng.normal(size=500)):
        rows[0] = first
        exact = scores(rows.astype(np.float32).astype(float), 4).argmin()
        aggregate = Krum()(torch.from_numpy(rows).float(), 4).numpy()
        np.testing.assert_array_equal(aggregate, rows[exact].astype(np.float32))
