"""What every pre-aggregator keeps: what follows it is as robust as it declares."""

import torch
from contracts.registered import contract_tests
from contracts.test_rule import (
    aggregates_few_equal_and_no_rows,
    cloud,
    ignores_the_order_of_rows,
    keeps_inputs_shapes_and_dtypes,
    leaves_out_rows_that_cannot_be_computed_with,
    stays_finite_under_long_rows,
)
from rules import FOLLOWING, NNM, Given

from defenses.before.nnm import NearestNeighbourMixing
from defenses.geometry import Geometry
from defenses.on_rows.median import Median
from defenses.weighing import Composed, PreAggregator


def composed(contract):
    """The `contract` of rules, of a pre-aggregator before each of three kinds of them."""

    def of_compositions(part):
        if "generator" in part.needs() and contract is ignores_the_order_of_rows:
            return  # it draws by the place of a row
        for rule in FOLLOWING.values():
            contract(Composed(before=(part,), rule=rule))
        contract(Composed(before=(part, NNM), rule=FOLLOWING["trimmed_mean"]))

    of_compositions.__name__ = contract.__name__
    return of_compositions


def makes_as_many_mixtures_as_it_declares(part):
    for n in (1, 2, 7, 12):
        assert 0 <= part.most(n) <= n
        rows = cloud(n)
        generator = torch.Generator().manual_seed(0)
        weights = part.mix(Geometry.of(rows), part.most(n), generator)
        assert weights.dtype == torch.float64
        assert tuple(weights.shape) == (part.left(n), n)
        assert weights.isfinite().all()
        assert (weights >= 0).all()
        assert (weights.sum(1) <= 1 + 1e-9).all(), "a mixture is longer than all of its rows"


def spoils_no_more_mixtures_than_rows(part):
    """Rows that are as far as can be: the median of mixtures stays with the honest ones."""
    rule = Given(Composed(before=(part,), rule=Median()))
    for n in (8, 11):
        rows = cloud(n, 5)
        rows[: rule.most(n)] = 1e9
        assert float(rule(rows, rule.most(n)).norm()) < 8


class Everywhere(PreAggregator):
    """Every row spoils every mixture."""

    def most(self, n):
        return max(0, (n - 1) // 2)

    def mix(self, geometry, byzantine, generator):
        return torch.full((geometry.rows, geometry.rows), 1.0 / geometry.rows).double()


class ByPlace(Everywhere):
    """It knows rows by their places."""

    def mix(self, geometry, byzantine, generator):
        return torch.eye(geometry.rows, dtype=torch.float64)[: self.left(geometry.rows)]

    def left(self, n):
        return n - n // 2


class Longer(NearestNeighbourMixing):
    """Mixtures that are longer than rows, and more of them than it declares."""

    def mix(self, geometry, byzantine, generator):
        weights = super().mix(geometry, byzantine, generator)
        return 2 * torch.cat([weights, weights])


class Broken(Everywhere):
    """Weights that are not finite."""

    def mix(self, geometry, byzantine, generator):
        return torch.full((geometry.rows, geometry.rows), torch.nan).double()


class Single(Everywhere):
    """Mixtures in single precision."""

    def mix(self, geometry, byzantine, generator):
        return super().mix(geometry, byzantine, generator).float()


class Boundless(Everywhere):
    """It tolerates any number."""

    def most(self, n):
        return n + 1


test_every_pre_aggregator_keeps, test_a_wrong_pre_aggregator_is_rejected_by = contract_tests(
    "before",
    {
        composed(keeps_inputs_shapes_and_dtypes): [Broken()],
        composed(ignores_the_order_of_rows): [ByPlace()],
        composed(leaves_out_rows_that_cannot_be_computed_with): [Broken()],
        composed(aggregates_few_equal_and_no_rows): [Broken()],
        composed(stays_finite_under_long_rows): [Broken()],
        makes_as_many_mixtures_as_it_declares: [Longer(), Broken(), Single(), Boundless()],
        spoils_no_more_mixtures_than_rows: [Everywhere()],
    },
)
