"""A run as one site sets it up, from its declaration and from the site's own files.

How long the largest cohort that a site may draw takes, before anything is asked of it.

It is rehearsed with made-up people, as many and with as many rows as the site states in public, so
that whether it fits says nothing of who is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy import stats
from torch import Tensor

from privfed.config.config import Config
from privfed.config.reading import read_resolved
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import Federation
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.deploy.site.people import nobody
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind
from privfed.run.prepare import prepare
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


def site_config(text: str, table: SiteTable) -> Config:
    """The run file `text` as a site goes by it: where its data and files lie is the site's matter.

    Raises `Refused` for what is no run file, and `Declined` where the run is not about a table.
    """
    config = read_resolved(text, "the run")
    source = config.parts["source"]
    if not {*table.settled} <= {*type(source).model_fields}:
        raise Declined(Refusal(Code.SOURCE, "the run's data are no table; a site has a table"))
    if config.data.sites_per_client < table.sites_per_client:
        raise Declined(
            Refusal(
                Code.CLIENT,
                f"data.sites_per_client is {config.data.sites_per_client}; people of this site may "
                f"have rows at {table.sites_per_client} sites",
            )
        )
    there: Any = _with_keys(source, table.settled)
    return replace(
        config,
        source=there,
        data=config.data.model_copy(update={"site_partition": "elsewhere"}),
        run=config.run.model_copy(
            update={"heads": "", "watch": [], "device": table.device, "threads": table.threads}
        ),
        start=config.start.model_copy(update={"init": "", "fresh": []}),
        privacy=config.privacy.model_copy(update={"prior": [], "disjoint": []}),
    )


def _with_keys(source: Part, keys: Mapping[str, Any]) -> Part:
    """The source with other `keys`, which go together. Raises `Refused` where they do not."""
    try:
        return type(source).model_validate({**source.model_dump(), **keys})
    except ValidationError as error:
        raise Refused("the run's columns do not go with this site's client column") from error


def bare_setup(config: Config, form: ExampleForm, constants: Mapping[str, Tensor] | None) -> Setup:
    """Plan and model of the run, over somebody made up: what follows from public facts alone.

    They are the same at every site. `constants` are what the model does not train, as they were
    declared; None: as they are built here. Raises `Refused`.
    """
    return prepare(config, constants=constants, load=lambda config, _: nobody(config, form, 1))
