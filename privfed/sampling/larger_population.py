"""The rule of a draw over a population of more clients than are declared: made-up ones beside them.

Rate and divisor stay those of the clients declared. A client's own coin or slot is the same,
whoever else there is; of a fixed number drawn a larger population makes a smaller share, whose
event is bounded by that of the share declared (`privfed.auditing.canaries.coins`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from accounting.releases import TruncatedPoisson
from privfed.sampling.cohort import Witness


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
