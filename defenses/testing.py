"""The contracts of rules and of pre-aggregators as checks that one of your own has to pass.

Each check is a function of the part, and raises `AssertionError`.
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


class Given:
    """A rule that is called with rows alone: all other arguments that it `needs` are provided."""

    def __init__(self, rule: Any) -> None:
        self.part = rule
        self.rule = rule if isinstance(rule, RowRule) else Composed(before=(), rule=rule)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    @property
    def claims(self) -> bool:
        """Whether the rule declares that its aggregate stays near the honest rows."""
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
        """Returns the layer sizes of a model with d parameters that suits the rule."""
        layouts = [[d], [d - 5, 2, 2, 1], [d - 1, 1]]
        return next(sizes for sizes in layouts if min(sizes) >= 0 and not self.rule.unfit(sizes))


_BROKEN = (torch.nan, torch.inf, -torch.inf, 1e30, 3e38)


def _cloud(n: int, d: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _same(result: Tensor, expected: Tensor, **tolerance: Any) -> None:
    torch.testing.assert_close(result, expected, **tolerance)


def keeps_inputs_shapes_and_dtypes(part: Any) -> None:
    """Checks that rows are not modified, and that the aggregate has their length and dtype."""
    rule = Given(part)
    for dtype in (torch.float32, torch.float64):
        rows = _cloud(11, dtype=dtype)
        before = rows.clone()
        aggregate = rule(rows, min(2, rule.most(11)))
        assert torch.equal(rows, before), "rows are modified"
        assert (aggregate.dtype, tuple(aggregate.shape)) == (dtype, (7,))
        transposed = rows.T.contiguous().T
        _same(rule(transposed, min(2, rule.most(11))), aggregate)
    _same(rule(_cloud(9).requires_grad_(), 1), rule(_cloud(9), 1))


def ignores_the_order_of_rows(part: Any) -> None:
    """Checks that the order of rows has no effect, with ties also."""
    rule = Given(part)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    rows = _cloud(15)  # with fewer rows, Bulyan's last two are tied
    _same(rule(rows[order], 3), rule(rows, 3))
    tied = torch.cat([torch.full((12, 7), 0.5), torch.full((3, 7), -2.0)]).double()
    _same(rule(tied[order], 3), rule(tied, 3))
    if rule.claims:
        _same(rule(tied, 3), tied[0], atol=0.02, rtol=0)


def leaves_out_rows_that_cannot_be_computed_with(part: Any) -> None:
    """Checks that rows with a non-finite or huge number have no effect."""
    rule = Given(part)
    for bad in _BROKEN:
        for n in (9, 12):
            rows = _cloud(n, dtype=torch.float32)
            rows[0] = bad
            expected = rule(rows[1:], min(1, rule.most(n - 1)))
            _same(rule(rows, 1), expected, atol=1e-5, rtol=1e-5)
            one_number = rows.clone()
            one_number[0] = 0.0
            one_number[0, 3] = bad
            _same(rule(one_number, 1), rule(rows, 1))
    for broken in (1, 2, 3) if rule.claims else ():
        rows = _cloud(12, dtype=torch.float32)
        rows[:broken] = torch.nan
        most, left = rule.most(12), rule.most(12 - broken)
        expected = rule(rows[broken:], min(most, left))
        _same(rule(rows, most), expected, atol=1e-5, rtol=1e-5)
        assert left >= most - broken, "fewer rows have to tolerate the remaining Byzantine ones"


def aggregates_few_equal_and_no_rows(part: Any) -> None:
    """Checks the aggregate of no rows, of one to four rows, and of equal rows."""
    rule = Given(part)
    for none in (torch.full((3, 7), torch.nan), torch.empty(0, 7)):
        assert not rule(none, 0).any(), "nothing moves without rows"
    for n in (1, 2, 3, 4):
        assert rule(_cloud(n, dtype=torch.float32), 0).isfinite().all()
        rows = torch.full((n, 3), 0.5)
        if rule.claims:
            _same(rule(rows, 0), rows[0])


def stays_finite_under_long_rows(part: Any) -> None:
    """Checks that long rows leave the aggregate finite, and near the others if it claims so."""
    rule = Given(part)
    near = rule.claims and "generator" not in rule.needs()  # opposite rows may share a bucket
    for size in (1e3, 1e8, 1e14):
        for place in (0, 5, 10):
            rows = _cloud(11, dtype=torch.float32)
            rows[place], rows[(place + 3) % 11] = size, -size
            aggregate = rule(rows, min(2, rule.most(11)))
            assert aggregate.isfinite().all()
            assert not near or float(aggregate.norm()) < 8


def refuses_more_byzantine_rows_than_it_tolerates(part: Any) -> None:
    """Checks the refusal of too many Byzantine rows, and of half precision."""
    rule = Given(part)
    for byzantine in (-1, rule.most(11) + 1) if rule.most(11) < 11 else (-1,):
        assert "tolerates at most" in _refusal(partial(rule, _cloud(11), byzantine), ValueError)
    assert "float32 or float64" in _refusal(lambda: rule(_cloud(11).half(), 0), TypeError)


def _refusal(call: Callable[[], object], error: type[Exception]) -> str:
    """Returns the text of the `error` that `call` raises; "" if it raises none."""
    try:
        call()
    except error as raised:
        return str(raised)
    return ""


def _placements(honest: Tensor, count: int) -> Iterator[Tensor]:
    """Yields `count` Byzantine rows `[count, d]` against the rows `honest` `[h, d]`."""
    mean, spread = honest.mean(0), honest.std(0, correction=0)
    alone = torch.zeros(count, honest.shape[1], dtype=honest.dtype)
    alone[range(count), [place % honest.shape[1] for place in range(count)]] = 1e4
    for push in (3.0, 30.0, 1e6):
        yield torch.full_like(alone, push)
    for strength in (-1.5, 0.5, 4.0):
        yield (mean + strength * spread).expand_as(alone)
    yield honest[:1].expand_as(alone)
    yield alone
    yield (mean - honest[-1]).expand_as(alone) * 2


def stays_within_the_tolerance_it_declares(part: Any) -> None:
    """Checks the claimed kappa, or a few times the honest rows' radius if it claims none."""
    rule = Given(part)
    if not rule.claims:
        return
    for n, d, seed in ((11, 5, 0), (16, 5, 1), (10, 2, 2)):
        f = rule.most(n)
        for count in {f, min(f, 1)}:
            honest = _cloud(n - count, d, seed)
            mean = honest.mean(0)
            about = (honest - mean).norm(dim=1)
            kappa = rule.robustness(n, count)
            least = count / (n - 2 * count)
            assert kappa >= least, "no rule can do better"
            for byzantine in _placements(honest, count):
                away = (rule(torch.cat([byzantine, honest]), count) - mean).norm()
                assert away <= 4 * about.max()
                if math.isfinite(kappa):
                    assert away**2 <= kappa * about.square().mean() * (1 + 1e-9) + 1e-6
        for beyond in (-1, f + 1, n // 2 + 1, n - 1):
            assert rule.robustness(n, beyond) == math.inf, "not tolerated"


def moves_and_grows_with_the_rows(part: Any) -> None:
    """Checks that the aggregate moves and scales with all rows."""
    rule = Given(part)
    if not rule.claims:
        return
    rows, away = _cloud(11), 3.0 * _cloud(1, seed=9)[0]
    _same(rule(rows + away, 2), rule(rows, 2) + away, atol=2e-5, rtol=1e-5)
    _same(rule(1000.0 * rows, 2) / 1000.0, rule(rows, 2), atol=2e-3, rtol=1e-3)


def tolerates_as_many_after_an_honest_row_broke(part: Any) -> None:
    """Checks that a diverged honest row does not lower the tolerance."""
    rule = Given(part)
    for byzantine in (1, 2, 3) if rule.claims else ():
        rows = _cloud(16, dtype=torch.float32)
        rows[:byzantine], rows[9] = 1e6, torch.nan
        assert rule.most(15) >= byzantine
        assert float(rule(rows, byzantine).norm()) < 8


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
"""All checks of a rule."""

_NNM = NearestNeighbourMixing()
_FOLLOWING = {
    "trimmed_mean": TrimmedMean(),
    "geometric_median": GeometricMedian(),
    "norm_bound": NormBound(radius=1.0),
}
"""One rule of each form, with which pre-aggregators are composed."""


def composed(contract: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns the check `contract` of rules for a pre-aggregator before three kinds of rules."""

    def of_compositions(part: Any) -> None:
        if "generator" in part.needs() and contract is ignores_the_order_of_rows:
            return  # it draws by the place of a row
        for rule in _FOLLOWING.values():
            contract(Composed(before=(part,), rule=rule))
        contract(Composed(before=(part, _NNM), rule=_FOLLOWING["trimmed_mean"]))

    of_compositions.__name__ = contract.__name__
    return of_compositions


def makes_as_many_mixtures_as_it_declares(part: Any) -> None:
    """Checks the number and the weights of the mixtures."""
    for n in (1, 2, 7, 12):
        assert 0 <= part.most(n) <= n
        rows = _cloud(n)
        generator = torch.Generator().manual_seed(0)
        weights = part.mix(Geometry.of(rows), part.most(n), generator)
        assert weights.dtype == torch.float64
        assert tuple(weights.shape) == (part.left(n), n)
        assert weights.isfinite().all()
        assert (weights >= 0).all()
        assert (weights.sum(1) <= 1 + 1e-9).all(), "a mixture is longer than all of its rows"


def spoils_no_more_mixtures_than_rows(part: Any) -> None:
    """Checks that the median of mixtures stays near the honest rows."""
    rule = Given(Composed(before=(part,), rule=Median()))
    for n in (8, 11):
        rows = _cloud(n, 5)
        rows[: rule.most(n)] = 1e9
        assert float(rule(rows, rule.most(n)).norm()) < 8


COMPOSED_CHECKS = tuple(map(composed, RULE_CHECKS[:5]))
BEFORE_CHECKS = (
    *COMPOSED_CHECKS,
    makes_as_many_mixtures_as_it_declares,
    spoils_no_more_mixtures_than_rows,
)
"""All checks of a pre-aggregator."""
