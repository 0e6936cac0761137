"""Checks that every rule and pre-aggregator has to pass, including those of your own.

Each check is a function of the rule or pre-aggregator, the part, and raises `AssertionError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.norm_bound import NormBound
from defenses.geometry import Geometry
from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.types import RowRule
from defenses.weighing import Composed


class RuleOnRows:
    """A rule that is called with rows and `byzantine` alone; other arguments are provided."""

    def __init__(self, rule: Any) -> None:
        self.part = rule
        self.rule = rule if isinstance(rule, RowRule) else Composed(before=(), rule=rule)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    @property
    def claims(self) -> bool:
        """Whether the rule (of a composition, its last) sets `bounded` and an empty `tolerance`."""
        last = getattr(self.part, "rule", self.part)
        return bool(last.bounded and not last.tolerance)

    def __call__(self, rows: Tensor, byzantine: int, **given: Any) -> Tensor:
        d = rows.shape[1]
        provided: dict[str, Callable[[], Any]] = {
            "generator": lambda: torch.Generator().manual_seed(0),
            "root": lambda: Median()(rows, 0),
            "center": lambda: rows.new_zeros(d),
            "model": lambda: torch.linspace(-1, 1, d).to(rows),
            "layers": lambda: torch.tensor(self._layers(d)),
        }
        needs = self.rule.needs() - {"histories"}  # in a first round there are none
        asked = {key: provided[key]() for key in needs} | given
        aggregate: Tensor = self.rule(rows, byzantine, **asked)
        return aggregate

    def _layers(self, d: int) -> list[int]:
        """Returns the layer sizes of some model with d parameters that suits the rule."""
        layouts = [[d], [d - 5, 2, 2, 1], [d - 1, 1]]
        return next(a for a in layouts if min(a) >= 0 and not self.rule.unfit_reason(a))


_CLAIM = (
    "but declares that it is bounded: correct the rule, lower `most`, or declare bounded = False "
    "or a tolerance in words"
)
_BROKEN = (torch.nan, torch.inf, -torch.inf, 1e30, 3e38)


def _cloud(n: int, d: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _same(part: Any, wrong: str, result: Tensor, expected: Tensor, **tolerance: Any) -> None:
    """Raises `AssertionError` that names the part and what is `wrong` if two results differ."""
    torch.testing.assert_close(
        result, expected, msg=lambda text: f"{_name(part)} {wrong}: {text}", **tolerance
    )


def _name(part: Any) -> str:
    """Returns the name of a part's class; of a composition, of all its parts."""
    parts = (*part.before, part.rule) if isinstance(part, Composed) else (part,)
    return " and ".join(type(each).__qualname__ for each in parts)


def keeps_inputs_shapes_and_dtypes(part: Any) -> None:
    """Checks that rows stay unmodified, layout has no effect, and length and dtype are kept."""
    rule = RuleOnRows(part)
    for dtype in (torch.float32, torch.float64):
        rows = _cloud(11, dtype=dtype)
        before = rows.clone()
        aggregate = rule(rows, min(2, rule.most(11)))
        assert torch.equal(rows, before), f"{_name(part)} modifies rows"
        form = (aggregate.dtype, tuple(aggregate.shape))
        assert form == (dtype, (7,)), f"{_name(part)} of rows (11, 7) of {dtype} is {form}"
        other = rule(rows.T.contiguous().T, min(2, rule.most(11)))
        _same(part, "depends on the memory layout of rows", other, aggregate)
    tracked = rule(_cloud(9).requires_grad_(), 1)
    _same(part, "differs for rows with gradients", tracked, rule(_cloud(9), 1))


def ignores_the_order_of_rows(part: Any) -> None:
    """Checks that the order of rows has no effect, even if there are ties."""
    rule = RuleOnRows(part)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    rows = _cloud(15)  # with fewer rows, Bulyan's last two are tied
    wrong = "depends on the order of rows, so a client's place decides"
    _same(part, wrong, rule(rows[order], 3), rule(rows, 3))
    tied = torch.cat([torch.full((12, 7), 0.5), torch.full((3, 7), -2.0)]).double()
    _same(part, f"{wrong}, where rows are equal", rule(tied[order], 3), rule(tied, 3))
    if rule.claims:
        wrong = f"leaves 12 equal honest rows for 3 Byzantine rows, {_CLAIM}"
        _same(part, wrong, rule(tied, 3), tied[0], atol=0.02, rtol=0)


def leaves_out_rows_that_cannot_be_computed_with(part: Any) -> None:
    """Checks that rows with a non-finite or huge number have no effect."""
    rule = RuleOnRows(part)
    for bad in _BROKEN:
        for n in (9, 12):
            rows = _cloud(n, dtype=torch.float32)
            rows[0] = bad
            expected = rule(rows[1:], min(1, rule.most(n - 1)))
            wrong = f"is affected by a row of {bad}"
            _same(part, wrong, rule(rows, 1), expected, atol=1e-5, rtol=1e-5)
            one_number = rows.clone()
            one_number[0] = 0.0
            one_number[0, 3] = bad
            wrong = f"treats a row with one number {bad} unlike a row of {bad}"
            _same(part, wrong, rule(one_number, 1), rule(rows, 1))
    for broken in (1, 2, 3) if rule.claims else ():
        rows = _cloud(12, dtype=torch.float32)
        rows[:broken] = torch.nan
        most, left = rule.most(12), rule.most(12 - broken)
        expected = rule(rows[broken:], min(most, left))
        wrong = f"is affected by {broken} of 12 rows that are not finite"
        _same(part, wrong, rule(rows, most), expected, atol=1e-5, rtol=1e-5)
        assert left >= most - broken, f"{_name(part)}.most falls by more than 1 with a row"


def aggregates_few_equal_and_no_rows(part: Any) -> None:
    """Checks the aggregate of no rows, of one to four rows, of equal rows, and of rows of zeros."""
    rule = RuleOnRows(part)
    for none in (torch.full((3, 7), torch.nan), torch.empty(0, 7)):
        assert not rule(none, 0).any(), f"{_name(part)} moves without rows"
    for n in (1, 2, 3, 4):
        aggregate = rule(_cloud(n, dtype=torch.float32), 0)
        assert aggregate.isfinite().all(), f"{_name(part)} of {n} rows is not finite"
        rows = torch.full((n, 3), 0.5)
        if rule.claims:
            _same(part, f"of {n} equal rows is not that row", rule(rows, 0), rows[0])
    for zeros in (1, 6, 11):
        rows = _cloud(11)
        rows[:zeros] = 0.0
        aggregate = rule(rows, min(2, rule.most(11)))
        assert aggregate.isfinite().all(), f"{_name(part)} of {zeros} zero rows is not finite"
        still = zeros < 11 or not rule.claims or not aggregate.any()
        assert still, f"{_name(part)} of zero rows is not zero"


def stays_finite_under_long_rows(part: Any) -> None:
    """Checks that long rows leave aggregates finite and, with `claims` and not random, near 0."""
    rule = RuleOnRows(part)
    near = rule.claims and "generator" not in rule.needs()  # opposite rows may share a bucket
    for size in (1e3, 1e8, 1e14):
        for place in (0, 5, 10):
            rows = _cloud(11, dtype=torch.float32)
            rows[place], rows[(place + 3) % 11] = size, -size
            aggregate = rule(rows, min(2, rule.most(11)))
            assert aggregate.isfinite().all(), f"{_name(part)} of rows of {size:g} is not finite"
            away = float(aggregate.norm())
            assert not near or away < 8, f"{_name(part)} moves {away:.3g} by {size:g}, {_CLAIM}"


def refuses_more_byzantine_rows_than_it_tolerates(part: Any) -> None:
    """Checks that a negative or too high `byzantine` is refused, and rows of half precision."""
    rule = RuleOnRows(part)
    for byzantine in (-1, rule.most(11) + 1) if rule.most(11) < 11 else (-1,):
        _refuses(part, partial(rule, _cloud(11), byzantine), ValueError("tolerates at most"))
    _refuses(part, partial(rule, _cloud(11).half(), 0), TypeError("float32 or float64"))


def _refuses(part: Any, call: partial[Tensor], error: Exception) -> None:
    """Raises `AssertionError` unless `call` raises an error of this type with this text in it."""
    try:
        call()
    except type(error) as raised:
        if str(error) in str(raised):
            return
    raise AssertionError(f"{_name(part)} of {call.args[1]} Byzantine rows does not raise {error!r}")


def _placements(honest: Tensor, count: int) -> Iterator[Tensor]:
    """Yields eleven sets of `count` Byzantine rows `[count, d]`, near to and far from `honest`."""
    mean, spread = honest.mean(0), honest.std(0, correction=0)
    alone = torch.zeros(count, honest.shape[1], dtype=honest.dtype)
    alone[range(count), [place % honest.shape[1] for place in range(count)]] = 1e4
    for push in (0.0, 3.0, 30.0, 1e6):
        yield torch.full_like(alone, push)
    for strength in (-1.5, 0.5, 4.0):
        yield (mean + strength * spread).expand_as(alone)
    yield honest[:1].expand_as(alone)
    yield honest[-count:] if count else alone
    yield alone
    yield (mean - honest[-1]).expand_as(alone) * 2


def _honest(n: int, count: int) -> Iterator[Tensor]:
    """Yields four sets of `n` honest rows `[n, d]`: two clouds, one set of two distant groups, and
    one with an outlier. The smaller group has `count` rows (at least one), and neither center is 0.
    """
    for d, seed in ((5, 0), (2, 2)):
        yield _cloud(n, d, seed)
    apart = 0.05 * _cloud(n, 3, 3)
    apart[-max(1, count) :, 0] += 1.0
    yield apart + 1.0
    alone = 0.05 * _cloud(n, 3, 4)
    alone[-1, 1] += 1.0
    yield alone


def stays_within_the_tolerance_it_declares(part: Any) -> None:
    """Checks errors (`_stays_near`) and infinite kappas beyond the tolerance, with `claims`."""
    rule = RuleOnRows(part)
    if not rule.claims:
        return
    for n in (10, 11, 16):
        f = rule.most(n)
        for count in {f, min(f, 1)}:
            for honest in [*_honest(n - count, count)][: 4 if n == 10 else 1]:
                _stays_near(part, rule, honest, count)
        for beyond in (-1, f + 1, n // 2 + 1, n - 1):
            assert rule.robustness(n, beyond) == math.inf, (
                f"{_name(part)} does not tolerate {beyond}"
            )


def _stays_near(part: Any, rule: RuleOnRows, honest: Tensor, count: int) -> None:
    """Checks that aggregates move at most as far as kappa and 4 times the honest radius permit."""
    mean, n = honest.mean(0), len(honest) + count
    about = (honest - mean).norm(dim=1)
    kappa = rule.robustness(n, count)
    assert kappa >= count / (n - 2 * count), f"{_name(part)}: no rule has a kappa of {kappa:.3g}"
    promised = (
        "4 times the distance of the farthest honest row (which it promises by `bounded`; correct "
        "the rule, lower `most`, or declare bounded = False)"
    )
    allowed = {promised: 4 * float(about.max())}
    if math.isfinite(kappa):
        stated = f"its kappa of {kappa:.3g} (which it states or inherits; correct it or the rule)"
        allowed[stated] = math.sqrt(kappa * float(about.square().mean()) * (1 + 1e-9) + 1e-6)
    for byzantine in _placements(honest, count):
        away = float((rule(torch.cat([byzantine, honest]), count) - mean).norm())
        for bound, most in allowed.items():
            assert away <= most, (
                f"{_name(part)} moves {away:.3g} from the mean of honest rows, with {count} of {n} "
                f"rows Byzantine, but at most {most:.3g} is allowed by {bound}"
            )


def moves_and_grows_with_the_rows(part: Any) -> None:
    """Checks that aggregates of rules with `claims` are shifted and scaled as all rows are."""
    rule = RuleOnRows(part)
    if not rule.claims:
        return
    rows, away = _cloud(11), 3.0 * _cloud(1, seed=9)[0]
    moved, grown = rule(rows + away, 2), rule(1000.0 * rows, 2) / 1000.0
    _same(part, "does not move with all rows", moved, rule(rows, 2) + away, atol=2e-5, rtol=1e-5)
    _same(part, "does not scale with all rows", grown, rule(rows, 2), atol=2e-3, rtol=1e-3)


def tolerates_as_many_after_an_honest_row_broke(part: Any) -> None:
    """Checks that an honest row of NaN does not lower the tolerance of rules with `claims`."""
    rule = RuleOnRows(part)
    for byzantine in (1, 2, 3) if rule.claims else ():
        rows = _cloud(16, dtype=torch.float32)
        rows[:byzantine], rows[9] = 1e6, torch.nan
        assert rule.most(15) >= byzantine, f"{_name(part)} tolerates {rule.most(15)} of 15 rows"
        away = float(rule(rows, byzantine).norm())
        assert away < 8, f"{_name(part)} moves to {away:.3g} where a row is not finite, {_CLAIM}"


RULE_CHECKS = (
    keeps_inputs_shapes_and_dtypes,
    ignores_the_order_of_rows,
    leaves_out_rows_that_cannot_be_computed_with,
    aggregates_few_equal_and_no_rows,
    stays_finite_under_long_rows,
    refuses_more_byzantine_rows_than_it_tolerates,
    stays_within_the_tolerance_it_declares,
    moves_and_grows_with_the_rows,
    tolerates_as_many_after_an_honest_row_broke,
)
"""All checks that a rule has to pass."""

_FOLLOWING = TrimmedMean(), GeometricMedian(), NormBound(radius=1.0)  # one rule of each form


def composed(contract: Callable[[Any], None], random: bool = True) -> Callable[[Any], None]:
    """Returns a check of pre-aggregators: `contract`, a check of rules, on rules that follow them.
    If `random` is False, those that need a generator are not checked.
    """

    def of_compositions(part: Any) -> None:
        if not random and "generator" in part.needs():
            return
        for rule in _FOLLOWING:
            contract(Composed(before=(part,), rule=rule))
        contract(Composed(before=(part, NearestNeighbourMixing()), rule=TrimmedMean()))

    of_compositions.__name__ = contract.__name__
    return of_compositions


def makes_as_many_mixtures_as_it_declares(part: Any) -> None:
    """Checks the number of mixtures, and that weights are at least 0 and sum to at most 1."""
    for n in (1, 2, 7, 12):
        assert 0 <= part.most(n) <= n, f"`most` is {part.most(n)} of {n} rows"
        geometry, generator = Geometry.of(_cloud(n)), torch.Generator().manual_seed(0)
        weights = part.mix(geometry, part.most(n), generator)
        form, expected = (weights.dtype, tuple(weights.shape)), (torch.float64, (part.left(n), n))
        assert form == expected, f"the weights of {n} rows are {form}; expected {expected}"
        assert (weights >= 0).all(), f"a weight of {n} rows is negative or no number"
        assert (weights.sum(1) <= 1 + 1e-9).all(), "a mixture is longer than all of its rows"


def spoils_no_more_mixtures_than_rows(part: Any) -> None:
    """Checks that the median of mixtures is near the honest rows even for huge Byzantine rows."""
    rule = RuleOnRows(Composed(before=(part,), rule=Median()))
    for n in (8, 11):
        rows = _cloud(n, 5)
        rows[: rule.most(n)] = 1e9
        away = float(rule(rows, rule.most(n)).norm())
        assert away < 8, f"{rule.most(n)} of {n} Byzantine rows move the median to {away:g} from 0"


IN_ANY_ORDER = composed(ignores_the_order_of_rows, random=False)
COMPOSED_CHECKS = (
    composed(keeps_inputs_shapes_and_dtypes),
    composed(leaves_out_rows_that_cannot_be_computed_with),
    composed(aggregates_few_equal_and_no_rows),
    composed(stays_finite_under_long_rows),
)
BEFORE_CHECKS = (
    IN_ANY_ORDER,
    *COMPOSED_CHECKS,
    makes_as_many_mixtures_as_it_declares,
    spoils_no_more_mixtures_than_rows,
)
"""All checks that a pre-aggregator has to pass."""
