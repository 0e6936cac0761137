"""Rounds of a run that evaluate the model on clients instead of training it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accounting.events import ADD_REMOVE
from privfed.sampling.cohort import Sampler
from privfed.sampling.samplers import Full, Poisson


def independent_draw(sampler: Any, size: int, clients: int) -> Sampler:
    """Returns `sampler`, or a replacement whose samples are independent between rounds.

    A sampler with independent samples is returned unchanged. A sampler whose samples depend on each
    other (`remembers`) is replaced: under add/remove by Poisson sampling, and if membership is
    public by full participation, so that each round is charged in full.

    Args:
      sampler: the run's sampler.
      size: expected cohort size of the result; 0 for that of `sampler`, or for all clients under
        full participation.
      clients: declared number of clients.

    Raises:
      Refused: if the resulting sampler contradicts the number of clients.
    """
    chosen: Any = sampler
    if sampler.remembers:
        hidden = sampler.witness(1, clients).relation == ADD_REMOVE
        chosen = Poisson(size=sampler.size) if hidden else Full()
    if size:
        chosen = chosen.model_copy(update={"size": size})
    drawn: Sampler = chosen.of(clients)
    return drawn


@dataclass(frozen=True)
class EvaluationRounds:
    """The rounds that are multiples of `every`; none if `every` is 0.

    A round either trains or evaluates, so it has one charge, one sample and one release. The
    kind of a round does not change if a run is continued for more rounds.
    """

    every: int

    def __contains__(self, round: int) -> bool:
        return self.every > 0 and round % self.every == 0

    def among(self, rounds: int) -> int:
        """Returns the number of evaluation rounds among the first `rounds` rounds."""
        return rounds // self.every if self.every else 0

    def turn(self, round: int) -> int:
        """Returns the position, from 1, of `round` among the rounds of its kind.

        The two kinds are training and evaluation rounds.
        """
        evaluated = self.among(round)
        return evaluated if round in self else round - evaluated
