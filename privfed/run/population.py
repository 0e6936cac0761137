"""Loads the population of a configuration: the clients, and the test set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.population import populate
from privfed.data.sites import Sites
from privfed.data.source import DeclaresExamples
from privfed.data.sources.declared_examples import declared_example
from privfed.data.sources.declared_table import DeclaredTable

Loader = Callable[[Config, Streams], Federation]

_FEW = 256
"""Number of synthetic clients that represent any number of clients."""


def protected(config: Config) -> bool:
    """Whether the mechanism for clients, or that for single examples of silos, is private."""
    return bool(config.mechanism.private or config.client_mechanism.private)


def sites_of(config: Config) -> Sites:
    """The sites that `config` declares."""
    data = config.data
    return Sites(data.sites, data.sites_per_client, data.site_partition)


def represented(config: Config) -> bool:
    """Whether plans represent all clients by fewer: there are more than `_FEW`, all synthetic."""
    return config.data.clients > _FEW and not config.source.holds_real_clients


def load_population(config: Config, streams: Streams) -> Federation:
    """Loads the clients and the test set that `config` names.

    Raises `Refused` if the source cannot be read, or does not fit the configuration.
    """
    if config.at_remote_sites:
        raise Refused(
            'data.site_partition is "elsewhere", but then clients are at sites on machines of '
            "their own, and no data are on this machine; use `privfed federation run`, or simulate "
            "sites with another value",
            key="data.site_partition",
        )
    return _population(config, streams, config.data.clients)


def load_representatives(config: Config, streams: Streams) -> Federation:
    """Loads a population for plans and forecasts, in which at most 256 clients represent all.

    Clients that a source identifies, as in a file, are all loaded, so that invalid contents are
    refused. Clients at remote sites are represented by one example (`load_empty`). Raises `Refused`
    as `load_population` does.
    """
    clients = config.data.clients
    if config.at_remote_sites:
        return load_empty(config, streams)
    if clients <= _FEW or (config.source.holds_real_clients and config.partition.natural):
        return load_population(config, streams)
    return _population(config, streams, _FEW)


def load_empty(config: Config, streams: Streams) -> Federation:
    """Loads the public test set, and one example that represents all clients of remote sites.

    The example is taken from the test set or, if no example is public, synthesised from the
    declaration. Raises `Refused` if the test set or the declaration is missing.
    """
    test = config.source.load_test(max(round(config.data.holdout_fraction), 1), streams)
    if config.nothing_public:
        example, typical = _declared(config), None
        test = example.take(np.empty(0, dtype=np.int64))
    elif test is None:
        raise Refused(
            "data.holdout needs test examples, but a coordinator has no client's data; name a "
            "public test set (data.test_path of a table), or let clients evaluate: data.holdout = "
            '"none" and evaluation.by = "clients"'
        )
    else:
        example = test.take(np.zeros(1, dtype=np.int64))
        typical = float(len(test)) / max(config.data.clients, 1)
    return Federation(
        example,
        np.array([0, 1]),
        test,
        typical=typical,
        stands_for=config.data.clients,
    ).with_root_set(*_public_examples(config))


def _public_examples(config: Config) -> tuple[int, str]:
    """Returns the number of public test examples that are not used for evaluation, and its key."""
    if config.compression.public:
        return config.compression.public, "compression.examples"
    return config.aggregation.root, "aggregation.root"


def _declared(config: Config) -> Examples:
    """One example of the form that the source declares. Raises `Refused` without a declaration."""
    if isinstance(config.source, DeclaresExamples):
        return config.source.declared_example()
    if not isinstance(config.source, DeclaredTable):
        raise Refused(
            f'data.holdout is "none", but data.source = {config.names["source"]!r} does not '
            "declare the form of an example; name a public test set"
        )
    return declared_example(config.source)


def _population(config: Config, streams: Streams, few: int) -> Federation:
    federation = populate(
        config.source,
        config.partition,
        config.data.clients,
        config.data.holdout_fraction,
        streams,
        config.data.holdout,
        protected=protected(config),
        few=few,
        sites=sites_of(config),
    )
    shifted: Federation = config.shift.apply(federation, streams)
    return shifted.with_root_set(*_public_examples(config))
