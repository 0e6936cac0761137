"""What every aggregation rule keeps: of any rows, in any order, within its declared tolerance."""

import re

import pytest
from contracts.registered import contract_tests

from defenses.on_rows.krum import Krum, MultiKrum
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
from defenses.types import RowRule, Rule
from defenses.weighing import WeightRule

HOOKS = ("__call__", "mix", "columns", "weigh", "noised", "with_histories", "terms", "step")
"""The hooks that make an aggregate."""


def states_a_tolerance_for_its_own_aggregate(rule):
    """A kappa is proved for an aggregate, so a rule that changes the aggregate states it again."""
    owners = [each for each in type(rule).__mro__ if "kappa" in vars(each)]
    above = type(rule).__mro__[: type(rule).__mro__.index(owners[0])]
    changed = [(each.__qualname__, hook) for each in above for hook in HOOKS if hook in vars(each)]
    assert owners[0] is Rule or not changed, (
        f"{'.'.join(changed[0])} changes the aggregate, but kappa is inherited from "
        f"{owners[0].__qualname__}; define {changed[0][0]}.kappa: math.inf if none is published"
    )


class MeanOfNearest(Krum):
    """Multi-Krum, with the kappa of Krum."""

    mix = MultiKrum.mix


class Stretched(Median):
    """A median that is too long, with the median's kappa: near 0 it is within."""

    def columns(self, ordered, byzantine):
        return 1.5 * super().columns(ordered, byzantine)


class Cosines(WeightRule):
    """A mean by cosines, which zero rows do not have."""

    def mix(self, geometry, byzantine):
        inner = geometry.inner()
        norms = inner.diagonal().sqrt()
        weights = 1 + (inner / norms / norms[:, None]).sum(0)
        return weights / weights.sum()


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
        aggregates_few_equal_and_no_rows: [PlainMean(), OffCenter(), Cosines()],
        stays_finite_under_long_rows: [Cubic()],
        refuses_more_byzantine_rows_than_it_tolerates: [PlainMean()],
        stays_within_the_tolerance_it_declares: [
            *(FirstRow(), PlainMean(), TooProud(), OneFewer(), Stretched())
        ],
        states_a_tolerance_for_its_own_aggregate: [MeanOfNearest(), Stretched()],
        moves_and_grows_with_the_rows: [OffCenter()],
        tolerates_as_many_after_an_honest_row_broke: [PlainMean(), OneFewer()],
    },
)


def says(check, part):
    """The message of the failure."""
    with pytest.raises(AssertionError) as failed:
        check(part)
    return str(failed.value)


def test_a_failure_names_the_rule_and_what_it_does():
    order = says(ignores_the_order_of_rows, FirstRow())
    assert order.startswith("FirstRow depends on the order of rows, so a client's place decides: ")
    distance = (
        r"moves \S+ from the mean of honest rows, with \d of 10 rows Byzantine, but at most \S+"
    )
    far = says(stays_within_the_tolerance_it_declares, PlainMean())
    assert re.match(rf"PlainMean {distance} is allowed by 4 times the distance of", far)
    long = says(stays_within_the_tolerance_it_declares, Stretched())
    assert re.match(rf"Stretched {distance} is allowed by its kappa of 5\.06 \(which", long)
    inherited = says(states_a_tolerance_for_its_own_aggregate, MeanOfNearest())
    assert inherited.startswith("MeanOfNearest.mix changes the aggregate, but kappa is inherited")
