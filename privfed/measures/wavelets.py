"""Haar wavelets of a histogram: sums of neighbouring cells from few noised numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfed.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


def haar(levels: int) -> Tensor:
    """The matrix `[n, n]`, n = 2^levels, float64: the sum of all cells, and differences of halves.

    Rows are orthogonal, and every column has levels + 1 numbers of size 1. Of n noised cells, a sum
    of the first ones has a noise variance of up to n; of the n numbers that this matrix makes, of
    about log n, times levels + 1 for the longer columns (Xiao, Wang and Gehrke 2011).
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    pair = torch.ones(1, 2, dtype=torch.float64)
    halves = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for level in range(levels):
        finest = torch.kron(torch.eye(2**level, dtype=torch.float64), halves)
        matrix = torch.cat([torch.kron(matrix, pair), finest])
    return matrix


def inverse_haar(levels: int) -> Tensor:
    """The inverse of `haar`, `[n, n]`."""
    matrix = haar(levels)
    return matrix.T / matrix.square().sum(1)
