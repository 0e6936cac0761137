"""How long the largest cohort that a site may draw takes, before anything is asked of it.

It is rehearsed with made-up people, as many and with as many rows as the site states in public, so
that whether it fits says nothing of who is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy import stats

from privfed.data.federation import Federation
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind
from privfed.run.setup import Setup

_NEVER = 1e-12
"""The probability of a larger cohort than is rehearsed."""
_CHUNKS = 2
"""So many chunks are trained; the others take as long."""


def largest_cohort(setup: Setup, clients: int) -> int:
    """How many of so many `clients` are drawn at most, but for a probability of 1e-12 a round."""
    rate = setup.plan.cost.witness.rate
    if rate >= 1.0:
        return clients
    return int(min(clients, stats.binom.isf(_NEVER, clients, rate) + 1))


def rehearsed_seconds(
    site: int, setup: Setup, table: SiteTable, clock: Callable[[], float] = time.perf_counter
) -> float:
    """How long an exchange takes about the largest cohort of a site, with a row at each bound."""
    largest = largest_cohort(setup, table.clients)
    people = min(largest, _CHUNKS * setup.executor.chunk)
    work = SiteWork(site, setup.over(_made_up(setup, people, table.rows)), everybody=True)
    longest = 0.0
    for question in questions_of_each_kind(setup):
        began = clock()
        rehearsed = work.row if setup.plan.config.secured else work.plain_sum
        rehearsed(question)
        longest = max(longest, clock() - began)
    return longest * math.ceil(largest / people)


def _made_up(setup: Setup, people: int, rows: int) -> Federation:
    """So many `people` with so many `rows` each, who are nobody."""
    federation = setup.federation
    x, y = federation.examples.made_up(people * rows)
    return replace(
        federation,
        examples=replace(federation.examples, x=x, y=y, owners=None, sites=None),
        offsets=np.arange(people + 1, dtype=np.int64) * rows,
        identities=None,
        sites=np.zeros(people, dtype=np.int64),
    )
