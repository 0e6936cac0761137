"""Which rounds of a run evaluate the model by clients, and do not train it.

The rule of a draw over a population of more clients than are declared: made-up ones beside them.

Rate and divisor stay those of the clients declared. A client's own coin or slot is the same,
whoever else there is; of a fixed number drawn a larger population makes a smaller share, whose
event is bounded by that of the share declared (`privfed.auditing.canaries.coins`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accounting.events import ADD_REMOVE
from accounting.releases import TruncatedPoisson
from privfed.sampling.cohort import Sampler, Witness
from privfed.sampling.samplers import Full, Poisson


def independent_draw(sampler: Any, size: int, clients: int) -> Sampler:
    """The rule of `sampler` for rounds that hang together with no other, of `clients` declared.

    Cohorts are of `size`, or as large as the sampler's (0). Where its draws depend on each other
    (`remembers`), and membership is public, everybody takes part, so that each round is charged
    whole; else each client by a coin of its own. Raises `Refused`.
    """
    chosen: Any = sampler
    if sampler.remembers:
        hidden = sampler.witness(1, clients).relation == ADD_REMOVE
        chosen = Poisson(size=sampler.size) if hidden else Full()
    if size:
        chosen = chosen.model_copy(update={"size": size})
    drawn: Sampler = chosen.of(clients)
    return drawn


def over_larger_population(witness: Witness, more: int) -> Witness:
    """The rule of a draw over so many clients `more` than it was declared for.

    A draw that is cut says of how many clients at most it is proved, and counts them in.
    """
    drawn = witness.release
    if not more or not isinstance(drawn, TruncatedPoisson):
        return witness
    clients = drawn.clients + more
    sampled: partial[TruncatedPoisson] = partial(TruncatedPoisson, drawn.rate, drawn.cap, clients)
    return replace(witness, sampled=sampled)


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
