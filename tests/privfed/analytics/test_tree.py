"""Estimates on a tree agree, are unbiased, and their variance is the one that is stated."""

import numpy as np
import pytest

from privfed.analytics.tree import Tree, agreeing, measured_total, nonnegative

REPEATS = 4000


@pytest.fixture
def tree():
    """Four nodes at the top, of which two have children, and one of these has some."""
    return Tree(np.array([-1, -1, -1, -1, 1, 1, 1, 2, 2, 7, 7, 7, 7]))


@pytest.fixture
def counts(tree):
    leaves = np.where(tree.is_leaf, np.arange(len(tree)) * 10.0, 0.0)
    for node in reversed(range(len(tree))):
        if tree.parents[node] >= 0:
            leaves[tree.parents[node]] += leaves[node]
    return leaves


def noised(tree, counts, variances, seed=0):
    rng = np.random.default_rng(seed)
    return counts + rng.normal(0, np.sqrt(variances), (REPEATS, len(tree)))


def test_paths_lead_to_the_top(tree):
    assert tree.paths(np.array([10, 0, 5]), 3).tolist() == [[10, 7, 2], [0, -1, -1], [5, 1, -1]]
    assert tree.path_lengths.tolist() == [1, 2, 3, 1, 2, 2, 2, 3, 2, 3, 3, 3, 3]


def test_without_noise_nothing_changes(tree, counts):
    variances = np.zeros(len(tree))
    total, variance = measured_total(tree, counts, variances)
    agreed = agreeing(tree, counts, variances, total, variance)
    assert np.allclose(agreed.counts, counts)
    assert np.allclose(nonnegative(tree, agreed.counts), counts)


def test_children_add_up_and_variances_are_those_stated(tree, counts):
    variances = np.linspace(1, 30, len(tree))
    measured = noised(tree, counts, variances)
    total, variance = measured_total(tree, measured, variances)
    agreed = agreeing(tree, measured, variances, total, variance)
    for parent in (1, 2, 7):
        assert np.allclose(
            agreed.counts[:, parent], agreed.counts[:, tree.parents == parent].sum(1)
        )
    weights = np.random.default_rng(1).normal(size=(20, len(tree))) * tree.is_leaf
    values, stds = agreed.linear(weights)
    truth = counts @ weights.T
    assert (np.abs(values.mean(0) - truth) < 5 * stds / np.sqrt(REPEATS)).all()
    assert np.allclose(values.std(0), stds, rtol=0.06)
    naive = np.sqrt(weights**2 @ variances)
    assert (stds <= naive + 1e-9).all()
    assert stds.sum() < 0.95 * naive.sum()


def test_a_total_known_from_elsewhere_counts(tree, counts):
    variances = np.full(len(tree), 9.0)
    measured = noised(tree, counts, variances)
    own, own_variance = measured_total(tree, measured, variances)
    other = counts[tree.depths == 0].sum() + np.random.default_rng(5).normal(0, 1, REPEATS)
    variance = 1 / (1 / own_variance + 1)
    total = variance * (own / own_variance + other)
    agreed = agreeing(tree, measured, variances, total, variance)
    values, stds = agreed.linear(tree.is_leaf[None].astype(float))
    assert values.std() == pytest.approx(stds[0], rel=0.06)
    assert stds[0] == pytest.approx(np.sqrt(variance))


def test_nowhere_negative_and_adding_up(tree, counts):
    variances = np.full(len(tree), 1e4)
    measured = noised(tree, counts, variances)[0]
    total, variance = measured_total(tree, measured, variances)
    agreed = agreeing(tree, measured, variances, total, variance)
    shown = nonnegative(tree, agreed.counts)
    assert (shown >= 0).all()
    assert (agreed.counts < 0).any()
    for parent in (1, 2, 7):
        assert shown[parent] == pytest.approx(shown[tree.parents == parent].sum())
    assert shown[tree.depths == 0].sum() == pytest.approx(max(float(total), 0))
