"""How far results of one computation may lie apart: by its arithmetic, on any processor.

Kernels add in another order, fuse multiplications, or use other algorithms of convolution. A sum of
n float32 numbers, added in any order, is off by at most n u times the sum of their sizes, u = 2^-24
(Higham 2002, *Accuracy and stability of numerical algorithms*, section 4.2), and by about the root
of that in fact.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-24


def assert_same_sums(result: Tensor, expected: Tensor, terms: int, size: float) -> None:
    """Asserts that two float32 tensors are sums of `terms` numbers in different orders.

    Args:
      result, expected: the tensors, of one shape.
      terms: how many products or sums each number goes through.
      size: the sum of the sizes of what is added up, at most.

    Raises:
      AssertionError: where a number differs by more than `terms` u `size`.
    """
    torch.testing.assert_close(result, expected, rtol=0, atol=terms * UNIT_ROUNDOFF * size)
