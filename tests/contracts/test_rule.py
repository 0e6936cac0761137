"""What every aggregation rule keeps: of any rows, in any order, within its declared tolerance."""

from contracts.registered import contract_tests

from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.testing import (
    aggregates_few_equal_and_no_rows,
    ignores_the_order_of_rows,
    keeps_inputs_shapes_and_dtypes,
    leaves_out_rows_that_cannot_be_computed_with,
    moves_and_grows_with_the_rows,
    refuses_more_byzantine_rows_than_it_tolerates,
    stays_finite_under_long_rows,
    stays_within_the_tolerance_it_declares,
    tolerates_as_many_after_an_honest_row_broke,
)
from defenses.types import RowRule


class FirstRow(RowRule):
    """The first of the rows, wherever it is: by default it claims to withstand Byzantine ones."""

    def __call__(self, rows, byzantine):
        return rows[0] if len(rows) else rows.new_zeros(rows.shape[1])


class PlainMean(RowRule):
    """A mean that claims, by the default of its kind, to withstand Byzantine rows."""

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
    """A median in double precision, for rows of any precision."""

    def __call__(self, rows, byzantine):
        return super().__call__(rows, byzantine).double()


class TooProud(TrimmedMean):
    """A trimmed mean that claims a tenth of its kappa."""

    def kappa(self, n, byzantine):
        return super().kappa(n, byzantine) / 10


class OneFewer(TrimmedMean):
    """A trimmed mean that trims one row fewer than there are Byzantine ones."""

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
