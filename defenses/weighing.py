"""Rules that are weights on rows, what may go before a rule, and how they are carried out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from defenses.columns import by_column, product
from defenses.deferred import Tensor, torch
from defenses.finite import usable_places
from defenses.geometry import Geometry
from defenses.types import RowRule, Rule, SumRule, require_floats

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
        among = admitted(rows, byzantine, (), self)
        if not among.count:
            return among.nothing()
        geometry = Geometry.of(among.rows, among.keep)
        weights = self.weigh(geometry, among.hostile, generator)
        return self.noised(among.weighed(weights), geometry, generator)


class Composed(RowRule):
    """`rule` over what the parts `before` make of the rows, one after the other.

    A `WeightRule` is composed with them in n x n, with one final product; for any other rule the
    mixtures are computed. A rule of sums is carried out over rows, all its passes. A mixture is
    nobody's: a rule that remembers clients takes each for that of a client it meets for the first
    time.
    """

    before: tuple[PreAggregator, ...]
    rule: Rule

    def needs(self) -> Needs:
        needs: Needs = self.rule.needs() if isinstance(self.rule, RowRule) else frozenset()
        center: Needs = frozenset({"center"} if self.remembers else ())
        return needs.union(center, *(part.needs() for part in self.before)) - {"histories"}

    def unfit(self, layers: Sequence[int]) -> str:
        return self.rule.unfit(layers) if isinstance(self.rule, RowRule) else ""

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
    """`rule` over what `before` makes of `rows` `[n, d]`: the aggregate `[d]`.

    Raises as `RowRule` does.
    """
    among = admitted(rows, byzantine, before, rule)
    if not among.count:
        return among.nothing()
    if isinstance(rule, WeightRule):
        return _composed(among, before, rule, generator)
    mixed = _mixtures(among.rows, among.keep, among.hostile, before, generator)
    if isinstance(rule, SumRule):
        return rule.on_rows(mixed, **given)
    assert isinstance(rule, RowRule)
    drawn = {"generator": generator} if "generator" in rule.needs() else {}
    return rule(mixed, among.hostile, **given, **drawn)


def _composed(
    among: Admitted,
    before: Sequence[PreAggregator],
    rule: WeightRule,
    generator: torch.Generator | None,
) -> Tensor:
    """`rule` over what `before` makes of rows, of which there are some: the aggregate `[d]`.

    The mixtures are not computed: their weights are, on the rows.
    """
    weights: Tensor | None = None
    if before or rule.geometric:
        geometry = Geometry.of(among.rows, among.keep)
        geometry, weights = _mix(geometry, among.hostile, before, generator)
    if rule.geometric:
        made = rule.mix(geometry, among.hostile)
        weights = made if weights is None else made @ weights
    if weights is not None and weights.dim() == 1:
        return among.weighed(weights)
    return by_column(
        among.rows, among.keep, weights, lambda ordered: rule.columns(ordered, among.hostile)
    )


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


@dataclass(frozen=True)
class Admitted:
    """Which of the rows that a rule is given it aggregates, and how many may be hostile.

    *Rows left out*: of the n rows with at most f hostile ones, m are not usable. How many of these
    are hostile nobody knows; among the n - m others there are at most f, which is what the rule is
    told, or the most that it tolerates among n - m. That bounds the hostile ones where all m were
    honest and f is still tolerated, and where they all were hostile: the most that a rule tolerates
    falls by no more than one with each row.
    """

    rows: Tensor
    """All of them `[n, d]`, of no graph."""
    keep: Tensor | None
    """The places `[n - m]` of the usable ones; None where all are."""
    count: int
    """How many are usable: n - m."""
    hostile: int
    """How many of these may be hostile."""

    def weighed(self, weights: Tensor) -> Tensor:
        """The sum `[d]` of the usable rows, each times its one of `weights` `[n - m]`."""
        return product(weights[None], self.rows, self.keep)[0]

    def nothing(self) -> Tensor:
        """The aggregate of no rows: zeros `[d]`."""
        return self.rows.new_zeros(self.rows.shape[1])


def admitted(rows: Tensor, byzantine: int, before: Sequence[PreAggregator], rule: Rule) -> Admitted:
    """The usable ones of `rows` `[n, d]`, up to `byzantine` of which are hostile.

    Raises `ValueError` for more hostile rows than these tolerate, `TypeError` as `require_floats`.
    """
    refuse_too_many(len(rows), byzantine, before, rule)
    require_floats(rows)
    rows = rows.detach()
    keep = usable_places(rows)
    count = len(rows) if keep is None else len(keep)
    return Admitted(rows, keep, count, min(byzantine, tolerated(count, before, rule)))


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
