"""Definitions of rules, written out in NumPy, with which the rules are compared."""

import itertools

import numpy as np
import pytest
import torch

sizes = pytest.mark.parametrize("n, f", [(5, 0), (7, 1), (8, 1), (11, 2), (12, 2), (13, 2)])


def cloud(n, d=4, seed=0):
    """Returns rows `[n, d]`, d up to 4, that vary most in the second number."""
    return np.random.default_rng((n, d, seed)).normal(size=(n, d)) * [1, 2, 0.5, 1][:d]


def check(rule, rows, f, expected):
    """Asserts that `rule` of `rows` `[n, d]`, f of them Byzantine, gives `expected` `[d]` in both
    dtypes.
    """
    aggregate = rule(torch.from_numpy(rows), f).numpy()
    np.testing.assert_allclose(aggregate, expected, atol=1e-9)
    single = rule(torch.from_numpy(rows).float(), f).numpy()
    np.testing.assert_allclose(single, expected, atol=1e-5)


def foolsgold_weights(rows):
    """Returns FoolsGold's weights `[n]` of `rows` `[n, d]`, which sum to one, by its definition."""
    n = len(rows)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    s = unit @ unit.T
    np.fill_diagonal(s, 0)
    most = s.max(1)
    for i, j in itertools.permutations(range(n), 2):
        if most[j] > most[i]:
            s[i, j] *= most[i] / most[j]
    a = np.clip(1 - s.max(1), 0, 1)
    a = a / a.max()
    with np.errstate(divide="ignore"):
        a = np.clip(np.log(a / (1 - a)) + 0.5, 0, 1)
    return a / a.sum()
