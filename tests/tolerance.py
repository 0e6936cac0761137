"""The distance between results of one computation that its arithmetic permits, on any processor.

Kernels add in different orders, fuse multiplications, or use different convolution algorithms. A
sum of n float32 numbers, added in any order, has an error of at most n u times the sum of their
absolute values, u = 2^-24 (Higham 2002, *Accuracy and stability of numerical algorithms*, section
4.2), and in practice of about the square root of n instead of n.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-24


def assert_same_sums(result: Tensor, expected: Tensor, terms: int, size: float) -> None:
    """Asserts that two float32 tensors are sums of `terms` numbers in different orders.

    Args:
      result: one tensor.
      expected: the other tensor, of the same shape.
      terms: number of products or sums in each entry.
      size: upper bound on the sum of the terms' absolute values.

    Raises:
      AssertionError: if an entry differs by more than `terms` u `size`.
    """
    torch.testing.assert_close(result, expected, rtol=0, atol=terms * UNIT_ROUNDOFF * size)
