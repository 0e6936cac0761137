"""The draw of rounds that are charged one by one, beside others that hang together."""

from __future__ import annotations

from typing import Any

from privfed.sampling.cohort import Sampler
from privfed.sampling.samplers import Full


def independent_draw(sampler: Any, size: int, clients: int) -> Sampler:
    """The rule of `sampler` for rounds that hang together with no other, of `clients` declared.

    Cohorts are of `size`, or as large as the sampler's (0). Where its draws depend on each other
    (`remembers`), everybody takes part, so that each round is charged whole. Raises `Refused`.
    """
    chosen: Any = Full() if sampler.remembers else sampler
    if size:
        chosen = chosen.model_copy(update={"size": size})
    drawn: Sampler = chosen.of(clients)
    return drawn
