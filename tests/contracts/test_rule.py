"""What every aggregation rule keeps: of any rows, in any order, within its declared tolerance."""

import math

import torch
from contracts.registered import contract_tests
from rules import Given

from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.types import RowRule

BROKEN = (torch.nan, torch.inf, -torch.inf, 1e30, 3e38)


def cloud(n, d=7, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(result, expected, **tolerance):
    torch.testing.assert_close(result, expected, **tolerance)


def keeps_inputs_shapes_and_dtypes(part):
    rule = Given(part)
    for dtype in (torch.float32, torch.float64):
        rows = cloud(11, dtype=dtype)
        before = rows.clone()
        aggregate = rule(rows, min(2, rule.most(11)))
        assert torch.equal(rows, before), "rows are modified"
        assert (aggregate.dtype, tuple(aggregate.shape)) == (dtype, (7,))
        transposed = rows.T.contiguous().T
        same(rule(transposed, min(2, rule.most(11))), aggregate)
    same(rule(cloud(9).requires_grad_(), 1), rule(cloud(9), 1))


def ignores_the_order_of_rows(part):
    """Also where a majority coincides, and all others do."""
    rule = Given(part)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    rows = cloud(15)  # of fewer, Bulyan picks among two that are each other's nearest
    same(rule(rows[order], 3), rule(rows, 3))
    tied = torch.cat([torch.full((12, 7), 0.5), torch.full((3, 7), -2.0)]).double()
    same(rule(tied[order], 3), rule(tied, 3))
    if rule.claims:
        same(rule(tied, 3), tied[0], atol=0.02, rtol=0)


def leaves_out_rows_that_cannot_be_computed_with(part):
    rule = Given(part)
    for bad in BROKEN:
        for n in (9, 12):
            rows = cloud(n, dtype=torch.float32)
            rows[0] = bad
            expected = rule(rows[1:], min(1, rule.most(n - 1)))
            same(rule(rows, 1), expected, atol=1e-5, rtol=1e-5)
            one_number = rows.clone()
            one_number[0] = 0.0
            one_number[0, 3] = bad
            same(rule(one_number, 1), rule(rows, 1))
    for broken in (1, 2, 3) if rule.claims else ():
        rows = cloud(12, dtype=torch.float32)
        rows[:broken] = torch.nan
        most, left = rule.most(12), rule.most(12 - broken)
        expected = rule(rows[broken:], min(most, left))
        same(rule(rows, most), expected, atol=1e-5, rtol=1e-5)
        assert left >= most - broken, "where those left out were hostile, it suffices"


def aggregates_few_equal_and_no_rows(part):
    rule = Given(part)
    for none in (torch.full((3, 7), torch.nan), torch.empty(0, 7)):
        assert not rule(none, 0).any(), "nothing moves without rows"
    for n in (1, 2, 3, 4):
        assert rule(cloud(n, dtype=torch.float32), 0).isfinite().all()
        rows = torch.full((n, 3), 0.5)
        if rule.claims:
            same(rule(rows, 0), rows[0])


def stays_finite_under_long_rows(part):
    rule = Given(part)
    near = rule.claims and "generator" not in rule.needs()  # opposite rows may share a bucket
    for size in (1e3, 1e8, 1e14):
        for place in (0, 5, 10):
            rows = cloud(11, dtype=torch.float32)
            rows[place], rows[(place + 3) % 11] = size, -size
            aggregate = rule(rows, min(2, rule.most(11)))
            assert aggregate.isfinite().all()
            assert not near or float(aggregate.norm()) < 8


def refuses_more_byzantine_rows_than_it_tolerates(part):
    rule = Given(part)
    for byzantine in (-1, rule.most(11) + 1) if rule.most(11) < 11 else (-1,):
        assert "tolerates at most" in refusal(lambda f=byzantine: rule(cloud(11), f), ValueError)
    assert "float32 or float64" in refusal(lambda: rule(cloud(11).half(), 0), TypeError)


def refusal(call, error):
    """The words of the `error` that `call` raises; empty where it raises none."""
    try:
        call()
    except error as raised:
        return str(raised)
    return ""


def placements(honest, count):
    """Where `count` hostile rows may be, against `honest` `[h, d]`: `[count, d]` each."""
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


def stays_within_the_tolerance_it_declares(part):
    """Within its kappa where it claims one, else within a few times the honest rows' radius."""
    rule = Given(part)
    if not rule.claims:
        return
    for n, d, seed in ((11, 5, 0), (16, 5, 1), (10, 2, 2)):
        f = rule.most(n)
        for count in {f, min(f, 1)}:
            honest = cloud(n - count, d, seed)
            mean = honest.mean(0)
            about = (honest - mean).norm(dim=1)
            kappa = rule.robustness(n, count)
            least = count / (n - 2 * count)
            assert kappa >= least, "no rule can do better"
            for byzantine in placements(honest, count):
                away = (rule(torch.cat([byzantine, honest]), count) - mean).norm()
                assert away <= 4 * about.max()
                if math.isfinite(kappa):
                    assert away**2 <= kappa * about.square().mean() * (1 + 1e-9) + 1e-6
        for beyond in (-1, f + 1, n // 2 + 1, n - 1):
            assert rule.robustness(n, beyond) == math.inf, "not tolerated"


def moves_and_grows_with_the_rows(part):
    """Rules that stay near the honest rows see nothing but where rows are to one another."""
    rule = Given(part)
    if not rule.claims:
        return
    rows, away = cloud(11), 3.0 * cloud(1, seed=9)[0]
    same(rule(rows + away, 2), rule(rows, 2) + away, atol=2e-5, rtol=1e-5)
    same(rule(1000.0 * rows, 2) / 1000.0, rule(rows, 2), atol=2e-3, rtol=1e-3)


def tolerates_as_many_after_an_honest_row_broke(part):
    rule = Given(part)
    for byzantine in (1, 2, 3) if rule.claims else ():
        rows = cloud(16, dtype=torch.float32)
        rows[:byzantine], rows[9] = 1e6, torch.nan
        assert rule.most(15) >= byzantine
        assert float(rule(rows, byzantine).norm()) < 8


class FirstRow(RowRule):
    """The first of the rows, wherever it is: by default it claims to withstand hostile ones."""

    def __call__(self, rows, byzantine):
        return rows[0] if len(rows) else rows.new_zeros(rows.shape[1])


class PlainMean(RowRule):
    """A mean that claims, by the default of its kind, to withstand hostile rows."""

    def __call__(self, rows, byzantine):
        return rows.mean(0)


class Cubic(RowRule):
    """A power mean, whose powers overflow."""

    def __call__(self, rows, byzantine):
        return rows.pow(3).mean(0)


class InPlace(Median):
    """A median that sorts what it is given."""

    def __call__(self, rows, byzantine):
        rows.detach().copy_(rows.detach().sort(0).values)
        return super().__call__(rows, byzantine)


class Doubled(Median):
    """A median in double precision, whatever it is given."""

    def __call__(self, rows, byzantine):
        return super().__call__(rows, byzantine).double()


class TooProud(TrimmedMean):
    """A trimmed mean that claims a tenth of its kappa."""

    def kappa(self, n, byzantine):
        return super().kappa(n, byzantine) / 10


class OneFewer(TrimmedMean):
    """A trimmed mean that trims one row fewer than there are hostile ones."""

    def __call__(self, rows, byzantine):
        return super().__call__(rows, max(0, byzantine - 1))


class OffCenter(Median):
    """A median that is drawn to a fixed point."""

    def __call__(self, rows, byzantine):
        return 0.9 * super().__call__(rows, byzantine)


test_every_rule_keeps, test_a_wrong_rule_is_rejected_by = contract_tests(
    "rule",
    {
        keeps_inputs_shapes_and_dtypes: [InPlace(), Doubled()],
        ignores_the_order_of_rows: [FirstRow()],
        leaves_out_rows_that_cannot_be_computed_with: [PlainMean()],
        aggregates_few_equal_and_no_rows: [PlainMean(), OffCenter()],
        stays_finite_under_long_rows: [Cubic()],
        refuses_more_byzantine_rows_than_it_tolerates: [PlainMean()],
        stays_within_the_tolerance_it_declares: [FirstRow(), PlainMean(), TooProud(), OneFewer()],
        moves_and_grows_with_the_rows: [OffCenter()],
        tolerates_as_many_after_an_honest_row_broke: [PlainMean(), OneFewer()],
    },
)
