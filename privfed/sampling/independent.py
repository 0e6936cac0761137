"""The draw of rounds that are charged one by one, beside others that hang together."""

from __future__ import annotations

from typing import Any

from accounting.events import ADD_REMOVE
from privfed.sampling.cohort import Sampler
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
