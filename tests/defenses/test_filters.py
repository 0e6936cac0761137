"""Rules that filter rows, and cuts before a rule, against their definitions by the letter."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from by_definition import check, cloud, sizes
from lanes import every_case

from defenses.before.arc import AdaptiveClipping
from defenses.before.clipping import Clipping
from defenses.on_rows.caf import CovarianceFilter
from defenses.on_rows.lasa import LayerAdaptive
from defenses.on_rows.monna import TrustedNeighbours
from defenses.on_rows.smea import SmallestEigenvalue
from defenses.weighing import mixtures


def cut(rows, radius):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, radius / norms)


@sizes
def test_clipping_cuts_to_its_radius_and_arc_to_the_longest_of_those_left(n, f):
    for seed in range(5):
        rows = 5 * cloud(n, seed=seed)
        clipped = mixtures(torch.from_numpy(rows), f, (Clipping(clipping_radius=4.0),))
        np.testing.assert_allclose(clipped.numpy(), cut(rows, 4.0), atol=1e-9)
        k = math.floor(Fraction(2 * f, n) * (n - f))
        radius = sorted(np.linalg.norm(rows, axis=1), reverse=True)[k]
        adapted = mixtures(torch.from_numpy(rows), f, (AdaptiveClipping(),))
        np.testing.assert_allclose(adapted.numpy(), cut(rows, radius), atol=1e-9)


def test_arc_by_hand():
    """Of norms 1 to 6 and f = 2, floor(2 (2 / 6) 4) = 2 rows are cut, to the third: 4."""
    norms = torch.arange(1.0, 7.0)
    adapted = mixtures(norms[:, None], 2, (AdaptiveClipping(),))
    assert adapted[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]
    assert mixtures(norms[:, None], 0, (AdaptiveClipping(),))[:, 0].tolist() == norms.tolist()
    zeros = torch.zeros(3, 2)
    assert torch.equal(mixtures(zeros, 1, (AdaptiveClipping(),)), zeros)


def covariance(rows, weights):
    mean = weights @ rows / weights.sum()
    return mean, (rows - mean).T @ ((rows - mean) * weights[:, None]) / weights.sum()


def caf(rows, f):
    """By the letter, in d x d."""
    weights, least = np.ones(len(rows)), math.inf
    while least == math.inf or weights.sum() > len(rows) - 2 * f:
        mean, spread = covariance(rows, weights)
        values, vectors = np.linalg.eigh(spread)
        if values[-1] < least:
            best, least = mean, values[-1]
        scores = ((rows - mean) @ vectors[:, -1]) ** 2
        weights = weights * np.clip(1 - scores / scores[weights > 0].max(), 0, 1)
    return best


@every_case("n, f", [(5, 0), (5, 2), (9, 1), (12, 5), (20, 6)])
@every_case("copies", [False, True])
def test_caf(n, f, copies):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        rows[:f] = rows[0] + 2.0 if copies else rows[:f] + 2.0
        check(CovarianceFilter(), rows, f, caf(rows, f))


def test_caf_by_hand():
    """t = (49, 4, 1, 64) about 7 of 0, 5, 8, 15: the last one loses all, others up to 49/64."""
    rows = torch.tensor([[0.0], [5.0], [8.0], [15.0]], dtype=torch.float64)
    weights = np.array([1 - 49 / 64, 1 - 4 / 64, 1 - 1 / 64, 0.0])
    assert weights.sum() > 4 - 2, "a second mean"
    mean, spread = covariance(rows.numpy(), weights)
    scores = (rows.numpy()[:, 0] - mean) ** 2
    assert (weights * (1 - scores / scores[:3].max())).sum() < 4 - 2, "and no third"
    assert spread < covariance(rows.numpy(), np.ones(4))[1]
    check(CovarianceFilter(), rows.numpy(), 1, mean)


def test_a_row_that_is_removed_is_in_no_bound_of_caf():
    """Far out, it would slow the filter down by so many passes as its square is larger."""
    rows = cloud(20, seed=3)
    rows[0] = 1e7
    with_it = CovarianceFilter()(torch.from_numpy(rows), 4).numpy()
    np.testing.assert_allclose(with_it, caf(rows, 4), atol=1e-6)
    assert np.linalg.norm(with_it) < 3


@every_case("n, f", [(4, 0), (5, 1), (6, 2), (9, 4), (10, 3), (40, 1)])
def test_smea_has_the_least_leading_eigenvalue_of_all_subsets(n, f):
    for seed in range(5):
        rows = cloud(n, seed=seed)
        subsets = [list(s) for s in itertools.combinations(range(n), n - f)]
        leading = [np.linalg.eigvalsh(covariance(rows[s], np.ones(n - f))[1])[-1] for s in subsets]
        check(SmallestEigenvalue(), rows, f, rows[subsets[np.argmin(leading)]].mean(0))


@every_case(("n", "most"), [(7, 3), (18, 8), (20, 6), (40, 3), (100, 2)])
def test_smea_tolerates_as_many_as_it_can_search(n, most):
    rule = SmallestEigenvalue()
    assert rule.most(n) == most
    assert math.comb(n, most) <= rule.subsets
    assert 2 * most + 2 >= n or math.comb(n, most + 1) > rule.subsets
    assert rule.robustness(n, most + 1) == math.inf
    with pytest.raises(ValueError, match=f"at most {most} Byzantine"):
        rule(torch.from_numpy(cloud(n)), most + 1)


def test_monna_averages_who_is_nearest_to_the_root():
    for seed in range(5):
        rows, root = cloud(9, d=4, seed=seed), cloud(1, d=4, seed=99)[0]
        nearest = np.argsort(((rows - root) ** 2).sum(1))[:6]
        trusted = torch.from_numpy(root)
        aggregate = TrustedNeighbours()(torch.from_numpy(rows), 3, root=trusted).numpy()
        np.testing.assert_allclose(aggregate, rows[nearest].mean(0), atol=1e-12)
    rows = torch.zeros(3, 2)
    rows[0] = torch.inf
    rule, root = TrustedNeighbours(), torch.ones(2)
    assert rule(rows, 1, root=root).tolist() == [0.0, 0.0], "of the two that are left, one is taken"
    assert rule(rows[1:] + 1, 0, root=torch.nan * root).tolist() == [0.0, 0.0], "nobody is trusted"


def lasa(rows, layers, sparsity, magnitude, direction):
    """By the letter."""
    norms = np.linalg.norm(rows, axis=1)
    rows = rows * np.minimum(1, np.median(norms) / norms)[:, None]
    dropped = int(sparsity * rows.shape[1])
    for row in rows:
        row[np.argsort(np.abs(row))[:dropped]] = 0
    out, start = [], 0
    for size in layers:
        part = rows[:, start : start + size]
        start += size
        norms = np.linalg.norm(part, axis=1)
        signs = [0.5 * (1 + np.sign(row).sum() / max(1, (row != 0).sum())) for row in part]
        good = np.abs(norms - np.median(norms)) < magnitude * np.std(norms)
        good &= np.abs(signs - np.median(signs)) < direction * np.std(signs)
        out.append(part[good].mean(0) if good.any() else part.mean(0))
    return np.concatenate(out)


@every_case("sparsity", [0.0, 0.3, 0.6])
@every_case("radii", [(1.0, 1.0), (2.0, 1.0), (0.05, 0.05)])
def test_lasa(sparsity, radii):
    layers, rng = [12, 3, 25], np.random.default_rng(0)
    rule = LayerAdaptive(sparsity=sparsity, magnitude_radius=radii[0], direction_radius=radii[1])
    for n in (5, 12):
        rows = rng.normal(size=(n, 40)) + 0.3
        rows[0], rows[1, 12:15] = 50 * rows[0] ** 2, -4.0
        aggregate = rule(torch.from_numpy(rows), 1, layers=torch.tensor(layers)).numpy()
        np.testing.assert_allclose(aggregate, lasa(rows, layers, sparsity, *radii), atol=1e-12)


def test_lasa_leaves_out_of_each_layer_who_stands_out_there():
    """Six of length one; hostile rows differ in the sign of a layer, or in its magnitude."""
    rows = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [-0.6, 0.8], [0.28, 0.96]])
    aggregate = LayerAdaptive(sparsity=0.0)(rows, 2, layers=torch.tensor([1, 1]))
    torch.testing.assert_close(aggregate, torch.tensor([0.6, 0.8]))
    angles = torch.linspace(0.1, 1.4, 7)[:, None]
    long = 3 * torch.cat([angles.cos(), angles.sin()], dim=1)
    alike = LayerAdaptive(sparsity=0.0)(long, 1, layers=torch.tensor([2]))
    torch.testing.assert_close(alike, long.mean(0), msg="norms that differ by rounding are equal")
    with pytest.raises(ValueError, match=r"layers have 3 numbers.* rows"):
        LayerAdaptive()(rows, 2, layers=torch.tensor([3]))
