"""What an aggregation rule is, by what it needs to see."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from defenses.deferred import Tensor, torch

_AT_ONCE = 16
"""Rows whose terms are computed together, so that these need little memory."""


class Rule(BaseModel):
    """How updates become one: a frozen, strict configuration that is also the rule."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    robust: ClassVar[bool] = True
    """Whether hostile clients are expected. Then all clients weigh alike, since a client that may
    lie about its update may lie about its number of examples."""

    tolerance: ClassVar[str] = ""
    """What it withstands, in words, where that is no number of hostile rows."""

    bounded: ClassVar[bool] = True
    """Whether up to `most` hostile rows, wherever they are, leave the aggregate near the others:
    within a few times the largest distance of an honest row from their mean. Rules that declare a
    `tolerance` in words promise that instead."""

    follows_clip: ClassVar[Mapping[str, float | None]] = {}
    """Keys that follow from the clip under privacy. Else they have to be set, as to the value that
    stands here, or (None) have a default of their own."""

    extra: ClassVar[int] = 0
    """How much longer what a client sends is than its row."""

    @property
    def uploads(self) -> int:
        """How often the cohort sends something for one aggregate."""
        return 1

    @property
    def remembers(self) -> bool:
        """Whether a round starts from the aggregate of the round before; else from zero."""
        return False

    def center_after(self, center: Tensor, released: Tensor) -> Tensor:
        """The next center `[d]`, at last the aggregate, from what was released for an upload."""
        return released

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        """What it keeps of the run before round 1, which starts from `model` `[d]`: public."""
        return {"center": torch.zeros_like(model)} if self.remembers else {}

    def memory_after(
        self, memory: Mapping[str, Tensor], model: Tensor, aggregate: Tensor
    ) -> dict[str, Tensor]:
        """What it keeps after a round from `model` `[d]` that made `aggregate` `[d]`.

        A function of these alone: whoever has the releases of a run works it out again.
        """
        return {"center": aggregate} if self.remembers else {}

    def most(self, n: int) -> int:
        """How many hostile rows among n it is defined for."""
        return max(0, (n - 1) // 2)

    def robustness(self, n: int, byzantine: int) -> float:
        """The robustness coefficient kappa for n rows; infinite for more than `most` hostile ones.

        Whatever `byzantine` rows are, and for every set S of the n - byzantine others with mean m:
        |F - m|^2 <= kappa / |S| sum over S of |x_k - m|^2 (Allouah et al. 2023, definition 2).
        """
        return self.kappa(n, byzantine) if 0 <= byzantine <= self.most(n) else math.inf

    def kappa(self, n: int, byzantine: int) -> float:
        """The `robustness` where that many are tolerated; infinite where none is published."""
        return math.inf


Rule.__class_vars__ |= {"remembers", "uploads"}  # properties, which a subclass may set


class RowRule(Rule):
    """A rule that sees every client's row.

    Rows that are not finite, or so long that their squares are not (`defenses.finite`), are left
    out. They may be honest clients' whose training diverged, so that as many hostile ones as before
    are looked for in the rest; fewer only where the rule tolerates fewer among so many rows. With
    no row left the aggregate is zero. Rows are never modified, and their dtype is kept.
    """

    def needs(self) -> frozenset[str]:
        """Which keyword arguments it is called with besides.

        "generator" (fresh, secret randomness), "root" (the server's own update `[d]`), "center"
        (the aggregate of the round before `[d]`), "layers" (how many numbers each of a model's
        parameters has, in their order in a row: int64 `[l]`, which sum to d), "model" (the one that
        was broadcast `[d]`, to which rows are updates), "histories" (what it remembers:
        `defenses.history`).
        """
        return frozenset()

    def unfit(self, layers: Sequence[int]) -> str:
        """Why it does not suit a model whose parameters have so many numbers; empty: it does."""
        return ""

    def keeps(self, d: int) -> int:
        """How many numbers it keeps of each client between rounds, whose rows have d numbers."""
        return 0

    @abstractmethod
    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        """Rows `[n, d]`, up to `byzantine` of them hostile; the aggregate `[d]`.

        Raises `ValueError` for more than `most` of them, `TypeError` for rows that are neither
        float32 nor float64.
        """


class SumRule(Rule):
    """A rule that sees averages of what clients compute from their rows and a released center.

    `passes` times: every client computes `terms`, the terms are summed and averaged (plainly, under
    masks, or under noise), and `step` moves the center. The last center is the aggregate.

    All passes ask about the same row, which stays with its client. A row whose norm is not finite
    adds nothing, and its client counts like any other. Whoever cannot be trusted to
    compute its terms (rather than to send an honest row from bad data) can send any terms of the
    norm that the sum admits: what a rule tolerates is said of rows.
    """

    _declares: ClassVar[frozenset[str]] = frozenset({"passes"})
    """What a rule has to declare, though nothing here says so when it runs."""

    if TYPE_CHECKING:  # of some rules a constant, of others a key

        @property
        def passes(self) -> int: ...

    @property
    def uploads(self) -> int:
        """Its terms are sent in each pass."""
        return self.passes

    def center_after(self, center: Tensor, released: Tensor) -> Tensor:
        """The center makes its `step`."""
        return self.step(center, released)

    def within(self, clip: float | None) -> Self:
        """The rule with terms of norm at most `clip`, which noise is calibrated to under privacy.

        None: without privacy. Raises `ValueError` where a key is missing, or set twice over.
        """
        return self

    @abstractmethod
    def sensitivity(self, change: int) -> float:
        """L2 norm by which one client can change the sum of terms, or infinity.

        `change` is by how many clips a client changes a sum of clipped rows: 1 where it is added or
        removed, or its terms are zeroed, 2 where it is replaced by another.

        Infinite means that the rule bounds nothing: a mechanism's clip has to.
        """

    @abstractmethod
    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        """On the client: rows `[c, d]` and center `[d]` to terms `[c, d + extra]`."""

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        """The `terms` of clients that do not apply the rule's bound: for simulated attackers."""
        return self.terms(rows, center)

    @abstractmethod
    def step(self, center: Tensor, released: Tensor) -> Tensor:
        """The next center `[d]` from the released average of terms `[d + extra]`."""

    def on_rows(self, rows: Tensor, center: Tensor | None = None) -> Tensor:
        """The aggregate `[d]` of `rows` `[n, d]`, all in one place: every pass, averaged over n."""
        center = rows.new_zeros(rows.shape[1]) if center is None else center
        for _ in range(self.passes if len(rows) else 0):
            center = self.step(center, self.average(rows, center))
        return center

    def average(self, rows: Tensor, center: Tensor) -> Tensor:
        """The average `[d + extra]` of the `terms` of `rows` `[n, d]`, n > 0, about `center`."""
        parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
        sums = [self.terms(part, center).sum(0) for part in parts]
        return torch.stack(sums).sum(0) / len(rows)


def require_floats(rows: Tensor) -> None:
    """Raises `TypeError` for rows that no rule is written for."""
    if rows.dtype not in (torch.float32, torch.float64) or rows.dim() != 2:
        raise TypeError(
            f"found rows of {rows.dtype} in {rows.dim()} dimensions; expected [n, d] of float32 "
            "or float64"
        )
