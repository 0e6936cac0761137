"""Majority vote of signs."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.types import SumRule


class SignMajority(SumRule):
    """Moves each coordinate by a constant in the direction that the majority of updates has.

    F(x)_j = move * sign(sum over k of sign(x_kj)); a tie leaves the coordinate unchanged. Needs
    only one sum; O(nd). f Byzantine clients change a coordinate only where the honest votes differ
    by at most f. No robustness kappa, as magnitudes of honest updates are ignored.

    *Sensitivity of the terms*: the terms are sign(x_k), and under privacy clip sign(x_k) / sqrt(d)
    with the mechanism's clip. A NaN counts as no vote. The sensitivity is then clip under
    add/remove and twice that under replace-one. Taking the sign of the noised sum is
    post-processing.

    Source: Bernstein, Zhao, Azizzadenesheli & Anandkumar 2019, "signSGD with majority vote is
    communication efficient and fault tolerant", algorithm 1 (applied to updates instead of
    gradients).

    >>> import torch
    >>> rows = torch.tensor([[3.0, -1.0], [0.1, -2.0], [-1e9, float("nan")]])
    >>> SignMajority(move=0.5).on_rows(rows)
    tensor([ 0.5000, -0.5000])
    """

    move: float = Field(0.01, gt=0, le=1e6)
    """Distance by which each coordinate moves."""
    votes: float | None = Field(None, gt=0, le=1e15)
    """L2 norm to which a client's vector of signs is scaled; under privacy it is privacy.clip.
    None: signs are not scaled."""
    passes: ClassVar[int] = 1

    tolerance: ClassVar[str] = "any number, each by one vote"

    def most(self, n: int) -> int:
        return n

    def within(self, clip: float | None) -> SignMajority:
        return self.model_copy(update={"votes": clip})

    def sensitivity(self, change: int) -> float:
        return change * (math.inf if self.votes is None else self.votes)

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        votes = rows.nan_to_num(nan=0.0).sign()
        return votes if self.votes is None else votes * (self.votes / math.sqrt(rows.shape[1]))

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        return 100.0 * self.terms(rows, center)  # each client's vote counts a hundred times

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return self.move * torch.sign(released)
