"""Whether tests of a claim refute it, and whether they make it doubtful."""

from __future__ import annotations

from typing import Protocol

REFUTED_BELOW = 1e-6
"""The p-value, corrected over all tests, below which a claim is refuted."""


class HasPValue(Protocol):
    """The result of tests: a p-value that is corrected over all of them, and a confidence."""

    @property
    def p_value(self) -> float:
        """The smallest p-value, times the number of tests."""
        ...

    @property
    def confidence(self) -> float:
        """That of the bounds that are shown."""
        ...


class Verdicts:
    """What follows from a p-value, for whatever tested a claim."""

    @property
    def refuted(self: HasPValue) -> bool:
        """Whether the claim is refuted."""
        return self.p_value < REFUTED_BELOW

    @property
    def doubted(self: HasPValue) -> bool:
        """Whether the claim is refuted at the bounds' confidence, as some honest ones are."""
        return self.p_value < 1 - self.confidence
