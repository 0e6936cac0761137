"""What every pre-aggregator keeps: what follows it is as robust as it declares."""

import torch
from contracts.registered import contract_tests

from defenses.before.nnm import NearestNeighbourMixing
from defenses.testing import (
    COMPOSED_CHECKS,
    IN_ANY_ORDER,
    makes_as_many_mixtures_as_it_declares,
    spoils_no_more_mixtures_than_rows,
)
from defenses.weighing import PreAggregator


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
        **{each: [Broken()] for each in COMPOSED_CHECKS},
        IN_ANY_ORDER: [ByPlace()],
        makes_as_many_mixtures_as_it_declares: [Longer(), Broken(), Single(), Boundless()],
        spoils_no_more_mixtures_than_rows: [Everywhere()],
    },
)
