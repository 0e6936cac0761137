"""The sites of clients' examples: stated by the source, or simulated before training.

A site has the data of many clients, as a hospital has those of its patients. The number of sites,
and the largest number of sites per client, are declared. Simulated sites are determined by the
run's seed. A client's simulated sites do not depend on other clients, except with "even", which
assigns sites to all clients in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.streams import Reals, Streams, Words, uniforms
from privfed.core.vector import Indices
from privfed.data.federation import Examples, client_number

_CONCENTRATION = 0.5
"""Dirichlet concentration of a label's distribution over sites."""
_APART = np.int64(0x1E3779B97F4A7C15)
"""Multiplier of an example's index; with the client's identity added it numbers the example."""


@dataclass(frozen=True)
class Sites:
    """The declaration of sites.

    Attributes:
      count: number of sites; 0 if there are none.
      per_client: largest number of sites at which a client has examples.
      partition: assignment of clients to simulated sites: "even" (clients in random order, sites in
        turn), "size" (sites drawn with probabilities proportional to 1, 1/2, 1/3, …), "label"
        (drawn by a Dirichlet distribution of the client's most frequent label), or "elsewhere"
        (sites on their own machines).
    """

    count: int
    per_client: int = 1
    partition: Literal["even", "size", "label", "elsewhere"] = "even"


NO_SITES = Sites(0)


@dataclass(frozen=True)
class Entries:
    """The client and site of each entry; an entry is one client at one of its sites.

    `owners` `[N]` is the entry of each example; `sites` and `persons` `[entries]` are the site and
    the client of each entry, ordered by client, then site.
    """

    owners: Indices
    sites: Indices
    persons: Indices


def refuse_undeclared(pool: Examples, assigns: bool, sites: Sites) -> None:
    """Raises `Refused` if the source states sites, but the configuration contradicts them.

    That is, if more sites occur than `sites` declares, `sites.partition` is not "even", or the
    partition changes owners.

    Args:
      pool: all examples of the source.
      assigns: whether the partition assigns examples to clients other than their owners.
      sites: the declared sites.
    """
    if pool.sites is None:
        return
    if not sites.count:
        raise Refused(
            "data.sites is 0, but this source states the site of each row; set data.sites to the "
            "number of sites, a public constant"
        )
    there = len(pool.site_names) or int(pool.sites.max(initial=-1)) + 1
    if there > sites.count:
        raise Refused(
            f"data.sites is {sites.count}, but rows are at more sites; raise data.sites, a public "
            "constant, to the number of all sites",
            private=f"there are {there}: {', '.join(map(repr, pool.site_names[:20]))}",
        )
    if sites.partition != "even":
        raise Refused(
            f'data.site_partition is "{sites.partition}", which creates synthetic sites, but '
            "this source states the site of each row; remove the key"
        )
    if assigns:
        raise _assigned()


def known_entries(
    pool: Examples, train: Examples, owners: Indices, clients: int, sites: Sites
) -> Entries:
    """Returns the entries of `train`, the training examples in `pool`, at the source's sites.

    A client that trains has an entry for each of its sites, even if all its examples there are held
    out, and one at site 0 if it has no example at all.

    Args:
      pool: all examples of the source.
      train: the training examples.
      owners: owners that the partition assigns to `train`, shape [N], below `clients`.
      clients: number of clients.
      sites: the declared sites.

    Raises:
      Refused: if examples have no owners or sites, or are assigned to other clients than the source
        states, or a client is at more sites than declared.
    """
    if pool.owners is None or pool.sites is None or train.sites is None:
        raise _assigned()
    if train.owners is None or (owners != train.owners).any():
        raise _assigned()
    persons, places = np.divmod(np.unique(pool.owners * sites.count + pool.sites), sites.count)
    _refuse_at_too_many(pool, persons, places, sites)
    if train.clients != pool.clients:
        left = {name: number for number, name in enumerate(train.clients)}
        number = np.array([left.get(name, -1) for name in pool.clients], dtype=np.int64)
        trains = number[persons] >= 0
        persons, places = number[persons[trains]], places[trains]
    nowhere = np.setdiff1d(np.arange(clients), persons)  # a client without rows is put at site 0
    held = np.sort(np.concatenate([persons * sites.count + places, nowhere * sites.count]))
    entry = np.searchsorted(held, owners * sites.count + train.sites)
    return Entries(entry, held % sites.count, held // sites.count)


def _assigned() -> Refused:
    return Refused(
        "this source states the site of each row, but the rows are partitioned over synthetic "
        'clients, which are at no site; use data.partition = "natural", with a column of clients '
        "(data.client), or leave the column of sites out: data.sites creates synthetic sites"
    )


def _refuse_at_too_many(pool: Examples, persons: Indices, places: Indices, sites: Sites) -> None:
    """Raises `Refused` if a client has rows at more sites than declared."""
    counts = np.bincount(persons)
    if counts.max(initial=0) <= sites.per_client:
        return
    first = int(np.argmax(counts > sites.per_client))
    who = repr(pool.clients[first]) if pool.clients else f"number {first}"
    at = places[persons == first].tolist()
    shown = [repr(pool.site_names[site]) if pool.site_names else str(site) for site in at]
    raise Refused(
        f"data.sites_per_client is {sites.per_client}, but a client has rows at more sites; raise "
        "data.sites_per_client, a public constant, to the largest number of sites at which a "
        "client may have rows",
        private=f"client {who} has rows at {', '.join(shown[:20])}",
    )


def synthetic_entries(
    examples: Examples,
    owners: Indices,
    identities: Indices,
    sites: Sites,
    streams: Streams,
) -> Entries:
    """Returns entries of the clients `identities`, each at `per_client` simulated sites.

    The first site is drawn by the rule of `sites`, further sites uniformly. Each example of a
    client, by `owners` `[N]`, is assigned to one of its sites at random; an entry may have no
    example.

    Raises:
      Refused: if the rule is "label", but `examples` have no class labels.
    """
    words = streams.at("sites", 0, identities).per_client(sites.per_client)
    at = _homes(examples, owners, words[:, 0], sites, streams)[:, None]
    for word in words.T[1:]:
        further = np.floor(uniforms(word) * (sites.count - at.shape[1])).astype(np.int64)
        for taken in at.T:  # in ascending order
            further += further >= taken
        at = np.sort(np.concatenate([at, further[:, None]], axis=1), axis=1)
    persons = np.repeat(np.arange(len(identities)), sites.per_client)
    return Entries(_assigned_by_chance(owners, identities, sites, streams), at.reshape(-1), persons)


def _homes(
    examples: Examples, owners: Indices, words: Words, sites: Sites, streams: Streams
) -> Indices:
    """Returns each client's first site, by its random integer in `words` (both `[clients]`).

    `sites` determines the rule. For "label", the distribution of a label over sites is drawn from
    `streams`.
    """
    if sites.partition == "even":
        turn = np.empty(len(words), dtype=np.int64)
        turn[np.argsort(words, kind="stable")] = np.arange(len(words))
        return turn % sites.count
    if sites.partition == "size":
        return _drawn(1.0 / np.arange(1, sites.count + 1), words)
    labels = _most_frequent(examples, owners, len(words))
    rng, homes = streams.at("sites/labels").generator(), np.empty(len(words), dtype=np.int64)
    shares = rng.dirichlet(np.full(sites.count, _CONCENTRATION), examples.classes)
    for label in np.unique(labels):
        homes[labels == label] = _drawn(shares[label], words[labels == label])
    return homes


def _drawn(shares: Reals, words: Words) -> Indices:
    """Returns a site for each random integer in `words` `[n]`, drawn in proportion to `shares`."""
    ends = np.cumsum(shares) / shares.sum()
    return np.minimum(np.searchsorted(ends, uniforms(words), side="right"), len(shares) - 1)


def _most_frequent(examples: Examples, owners: Indices, clients: int) -> Indices:
    """Returns each client's most frequent label `[clients]`, the smallest among ties.

    For a client without examples the result is 0. Raises `Refused` if examples have no class
    labels.
    """
    y, classes = examples.y, examples.classes
    if y.dim() != 1 or y.dtype != torch.int64 or classes < 2:
        raise Refused(
            'data.site_partition is "label", which assigns clients to sites by each client\'s '
            'most frequent class, but these examples have no class labels; use "even" or "size"'
        )
    held, counts = np.unique(owners * classes + y.numpy(), return_counts=True)
    order = np.lexsort((held, -counts))[::-1]  # the most frequent label is written last
    labels = np.zeros(clients, dtype=np.int64)
    labels[held[order] // classes] = held[order] % classes
    return labels


def _assigned_by_chance(
    owners: Indices, identities: Indices, sites: Sites, streams: Streams
) -> Indices:
    """Returns a random entry of the same client for each example `[N]`."""
    if sites.per_client == 1:
        return owners
    numbers = identities[owners] + earlier_sums(np.ones_like(owners), owners) * _APART
    words = streams.at("sites/examples", 0, numbers).per_client(1)[:, 0]
    return owners * sites.per_client + np.floor(uniforms(words) * sites.per_client).astype(np.int64)


def earlier_sums(amounts: Indices, owners: Indices) -> Indices:
    """Returns for each example `[N]` the sum of `amounts` over its owner's preceding examples.

    Args:
      amounts: one number for each example, shape [N].
      owners: client of each example, shape [N].
    """
    order = np.argsort(owners, kind="stable")
    earlier = np.cumsum(amounts[order]) - amounts[order]
    _, first, counts = np.unique(owners[order], return_index=True, return_counts=True)
    sums = np.empty_like(earlier)
    sums[order] = earlier - np.repeat(earlier[first], counts)
    return sums


def entry_identities(
    entries: Entries, clients: tuple[str, ...], site_names: tuple[str, ...], sites: Sites
) -> Indices | None:
    """Returns entries' identities, which key random streams; None if clients have no names.

    An identity depends only on the names of client and site; if `sites.per_client` is 1, on the
    client's name alone.

    Args:
      entries: the entries of the store.
      clients: names of the clients.
      site_names: names of the sites; empty if they have only numbers.
      sites: the declared sites.
    """
    if not clients:
        return None
    if sites.per_client == 1:
        return np.array([client_number(name) for name in clients], dtype=np.int64)
    pairs = zip(entries.persons.tolist(), entries.sites.tolist(), strict=True)
    names = (_name(clients[who], site_names[at] if site_names else f"{at}") for who, at in pairs)
    return np.array([client_number(name) for name in names], dtype=np.int64)


def _name(client: str, site: str) -> str:
    """Returns a name for the rows of `client` at `site`, unique to this pair."""
    return f"{len(client)} {client} at {site}"
