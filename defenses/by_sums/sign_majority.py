"""Majority vote of signs."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.types import SumRule


class SignMajority(SumRule):
    """Each coordinate moves by a constant, where most updates want it to.

    F(x)_j = move * sign(sum over k of sign(x_kj)); a tie moves nothing. Sums suffice, one; O(nd).
    f hostile clients turn a coordinate only where honest ones differ by f votes or fewer; no
    robustness kappa, as how far honest updates go is not looked at.

    *Sensitivity of the terms*: they are sign(x_k), and under privacy clip sign(x_k) / sqrt(d) with
    the mechanism's clip: so much, and twice that for replacing a client. Taking the sign of the
    noised sum is post-processing.

    Source: Bernstein, Zhao, Azizzadenesheli & Anandkumar 2019, "signSGD with majority vote is
    communication efficient and fault tolerant", algorithm 1 (of updates, where they take
    gradients).

    >>> import torch
    >>> rows = torch.tensor([[3.0, -1.0], [0.1, -2.0], [-1e9, float("nan")]])
    >>> SignMajority(move=0.5).on_rows(rows)
    tensor([ 0.5000, -0.5000])
    """

    move: float = Field(0.01, gt=0, le=1e6)
    """How far a coordinate moves."""
    votes: float | None = Field(None, gt=0, le=1e15)
    """The norm of a client's votes; under privacy it is privacy.clip."""
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
        return 100.0 * self.terms(rows, center)  # each votes a hundred times

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return self.move * torch.sign(released)
