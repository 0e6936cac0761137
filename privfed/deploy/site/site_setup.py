"""A run as one site sets it up, from its declaration and the site's own files.

It also measures the time of the largest cohort that a site may sample, before any question.

The rehearsal uses synthetic clients, as many and with as many rows as the site states publicly, so
that its result reveals nothing about the actual clients.
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
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.deploy.site.population import synthetic_clients
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind
from privfed.run.prepare import prepare
from privfed.run.setup import Setup

_EXCEEDED = 1e-12
"""The probability of a larger cohort than is rehearsed."""
_CHUNKS = 2
"""Number of chunks that are trained; the others take as long."""


def largest_cohort(setup: Setup, clients: int) -> int:
    """Returns a cohort size that is exceeded with probability at most 1e-12 per round."""
    rate = setup.plan.cost.witness.rate
    if rate >= 1.0:
        return clients
    return int(min(clients, stats.binom.isf(_EXCEEDED, clients, rate) + 1))


def rehearsed_seconds(
    site: int, setup: Setup, table: SiteTable, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the seconds of the slowest exchange for a site's largest cohort with maximal rows."""
    largest = largest_cohort(setup, table.clients)
    clients = min(largest, _CHUNKS * setup.executor.chunk)
    work = SiteWork(site, setup.over(_made_up(setup, clients, table.rows)), all_clients=True)
    longest = 0.0
    for question in questions_of_each_kind(setup):
        began = clock()
        rehearsed = work.row if setup.plan.config.secured else work.plain_sum
        rehearsed(question)
        longest = max(longest, clock() - began)
    return longest * math.ceil(largest / clients)


def _made_up(setup: Setup, clients: int, rows: int) -> Federation:
    """Returns `clients` synthetic clients with `rows` rows each."""
    federation = setup.federation
    x, y = federation.examples.made_up(clients * rows)
    return replace(
        federation,
        examples=replace(federation.examples, x=x, y=y, owners=None, sites=None),
        offsets=np.arange(clients + 1, dtype=np.int64) * rows,
        identities=None,
        sites=np.zeros(clients, dtype=np.int64),
    )


def site_config(text: str, table: SiteTable) -> Config:
    """Returns the configuration of the run file `text` with the site's own data and file paths.

    Raises:
      Refused: if it is no valid run file.
      Declined: if the run's data are no table, or clients may be at more sites than it allows.
    """
    config = read_resolved(text, "the run")
    source = config.parts["source"]
    if not {*table.settled} <= {*type(source).model_fields}:
        raise Declined(Refusal(Code.SOURCE, 'data.source is not "table", but a site has a table'))
    if config.data.sites_per_client < table.sites_per_client:
        raise Declined(
            Refusal(
                Code.CLIENT,
                f"data.sites_per_client is {config.data.sites_per_client}, but clients of this "
                f"site may have rows at {table.sites_per_client} sites",
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
    """Returns the source with other `keys`. Raises `Refused` if they do not fit."""
    try:
        return type(source).model_validate({**source.model_dump(), **keys})
    except ValidationError as error:
        raise Refused(
            "the run's columns include this site's client column; remove that column from the "
            "run's features and label"
        ) from error


def bare_setup(config: Config, form: ExampleForm, constants: Mapping[str, Tensor] | None) -> Setup:
    """Returns plan and model of the run over one synthetic client, from public facts alone.

    They are the same at every site. `constants` are the declared untrained tensors of the model;
    None builds them here. Raises `Refused`.
    """
    return prepare(
        config, constants=constants, load=lambda config, _: synthetic_clients(config, form, 1)
    )
