"""Sets up a run at one site, from the run's declaration and the site's own files.

Before any question, a rehearsal measures the training time of the largest cohort that a site may
sample. It uses synthetic clients whose number and rows are the bounds in data.toml, so its result
reveals nothing about the actual clients.
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
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.deploy.site.population import most_examples, synthetic_clients
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind
from privfed.run.prepare import prepare
from privfed.run.setup import PUBLIC, Setup

_EXCEEDED = 1e-12
"""Largest probability per round of a cohort that is larger than the rehearsed one."""
_MARGIN = 2.0
"""Smallest permitted ratio of `secure.deadline` to the rehearsed time of the largest cohort."""
_MOST_FEATURES = 1 << 28
"""Largest number of values in the features of public examples."""
_CHUNKS = 2
"""Largest number of chunks that a rehearsal trains; the time of further chunks is extrapolated."""


def largest_cohort(setup: Setup, clients: int) -> int:
    """Returns a cohort size that a site exceeds with probability at most 1e-12 per round.

    It is at most `clients`.

    Args:
      setup: the run, with its sampling rate.
      clients: number of clients at the site.
    """
    rate = setup.plan.cost.witness.rate
    if rate >= 1.0:
        return clients
    return int(min(clients, stats.binom.isf(_EXCEEDED, clients, rate) + 1))


def rehearsed_seconds(
    site: int, setup: Setup, table: SiteTable, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the seconds of the slowest sum of a round for the largest cohort (`largest_cohort`).

    They are measured on synthetic clients: at most two chunks (clients trained together), from
    which larger cohorts are extrapolated.

    Args:
      site: number of the site.
      setup: the run.
      table: bounds on the number of clients, and on the rows of each.
      clock: returns the time in seconds.
    """
    largest = largest_cohort(setup, table.clients)
    clients = min(largest, _CHUNKS * setup.executor.chunk)
    rows = most_examples(setup.plan.config, table)
    work = SiteWork(site, setup.over(_synthetic_population(setup, clients, rows)), all_clients=True)
    empty = SiteWork(site, setup.over(_synthetic_population(setup, 0, rows)), all_clients=True)
    longest = 0.0
    for question in questions_of_each_kind(setup):
        empty.rehearse(question)  # builds the tables of the noise, which stay in memory
        began = clock()
        work.rehearse(question)
        longest = max(longest, clock() - began)
    return longest * math.ceil(largest / clients)


def _synthetic_population(setup: Setup, clients: int, rows: int) -> Federation:
    """Returns `clients` synthetic clients with `rows` rows each."""
    federation = setup.federation
    x, y = federation.examples.synthetic(clients * rows)
    return replace(
        federation,
        examples=replace(federation.examples, x=x, y=y, owners=None, sites=None),
        offsets=np.arange(clients + 1, dtype=np.int64) * rows,
        identities=None,
        sites=np.zeros(clients, dtype=np.int64),
    )


def site_config(text: str, table: SiteTable) -> Config:
    """Returns the configuration of the run file `text`, with the site's own table and device.

    Keys that concern only the coordinator are cleared: `heads` and `watch` of [run], the initial
    model, and `prior` and `disjoint` of [privacy].

    Raises:
      Refused: if the run file is invalid, or its columns include the site's client column.
      Declined: if the run's source is not a table, or the site's clients may be at more sites than
        `data.sites_per_client`.
    """
    config = read_resolved(text, "the run")
    source = config.parts["source"]
    if not {*table.format} <= {*type(source).model_fields}:
        raise Declined(
            Refusal(
                Code.SOURCE,
                'data.source is not "table", but sites have tables; the run has to set data.source '
                '= "table"',
            )
        )
    if config.data.sites_per_client < table.sites_per_client:
        raise Declined(
            Refusal(
                Code.CLIENT,
                f"data.sites_per_client is {config.data.sites_per_client}, but clients of this "
                f"site may have rows at {table.sites_per_client} sites; the run has to raise "
                "data.sites_per_client",
            )
        )
    there: Any = _with_keys(source, table.settled)
    machine = {"device": table.device, "threads": table.threads}
    return away_from_server(
        replace(config, source=there, run=config.run.model_copy(update=machine))
    )


def away_from_server(config: Config) -> Config:
    """Returns the run without the keys that concern only the server, and without its files."""
    return replace(
        config,
        data=config.data.model_copy(update={"site_partition": "elsewhere"}),
        run=config.run.model_copy(update={"heads": "", "watch": []}),
        start=config.start.model_copy(update={"init": "", "fresh": []}),
        privacy=config.privacy.model_copy(update={"prior": [], "disjoint": []}),
    )


def _with_keys(source: Part, keys: Mapping[str, Any]) -> Part:
    """Returns `source` with the values in `keys` of those keys that it has.

    Raises `Refused` if the result is invalid: the client column is a column of the run.
    """
    there = {key: keys.get(key, value) for key, value in source.model_dump().items()}
    try:
        return type(source).model_validate(there)
    except ValidationError as error:
        raise Refused(
            "the run's columns include this site's client column; remove that column from the "
            "run's features and label"
        ) from error


def bare_setup(config: Config, form: ExampleForm, constants: Mapping[str, Tensor] | None) -> Setup:
    """Returns the run's plan and model over one synthetic client; all sites compute the same.

    Args:
      config: the run.
      form: shapes and types of examples.
      constants: declared tensors of the model that are not trained, and features of public
        examples; None builds them, and uses zeros as such features.

    Raises:
      Refused: if the run is not permitted.
    """
    public = _public_examples(config, form, constants)
    if constants is not None:
        constants = {name: value for name, value in constants.items() if name != PUBLIC}

    def load(config: Config, _: Streams) -> Federation:
        return replace(synthetic_clients(config, form, 1), root=public)

    return prepare(config, constants=constants, load=load)


def _public_examples(
    config: Config, form: ExampleForm, constants: Mapping[str, Tensor] | None
) -> Examples | None:
    """Returns the public examples with the declared features; None if the run has none.

    Without declared `constants`, all features are zero. Raises `Refused` if features are missing,
    have another shape or type, or are too many.
    """
    if not (count := config.compression.public):
        return None
    if count * math.prod(form.x) > _MOST_FEATURES:
        raise Refused(
            f"compression.examples is {count}, but a site holds at most {_MOST_FEATURES:,} values "
            f"of public examples, each of shape {list(form.x)}; lower compression.examples"
        )
    public = form.zeros(count)
    if constants is None:
        return public
    if (x := constants.get(PUBLIC)) is None:
        raise Refused("the declaration lacks the public examples; the coordinator has to add them")
    if (x.shape, x.dtype) != (public.x.shape, public.x.dtype):
        raise Refused(
            f"the declared public examples have shape {list(x.shape)}, but compression.examples = "
            f"{count} examples have {list(public.x.shape)}; the coordinator has to declare these"
        )
    return replace(public, x=x)


def too_slow(seconds: float, deadline: float, rounds: int = 1) -> Refusal | None:
    """Returns a refusal unless `rounds` deadlines are at least twice `seconds`, which are positive.

    Args:
      seconds: measured seconds of the slowest sum over the largest cohort.
      deadline: `secure.deadline` in seconds; 0 if the run sets none, which is refused.
      rounds: number of deadlines that training may take.
    """
    if rounds * deadline >= _MARGIN * seconds > 0.0:
        return None
    return Refusal(
        Code.DEADLINE,
        f"secure.deadline is {deadline:g} s, but training the largest cohort takes {seconds:.3g} "
        "s here, and a late answer would reveal the cohort's size; the run has to set "
        f"secure.deadline to at least {_MARGIN * seconds / rounds:.3g}, or this site's entry of "
        f"data.site_delays to at least {_MARGIN * seconds / max(deadline, 1e-9):.0f} rounds",
    )
