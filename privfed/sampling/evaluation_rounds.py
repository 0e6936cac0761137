"""Which rounds of a run evaluate the model by clients, and do not train it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationRounds:
    """The rounds that `every` divides; none where it is 0.

    A round either trains or evaluates, so that it has one charge, one draw and one release. Which
    of the two does not change where a run goes on for more rounds.
    """

    every: int

    def __contains__(self, round: int) -> bool:
        return self.every > 0 and round % self.every == 0

    def among(self, rounds: int) -> int:
        """How many of the first `rounds` rounds evaluate."""
        return rounds // self.every if self.every else 0

    def turn(self, round: int) -> int:
        """Which round of its kind `round` is, counted from 1, without gaps."""
        evaluated = self.among(round)
        return evaluated if round in self else round - evaluated
