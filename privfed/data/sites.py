"""At which sites clients have their rows: as the source says, or made up before training.

A site holds clients, as a hospital does patients. How many there are, and at how many of them one
client may have rows, is declared. What is made up follows from the run's seed, and what is made up
of a client from its own identity, but that sites of even size are dealt over all clients.
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
"""Of the Dirichlet draw of the shares in which sites hold clients of a label."""
_APART = np.int64(0x1E3779B97F4A7C15)
"""What a client's own examples are numbered by, so that no other client's are numbered alike."""


@dataclass(frozen=True)
class Sites:
    """`count` sites are declared, and that a client has rows at `per_client` of them at most.

    `partition` says how clients are dealt to sites where the source does not know it: "even" (in a
    random order, in turn), "size" (each by shares 1, 1/2, 1/3, …), or "label" (each by shares that
    a Dirichlet variable gave its most frequent label).
    """

    count: int
    per_client: int = 1
    partition: Literal["even", "size", "label", "elsewhere"] = "even"


NO_SITES = Sites(0)


@dataclass(frozen=True)
class Entries:
    """Which client's rows each entry of the store holds, at which site.

    `owners` `[N]` is the entry of each example; `sites` and `persons` `[entries]` are the site of
    each entry and its client, in rising order.
    """

    owners: Indices
    sites: Indices
    persons: Indices


def refuse_undeclared(pool: Examples, deals: bool, sites: Sites) -> None:
    """Raises `Refused` where the source knows sites, and they are not declared as they are.

    Nor may the partition be one that `deals` rows to others than those whose they are.
    """
    if pool.sites is None:
        return
    if not sites.count:
        raise Refused(
            "data.sites is 0, but this source says at which site each row is; declare data.sites, "
            "a public constant: how many sites there are"
        )
    there = len(pool.site_names) or int(pool.sites.max(initial=-1)) + 1
    if there > sites.count:
        raise Refused(
            f"data.sites declares {sites.count} sites, and rows are at more of them; raise "
            "data.sites, a public constant, to the number of all sites",
            private=f"there are {there}: {', '.join(map(repr, pool.site_names[:20]))}",
        )
    if sites.partition != "even":
        raise Refused(
            f'data.site_partition is "{sites.partition}", which makes sites up, but this source '
            "says at which site each row is; remove the key"
        )
    if deals:
        raise _dealt()


def known_entries(
    pool: Examples, train: Examples, owners: Indices, clients: int, sites: Sites
) -> Entries:
    """The entries of `train`, the part of `pool` that trains, at the sites where the rows are.

    `owners` `[N]` are those that the partition gives to `train`, below `clients`. A client all of
    whose rows were set apart keeps its sites. Raises `Refused` where rows are dealt to others than
    the source's own clients, and for a client at more sites than are declared.
    """
    if pool.owners is None or pool.sites is None or train.sites is None:
        raise _dealt()
    if train.owners is None or (owners != train.owners).any():
        raise _dealt()
    persons, places = np.divmod(np.unique(pool.owners * sites.count + pool.sites), sites.count)
    _refuse_at_too_many(pool, persons, places, sites)
    if train.clients != pool.clients:
        left = {name: number for number, name in enumerate(train.clients)}
        number = np.array([left.get(name, -1) for name in pool.clients], dtype=np.int64)
        trains = number[persons] >= 0
        persons, places = number[persons[trains]], places[trains]
    nowhere = np.setdiff1d(np.arange(clients), persons)  # of a client without rows; any will do
    held = np.sort(np.concatenate([persons * sites.count + places, nowhere * sites.count]))
    entry = np.searchsorted(held, owners * sites.count + train.sites)
    return Entries(entry, held % sites.count, held // sites.count)


def _dealt() -> Refused:
    return Refused(
        "this source says at which site each row is, but its rows are dealt to made-up clients, "
        'who are at no site; use data.partition = "natural", with a column of clients '
        "(data.client), or leave the column of sites out: data.sites makes sites up"
    )


def _refuse_at_too_many(pool: Examples, persons: Indices, places: Indices, sites: Sites) -> None:
    """Raises `Refused` where a client has rows at more sites than declared."""
    counts = np.bincount(persons)
    if counts.max(initial=0) <= sites.per_client:
        return
    first = int(np.argmax(counts > sites.per_client))
    who = repr(pool.clients[first]) if pool.clients else f"number {first}"
    at = places[persons == first].tolist()
    shown = [repr(pool.site_names[site]) if pool.site_names else str(site) for site in at]
    raise Refused(
        f"data.sites_per_client is {sites.per_client}, but a client has rows at more sites; raise "
        "data.sites_per_client, a public constant, to the most at which a client may have rows",
        private=f"client {who} has rows at {', '.join(shown[:20])}",
    )


def made_up_entries(
    examples: Examples,
    owners: Indices,
    identities: Indices,
    sites: Sites,
    streams: Streams,
) -> Entries:
    """The entries of clients `identities` `[clients]`, each at `per_client` sites that are made up.

    The first is drawn by the rule of `sites`, further ones uniformly, and a client's examples, of
    the `owners` `[N]`, are dealt to its sites by chance; an entry may hold none. Raises `Refused`
    where clients are to be dealt by labels that `examples` have not.
    """
    words = streams.at("sites", 0, identities).per_client(sites.per_client)
    at = _homes(examples, owners, words[:, 0], sites, streams)[:, None]
    for word in words.T[1:]:
        further = np.floor(uniforms(word) * (sites.count - at.shape[1])).astype(np.int64)
        for taken in at.T:  # in rising order
            further += further >= taken
        at = np.sort(np.concatenate([at, further[:, None]], axis=1), axis=1)
    persons = np.repeat(np.arange(len(identities)), sites.per_client)
    return Entries(_dealt_out(owners, identities, sites, streams), at.reshape(-1), persons)


def _homes(
    examples: Examples, owners: Indices, words: Words, sites: Sites, streams: Streams
) -> Indices:
    """The first site of each client `[clients]`, by a word of its own `[clients]`."""
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
    """A site for each of the `words` `[n]`, by the `shares` `[sites]`."""
    ends = np.cumsum(shares) / shares.sum()
    return np.minimum(np.searchsorted(ends, uniforms(words), side="right"), len(shares) - 1)


def _most_frequent(examples: Examples, owners: Indices, clients: int) -> Indices:
    """The label that most of each client's examples have `[clients]`, the least of several.

    It is 0 for a client without examples.
    """
    y, classes = examples.y, examples.classes
    if y.dim() != 1 or y.dtype != torch.int64 or classes < 2:
        raise Refused(
            'data.site_partition is "label", which deals clients to sites by their most frequent '
            'class, but these examples have no class each; use "even" or "size"'
        )
    held, counts = np.unique(owners * classes + y.numpy(), return_counts=True)
    order = np.lexsort((held, -counts))[::-1]  # so that the most frequent is written last
    labels = np.zeros(clients, dtype=np.int64)
    labels[held[order] // classes] = held[order] % classes
    return labels


def _dealt_out(owners: Indices, identities: Indices, sites: Sites, streams: Streams) -> Indices:
    """The entry of each example `[N]`: each goes to any of its owner's, whoever else there is."""
    if sites.per_client == 1:
        return owners
    numbers = identities[owners] + places_among_owners(owners) * _APART
    words = streams.at("sites/examples", 0, numbers).per_client(1)[:, 0]
    return owners * sites.per_client + np.floor(uniforms(words) * sites.per_client).astype(np.int64)


def places_among_owners(owners: Indices) -> Indices:
    """For each example `[N]`, how many of its owner's come before it."""
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    places = np.empty(len(owners), dtype=np.int64)
    places[order] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


def entry_identities(
    entries: Entries, clients: tuple[str, ...], site_names: tuple[str, ...], sites: Sites
) -> Indices | None:
    """The entries' own numbers `[entries]`; None where a client has no name but its place.

    They follow from the names of client and site alone, or from the client's where it is at one.
    """
    if not clients:
        return None
    if sites.per_client == 1:
        return np.array([client_number(name) for name in clients], dtype=np.int64)
    pairs = zip(entries.persons.tolist(), entries.sites.tolist(), strict=True)
    names = (_name(clients[who], site_names[at] if site_names else f"{at}") for who, at in pairs)
    return np.array([client_number(name) for name in names], dtype=np.int64)


def _name(client: str, site: str) -> str:
    """A name for the rows of `client` at `site`, which no other pair has."""
    return f"{len(client)} {client} at {site}"
