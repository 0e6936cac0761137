"""Rules that compute weights on rows, pre-aggregation steps, and the composition of both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from defenses.columns import by_column, product
from defenses.deferred import Tensor, torch
from defenses.finite import usable_places
from defenses.geometry import Geometry
from defenses.types import RowRule, Rule, SumRule, require_floats

Needs = frozenset[str]


class PreAggregator(Rule):
    """A pre-aggregation step: turns n rows into m weighted sums of them, their mixtures.

    A rule aggregates the mixtures. If at most f rows are Byzantine, the rule has to tolerate at
    most f mixtures as Byzantine.
    """

    def needs(self) -> Needs:
        """Returns the names of the additional arguments needed, as `RowRule.needs`: none, or
        "generator".
        """
        return frozenset()

    @abstractmethod
    def most(self, n: int) -> int:
        """Returns the largest number of Byzantine rows among `n` that the step tolerates."""

    def left(self, n: int) -> int:
        """Returns the number m of mixtures of `n` rows."""
        return n

    @abstractmethod
    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        """Returns the weight of each row in each mixture.

        Args:
          geometry: geometry of the n rows.
          byzantine: upper bound on the number of Byzantine rows.
          generator: source of randomness, for steps that need one.

        Returns:
          Weights, float64, shape [m, n].
        """


class WeightRule(RowRule):
    """A rule that weights or selects rows by their geometry, or works on each coordinate alone.

    F(x) = columns(mix(geometry of x) @ x): the weights of `mix` make m rows from n, and `columns`
    reduces the m values of every coordinate to one. If `mix` returns a vector `[n]`, the weighted
    sum of rows is the aggregate.
    """

    geometric: ClassVar[bool] = True
    """Whether `mix` is defined; else `columns` receives all rows, and no geometry is computed."""
    _called_if: ClassVar[Mapping[str, str]] = {"mix": "geometric"}

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        """Returns weights `[m, n]` float64, or `[n]`, on n rows with this geometry."""
        raise NotImplementedError(
            f"{type(self).__name__} is geometric and has no mix; define it, or declare "
            "geometric = False if columns needs no weights"
        )

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        """Returns the aggregate of c coordinates, `[c]`; `ordered` `[c, m]` are the m values of
        each.

        The values are ascending.
        """
        raise NotImplementedError(f"{type(self).__name__} has no columns; define it")

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        return aggregate(rows, byzantine, (), self)


class DrawnWeights(RowRule):
    """A rule that weights rows by their geometry and by random numbers."""

    @abstractmethod
    def weigh(
        self, geometry: Geometry, byzantine: int, generator: torch.Generator | None
    ) -> Tensor:
        """Returns weights `[n]` float64 on n rows with this geometry."""

    def noised(
        self, aggregate: Tensor, geometry: Geometry, generator: torch.Generator | None
    ) -> Tensor:
        """Returns `aggregate` `[d]`, that of rows with this geometry, plus the rule's own noise; by
        default there is none.
        """
        return aggregate

    def __call__(
        self, rows: Tensor, byzantine: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        among = admitted(rows, byzantine, (), self)
        if not among.count:
            return among.nothing()
        geometry = Geometry.of(among.rows, among.keep)
        weights = self.weigh(geometry, among.byzantine, generator)
        return self.noised(among.weighed(weights), geometry, generator)


class Composed(RowRule):
    """`rule` applied to the rows transformed by the pre-aggregation steps `before`, in order.

    The weights of a `WeightRule` are multiplied by those of the steps, as n x n matrices, and then
    once by the rows; for any other rule the mixtures are computed. A `SumRule` is evaluated over
    rows, with all its passes. A mixture belongs to no client: a rule with client state treats each
    mixture as a new client.
    """

    before: tuple[PreAggregator, ...]
    rule: Rule

    def needs(self) -> Needs:
        needs: Needs = self.rule.needs() if isinstance(self.rule, RowRule) else frozenset()
        center: Needs = frozenset({"center"} if self.remembers else ())
        return needs.union(center, *(part.needs() for part in self.before)) - {"histories"}

    def unfit_reason(self, layers: Sequence[int]) -> str:
        return self.rule.unfit_reason(layers) if isinstance(self.rule, RowRule) else ""

    @property
    def remembers(self) -> bool:
        """Whether `rule` is a `SumRule` that `remembers`, so that it needs "center", the aggregate
        of the round before.
        """
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
    """Returns the aggregate of `rule` over the rows transformed by the steps `before`.

    Args:
      rows: client updates, float32 or float64, shape [n, d].
      byzantine: upper bound on the number of Byzantine rows.
      before: pre-aggregation steps, in order.
      rule: the rule applied last.
      generator: source of randomness, for parts that need one.
      given: further keyword arguments of the rule (`RowRule.needs`).

    Returns:
      The aggregate, shape [d].

    Raises:
      ValueError: if `byzantine` exceeds what the parts tolerate.
      TypeError: if rows are neither float32 nor float64.
    """
    among = admitted(rows, byzantine, before, rule)
    if not among.count:
        return among.nothing()
    if isinstance(rule, WeightRule):
        return _composed(among, before, rule, generator)
    mixed = _mixtures(among.rows, among.keep, among.byzantine, before, generator)
    if isinstance(rule, SumRule):
        return rule.on_rows(mixed, **given)
    assert isinstance(rule, RowRule)
    drawn = {"generator": generator} if "generator" in rule.needs() else {}
    return rule(mixed, among.byzantine, **given, **drawn)


def _composed(
    among: Admitted,
    before: Sequence[PreAggregator],
    rule: WeightRule,
    generator: torch.Generator | None,
) -> Tensor:
    """Returns the aggregate `[d]` of `rule` over the mixtures of `before`, for at least one
    admitted row.

    The mixtures are not computed; only their weights on the rows are.
    """
    weights: Tensor | None = None
    if before or rule.geometric:
        geometry = Geometry.of(among.rows, among.keep)
        geometry, weights = _mix(geometry, among.byzantine, before, generator)
    if rule.geometric:
        made = rule.mix(geometry, among.byzantine)
        weights = made if weights is None else made @ weights
    if weights is not None and weights.dim() == 1:
        return among.weighed(weights)
    return by_column(
        among.rows, among.keep, weights, lambda ordered: rule.columns(ordered, among.byzantine)
    )


def mixtures(
    rows: Tensor,
    byzantine: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None = None,
) -> Tensor:
    """Returns the mixtures `[m, d]` that the steps `before` make of the usable `rows` `[n, d]`.

    If `byzantine` exceeds what the steps tolerate, that number is used instead.
    """
    keep = usable_places(rows)
    most, _ = _tolerated_before(len(rows) if keep is None else len(keep), before)
    return _mixtures(rows, keep, min(byzantine, most), before, generator)


def _mixtures(
    rows: Tensor,
    keep: Tensor | None,
    byzantine: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None,
) -> Tensor:
    """Returns the mixtures `[m, d]` of `rows[keep]`, of which up to `byzantine` are Byzantine;
    without steps, these rows.
    """
    if not before or (keep is not None and not len(keep)):
        return rows if keep is None else rows[keep]
    _, weights = _mix(Geometry.of(rows, keep), byzantine, before, generator)
    assert weights is not None
    return product(weights, rows, keep)


def _mix(
    geometry: Geometry,
    byzantine: int,
    before: Sequence[PreAggregator],
    generator: torch.Generator | None,
) -> tuple[Geometry, Tensor | None]:
    """Returns the geometry of the mixtures, and their weights `[m, n]` on the rows.

    Without steps, it returns `geometry` and None.
    """
    weights: Tensor | None = None
    for part in before:
        made = part.mix(geometry, byzantine, generator)
        geometry, weights = geometry.mixed(made), made if weights is None else made @ weights
    return geometry, weights


@dataclass(frozen=True)
class Admitted:
    """The rows that a rule aggregates and the assumed number of Byzantine rows among them.

    *Rows left out*: of the n rows with at most f Byzantine ones, m are not usable. The number of
    Byzantine rows among these m is unknown. Among the n - m others there are at most f, and the
    rule receives f or the most that it tolerates among n - m. The number that the rule receives is
    an upper bound if all m were honest and f is still tolerated. It is also one if all m were
    Byzantine, as the number that a rule tolerates falls by at most one with each row.
    """

    rows: Tensor
    """All rows `[n, d]`, detached from autograd."""
    keep: Tensor | None
    """Indices `[n - m]` of the usable rows; None if all are usable."""
    count: int
    """Number of usable rows n - m."""
    byzantine: int
    """Assumed number of Byzantine rows among the usable ones."""

    def weighed(self, weights: Tensor) -> Tensor:
        """Returns the sum `[d]` of the usable rows, weighted by `weights` `[n - m]`."""
        return product(weights[None], self.rows, self.keep)[0]

    def nothing(self) -> Tensor:
        """Returns the aggregate of no rows: zeros `[d]`."""
        return self.rows.new_zeros(self.rows.shape[1])


def admitted(rows: Tensor, byzantine: int, before: Sequence[PreAggregator], rule: Rule) -> Admitted:
    """Returns the usable rows among `rows` `[n, d]`, of which up to `byzantine` are Byzantine, and
    the number of Byzantine rows to assume among them.

    Raises:
      ValueError: if `byzantine` exceeds what the parts tolerate.
      TypeError: if rows are neither float32 nor float64.
    """
    refuse_too_many(len(rows), byzantine, before, rule)
    require_floats(rows)
    rows = rows.detach()
    keep = usable_places(rows)
    count = len(rows) if keep is None else len(keep)
    return Admitted(rows, keep, count, min(byzantine, tolerated(count, before, rule)))


def refuse_too_many(n: int, byzantine: int, before: Sequence[PreAggregator], rule: Rule) -> None:
    """Raises `ValueError` if `byzantine` is negative or exceeds what these parts tolerate among `n`
    rows.
    """
    most = tolerated(n, before, rule)
    if not 0 <= byzantine <= most:
        names = " followed by ".join(type(part).__name__ for part in (*before, rule))
        raise ValueError(
            f"byzantine is {byzantine}, but {names} tolerates at most {most} Byzantine rows "
            f"among {n}; pass a number from 0 to {most}"
        )


def tolerated(n: int, before: Sequence[PreAggregator], rule: Rule) -> int:
    """Returns the largest number of Byzantine rows among `n` that all of these parts tolerate."""
    most, left = _tolerated_before(n, before)
    return max(0, min(most, rule.most(left)))


def _tolerated_before(n: int, before: Sequence[PreAggregator]) -> tuple[int, int]:
    """Returns the number of Byzantine rows that `before` tolerates, and the number of mixtures.

    Args:
      n: number of rows.
      before: pre-aggregation steps, in order.
    """
    most = n
    for part in before:
        most, n = min(most, part.most(n)), part.left(n)
    return most, n
