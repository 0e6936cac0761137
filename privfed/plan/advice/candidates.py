"""The draws and mechanisms that are compared, as keys of a run file, all at one expected cohort."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from privfed.plan.advice.alternative import Unavailable

Keys = dict[str, Any]

_MOST_BANDS = 10_000
_WORK = 20_000_000
"""Bands times rounds that are solved for: some tenths of a second."""


def uneven(clients: int, size: int) -> tuple[Unavailable, ...]:
    """Draws by turns, which have no number where a cohort of `size` does not divide `clients`."""
    if clients % size == 0:
        return ()
    period = max(1, round(clients / size))
    why = (
        f"a client takes part once in a whole number of rounds, and {clients} clients are no whole "
        f"number of cohorts of {size}; once in {period} would be cohorts of {clients / period:.4g}"
    )
    return (Unavailable("cyclic and allocation", "any noise", why),)


def keys_to_compare(clients: int, size: int, rounds: int) -> Iterator[Keys]:
    """The keys of each, for a cohort of `size` expected of `clients`.

    Draws by slots are among them where the cohort divides the clients: a client then takes part
    once in clients / size rounds. A cyclic draw has as many bands as it allows, or fewer where
    solving for so many over `rounds` takes long.
    """
    for sampler in ("poisson", "fixed_size"):
        yield {"cohort.sampler": sampler, "cohort.size": size, "privacy.mechanism": "gaussian"}
    period, left = divmod(clients, size)
    if left:
        return
    bands = max(1, min(period, rounds, _MOST_BANDS, _WORK // rounds))
    cyclic = {"cohort.sampler": "cyclic", "cohort.separation": period}
    yield {**cyclic, "privacy.mechanism": "gaussian"}
    yield {**cyclic, "privacy.mechanism": "banded", "privacy.bands": bands}
    yield {**cyclic, "privacy.mechanism": "blt"}
    slots = {"cohort.sampler": "allocation", "cohort.slots": period}
    yield {**slots, "cohort.groups": 1, "privacy.mechanism": "gaussian"}
    yield {**slots, "cohort.groups": 0, "privacy.mechanism": "banded", "privacy.bands": 0}
