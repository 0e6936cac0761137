"""Thresholds at which tests refute a claim or cast doubt on it."""

from __future__ import annotations

from typing import Protocol

REFUTED_BELOW = 1e-6
"""P-value, corrected over all tests, below which a claim is refuted."""


class HasPValue(Protocol):
    """A test result: a p-value corrected over all tests, and a confidence."""

    @property
    def p_value(self) -> float:
        """Smallest p-value, times the number of tests."""

    @property
    def confidence(self) -> float:
        """Confidence of the reported bounds."""


class Verdicts:
    """Mixin with the verdicts that follow from a test result's `p_value` and `confidence`."""

    @property
    def refuted(self: HasPValue) -> bool:
        """Whether the claim is refuted: the p-value is below `REFUTED_BELOW`."""
        return self.p_value < REFUTED_BELOW

    @property
    def doubted(self: HasPValue) -> bool:
        """Whether the p-value is below 1 - `confidence`, which also occurs for some true claims."""
        return self.p_value < 1 - self.confidence
