"""Rules that are weights on rows, what may go before a rule, and how they are carried out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from defenses.columns import by_column, product
from defenses.deferred import torch
from defenses.finite import usable_places
from defenses.geometry import Geometry
from defenses.types import RowRule, Rule, SumRule, require_floats

if TYPE_CHECKING:
    from torch import Tensor

Needs = frozenset[str]


class PreAggregator(Rule):
    """A part that turns n rows into m mixtures of them, which a rule aggregates in their stead.

    Hostile mixtures are no more than hostile rows were.
    """

    def needs(self) -> Needs:
        """Which keyword arguments it needs, as of a `RowRule`: none, or "generator"."""
        return frozenset()

    @abstractmethod
    def most(self, n: int) -> int:
        """How many hostile rows among n it tolerates."""

    def left(self, n: int) -> int:
        """How many mixtures it makes of n rows."""
        return n

    @abstractmethod
    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        """Weights `[m, n]` float64 that make the mixtures of rows with this geometry."""


class WeightRule(RowRule):
    """A rule that weighs, or picks, rows by their geometry, or works on each coordinate alone.

    F(x) = columns(mix(geometry of x) @ x): `mix` makes m rows from n, and `columns` one number of
    every coordinate's m. Where `mix` gives one row of weights, that is the aggregate.
    """

    geometric: ClassVar[bool] = True
    """Whether `mix` is defined; else `columns` is given all rows, and no geometry is computed."""

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        """Weights `[m, n]` float64, or `[n]`, on rows with this geometry."""
        raise NotImplementedError

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        """The aggregate `[c]` of c coordinates, whose m values are each `ordered` `[c, m]`."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        return aggregate(rows, byzantine, (), self)


class DrawnWeights(RowRule):
    """A rule that weighs rows by their geometry and by randomness of its own."""

    @abstractmethod
    def weigh(
        self, geometry: Geometry, byzantine: int, generator: torch.Generator | None
    ) -> Tensor:
        """Weights `[n]` float64 on rows with this geometry."""

    def noised(
        self, aggregate: Tensor, geometry: Geometry, generator: torch.Generator | None
    ) -> Tensor:
        """The `aggregate` `[d]` of rows with this geometry, with what the rule adds to it."""
        return aggregate

    def __call__(
        self, rows: Tensor, byzantine: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        rows, keep = admitted(rows, byzantine, (), self)
        n = len(rows) if keep is None else len(keep)
        if n == 0:
            return rows.new_zeros(rows.shape[1])
        geometry = Geometry.of(rows, keep)
        weights = self.weigh(geometry, min(byzantine, tolerated(n, (), self)), generator)
        return self.noised(product(weights[None], rows, keep)[0], geometry, generator)


class Composed(RowRule):
    """`rule` over what the parts `before` make of the rows, one after the other.

    A `WeightRule` is composed with them in n x n, with one final product; for any other rule the
    mixtures are computed. A rule of sums is carried out over rows, all its passes.
    """

    before: tuple[PreAggregator, ...]
    rule: Rule

    def needs(self) -> Needs:
        needs: Needs = self.rule.needs() if isinstance(self.rule, RowRule) else frozenset()
        center: Needs = frozenset({"center"} if self.remembers else ())
        return needs.union(center, *(part.needs() for part in self.before))

    @property
    def remembers(self) -> bool:
        """Whether it is called with "center", the aggregate of the round before."""
        return isinstance(self.rule, SumRule) and self.rule.remembers

    def most(self, n: int) -> int:
        return tolerated(n, self.before, self.rule)

    def __call__(
        self,
        rows: Tensor,
        byzantine: int,
        *,
        generator: torch.Generator | None = None,
        **given: Tensor,
    ) -> Tensor:
        return aggregate(rows, byzantine, self.before, self.rule, generator, **given)


def aggregate(
    rows: Tensor,
    byzantine: int,
    before: Sequence[PreAggregator],
    rule: Rule,
    generator: torch.Generator | None = None,
    **given: Tensor,
) -> Tensor:
    """`rule` over what `before` makes of `rows` `[n, d]`: the aggregate `[d]`; see `RowRule`.

    *Rows left out*: of the n rows with at most f hostile ones, m are not usable. How many of these
    are hostile nobody knows; among the n - m others there are at most f, which is what the rule is
    told, or the most that it tolerates among n - m. That bounds the hostile ones where all m were
    honest and f is still tolerated, and where they all were hostile: the most that a rule tolerates
    falls by no more than one with each row.
    """
    rows, keep = admitted(rows, byzantine, before, rule)
    n = len(rows) if keep is None else len(keep)
    if n == 0:
        return rows.new_zeros(rows.shape[1])
    hostile = min(byzantine, tolerated(n, before, rule))
    if not isinstance(rule, WeightRule):
        mixed = _mixtures(rows, keep, hostile, before, generator)
        if isinstance(rule, SumRule):
            return rule.on_rows(mixed, **given)
        assert isinstance(rule, RowRule)
        drawn = {"generator": generator} if "generator" in rule.needs() else {}
        return rule(mixed, hostile, **given, **drawn)
    weights: Tensor | None = None
    if before or rule.geometric:
        geometry, weights = _mix(Geometry.of(rows, keep), hostile, before, generator)
    if rule.geometric:
        made = rule.mix(geometry, hostile)
        weights = made if weights is None else made @ weights
    if weights is not None and weights.dim() == 1:
        return product(weights[None], rows, keep)[0]
    return by_column(rows, keep, weights, lambda ordered: rule.columns(ordered, hostile))


def mixtures(
    rows: Tensor,
    byzantine: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None = None,
) -> Tensor:
    """What the parts `before` make of the usable ones of `rows` `[n, d]`: `[m, d]`."""
    keep = usable_places(rows)
    most, _ = _tolerated_before(len(rows) if keep is None else len(keep), before)
    return _mixtures(rows, keep, min(byzantine, most), before, generator)


def _mixtures(
    rows: Tensor,
    keep: Tensor | None,
    hostile: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None,
) -> Tensor:
    """What the parts `before` make of `rows[keep]`, up to `hostile` of them so: `[m, d]`."""
    if not before or (keep is not None and not len(keep)):
        return rows if keep is None else rows[keep]
    _, weights = _mix(Geometry.of(rows, keep), hostile, before, generator)
    assert weights is not None
    return product(weights, rows, keep)


def _mix(
    geometry: Geometry,
    byzantine: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None,
) -> tuple[Geometry, Tensor | None]:
    """The geometry of what `before` makes, and its weights `[m, n]`; None where it changes none."""
    weights: Tensor | None = None
    for part in before:
        made = part.mix(geometry, byzantine, generator)
        geometry, weights = geometry.mixed(made), made if weights is None else made @ weights
    return geometry, weights


def admitted(
    rows: Tensor, byzantine: int, before: Sequence[PreAggregator], rule: Rule
) -> tuple[Tensor, Tensor | None]:
    """The `rows` `[n, d]`, of no graph, and the places `[m]` of usable ones; None where all are.

    Raises `ValueError` for more hostile rows than these tolerate, `TypeError` as `require_floats`.
    """
    refuse_too_many(len(rows), byzantine, before, rule)
    require_floats(rows)
    rows = rows.detach()
    return rows, usable_places(rows)


def refuse_too_many(n: int, byzantine: int, before: Sequence[PreAggregator], rule: Rule) -> None:
    """Raises `ValueError` for more hostile rows than these tolerate among n."""
    most = tolerated(n, before, rule)
    if not 0 <= byzantine <= most:
        names = " and ".join(type(part).__name__ for part in (*before, rule))
        raise ValueError(
            f"byzantine is {byzantine}, but {names} tolerates at most {most} hostile rows among {n}"
        )


def tolerated(n: int, before: Sequence[PreAggregator], rule: Rule) -> int:
    """How many hostile rows among n all of these tolerate."""
    most, left = _tolerated_before(n, before)
    return max(0, min(most, rule.most(left)))


def _tolerated_before(n: int, before: Sequence[PreAggregator]) -> tuple[int, int]:
    """How many hostile rows among n the parts `before` tolerate, and how many rows they make."""
    most = n
    for part in before:
        most, n = min(most, part.most(n)), part.left(n)
    return most, n
