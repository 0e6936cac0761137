"""Interfaces of aggregation rules: rules that need every client's row, and rules that need only
sums.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from defenses.deferred import Tensor, torch

_BATCH_SIZE = 16
"""Number of rows whose terms are computed together, to bound memory."""


class Rule(BaseModel):
    """An aggregation rule: a frozen, strict configuration that also computes the aggregate."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    robust: ClassVar[bool] = True
    """Whether the rule is Byzantine-robust. Robust rules give all clients equal weight, since a
    client that misreports its update may also misreport its number of examples."""

    tolerance: ClassVar[str] = ""
    """The tolerated Byzantine rows in words, if the tolerance is not a number; else ""."""

    bounded: ClassVar[bool] = True
    """Whether up to `most` Byzantine rows, wherever they are, leave the aggregate near the honest
    rows: within a few times the largest distance of an honest row from their mean. A rule that
    declares a `tolerance` in words promises only what these words state."""

    follows_clip: ClassVar[Mapping[str, float | None]] = {}
    """Names of the rule's keys that follow from the clipping norm under privacy. Without privacy, a
    key whose value here is a number must be set (the number is an example); a key whose value here
    is None has a default."""

    extra: ClassVar[int] = 0
    """Number of extra values a client sends in addition to its update."""

    @property
    def uploads(self) -> int:
        """Number of messages that each client of a cohort uploads for one aggregate."""
        return 1

    @property
    def remembers(self) -> bool:
        """Whether a round's first center is the last round's aggregate; otherwise (default) zero.

        Rules by sums take the differences of rows from a center.
        """
        return False

    def center_after(self, center: Tensor, released: Tensor) -> Tensor:
        """Returns the next center `[d]`, from the released average of one upload; by default that
        average.

        The center after the last upload is the aggregate.
        """
        return released

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        """Returns the public state of the rule before round 1, tensors by name.

        By default a zero "center" if the rule `remembers`, else none. `model` `[d]` is the initial
        model.
        """
        return {"center": torch.zeros_like(model)} if self.remembers else {}

    def memory_after(
        self, memory: Mapping[str, Tensor], model: Tensor, aggregate: Tensor
    ) -> dict[str, Tensor]:
        """Returns the public state of the rule after a round; by default the aggregate as "center"
        if the rule `remembers`, else none.

        The state is a function of the arguments alone, so it can be recomputed from a run's
        releases.

        Args:
          memory: the state before the round.
          model: the model that the round started from, shape [d].
          aggregate: the aggregate of the round, shape [d].
        """
        return {"center": aggregate} if self.remembers else {}

    def most(self, n: int) -> int:
        """Returns the largest number of Byzantine rows among `n` that the rule tolerates; by
        default fewer than half.
        """
        return max(0, (n - 1) // 2)

    def robustness(self, n: int, byzantine: int) -> float:
        """Returns the robustness coefficient kappa for n rows; infinite unless `byzantine` is from
        0 to `most`.

        Whatever the `byzantine` rows are, and for every set S of the n - byzantine others with mean
        m, the aggregate F satisfies |F - m|^2 <= kappa / |S| sum over S of |x_k - m|^2 (Allouah et
        al. 2023, definition 2).
        """
        return self.kappa(n, byzantine) if 0 <= byzantine <= self.most(n) else math.inf

    def kappa(self, n: int, byzantine: int) -> float:
        """Returns the `robustness` for a tolerated number `byzantine`; infinite (the default) if
        none is known.
        """
        return math.inf


Rule.__class_vars__ |= {"remembers", "uploads"}  # properties that a subclass may set


class RowRule(Rule):
    """A rule that sees every client's row.

    Rows that are not finite, or so long that their squares overflow (`defenses.finite`), are left
    out. Such rows may belong to honest clients whose training diverged, so the assumed number of
    Byzantine rows is unchanged for the remaining rows, or reduced to the number that the rule
    tolerates among them. If no row remains, the aggregate is zero. Rows are never modified, and
    their dtype is kept.
    """

    def needs(self) -> frozenset[str]:
        """Returns the names of the additional keyword arguments of `__call__`.

        Returns:
          A subset of: "generator" (fresh, secret randomness), "root" (the server's own update
          `[d]`), "center" (the aggregate of the round before `[d]`), "layers" (the size of each of
          the model's parameters, in their order in a row: int64 `[l]`, which sum to d), "model"
          (the broadcast model `[d]`, relative to which rows are updates), "histories" (the rule's
          state: `defenses.history`).
        """
        return frozenset()

    def unfit_reason(self, layers: Sequence[int]) -> str:
        """Returns the reason why the rule cannot aggregate models with parameters of the sizes
        `layers`; "" (the default) if it can.
        """
        return ""

    def keeps(self, d: int) -> int:
        """Returns the number of values that are stored per client between rounds, for rows of
        length `d`; by default 0.
        """
        return 0

    @abstractmethod
    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        """Returns the aggregate `[d]` of the rows.

        Args:
          rows: client updates, float32 or float64, shape [n, d].
          byzantine: upper bound on the number of Byzantine rows.

        Returns:
          The aggregate, shape [d], in the dtype of `rows`.

        Raises:
          ValueError: if `byzantine` exceeds `most`.
          TypeError: if rows are neither float32 nor float64.
        """


class SumRule(Rule):
    """A rule that needs only averages of terms, each computed from one row and a public center.

    Each of `passes` passes has two steps: every client computes `terms`, which are summed and
    averaged (in the clear, under masks, or under noise), and `step` moves the center. The last
    center is the aggregate.

    All passes query the same row, which remains with its client. Rules that clip let a row whose
    norm is not finite contribute zero, and its client counts like any other. The tolerance of a
    rule refers to rows: a Byzantine client can send any terms whose norm the sum admits, whatever
    its row.
    """

    _declares: ClassVar[frozenset[str]] = frozenset({"passes"})
    """Names that this class declares for type checkers only."""

    if TYPE_CHECKING:  # a constant in some rules, a key in others

        @property
        def passes(self) -> int: ...

    @property
    def uploads(self) -> int:
        """Number of messages that each client uploads for one aggregate: its terms, once per
        pass.
        """
        return self.passes

    def center_after(self, center: Tensor, released: Tensor) -> Tensor:
        """Returns the next center `[d]`: that of `step`."""
        return self.step(center, released)

    def within(self, clip: float | None) -> Self:
        """Returns the rule with its values that depend on `clip` set (the keys in
        `follows_clip`, for example); by default, the rule itself. Under privacy, terms of finite
        `sensitivity` then have norm at most `clip`, to which noise is calibrated.

        Args:
          clip: clipping norm; None without privacy.

        Raises:
          ValueError: if a required key is missing without privacy, or if a key is set although it
            follows from `clip`.
        """
        return self

    @abstractmethod
    def sensitivity(self, change: int) -> float:
        """Returns the L2 sensitivity of the sum of clients' terms, or infinity.

        Args:
          change: L2 sensitivity of a sum of clipped rows, in clipping norms: 1 for add/remove and
            zero-out, 2 for replace-one.

        Returns:
          The largest L2 norm by which one client changes the sum of terms. Infinity means that the
          rule does not bound its terms, so a mechanism must clip them.
        """

    @abstractmethod
    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        """Returns the terms `[c, d + extra]` of c clients, from their rows `[c, d]` and the center
        `[d]`.
        """

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        """Returns `terms` without the rule's bound on them, for simulated attackers; by default
        `terms` themselves.
        """
        return self.terms(rows, center)

    @abstractmethod
    def step(self, center: Tensor, released: Tensor) -> Tensor:
        """Returns the next center `[d]` from the released average of terms `[d + extra]`."""

    def on_rows(self, rows: Tensor, center: Tensor | None = None) -> Tensor:
        """Returns the aggregate `[d]` of `rows` `[n, d]` after all passes, without secure sums.

        A `center` of None is zero. Without rows, the center is returned.
        """
        center = rows.new_zeros(rows.shape[1]) if center is None else center
        for _ in range(self.passes if len(rows) else 0):
            center = self.step(center, self.average(rows, center))
        return center

    def average(self, rows: Tensor, center: Tensor) -> Tensor:
        """Returns the mean `[d + extra]` of the `terms` of `rows` `[n, d]`, n > 0."""
        parts = (rows[start : start + _BATCH_SIZE] for start in range(0, len(rows), _BATCH_SIZE))
        sums = [self.terms(part, center).sum(0) for part in parts]
        return torch.stack(sums).sum(0) / len(rows)


def require_floats(rows: Tensor) -> None:
    """Raises `TypeError` unless `rows` is a 2-dimensional tensor of float32 or float64."""
    if rows.dtype not in (torch.float32, torch.float64) or rows.dim() != 2:
        raise TypeError(
            f"rows are {rows.dtype} in {rows.dim()} dimensions; expected [n, d] of float32 or "
            "float64"
        )
