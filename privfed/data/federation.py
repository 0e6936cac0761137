"""Examples, and the population: every client's examples in one contiguous store with offsets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing
from privfed.sampling.cohort import People

NO_LABEL = -1
"""The label of a position that has none (padding)."""


@dataclass(frozen=True)
class Meaning:
    """What labels stand for: names of classes or of label columns; value = y * scale + shift."""

    names: tuple[str, ...] = ()
    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Examples:
    """Features `x` and labels `y` of N examples.

    x is `[N, *features]`, float32 or int64 tokens, in memory or mapped from a file. y holds int64
    class labels below `classes` (`[N]`, or `[N, T]` for a label per position, where `NO_LABEL` is
    none), or float32 values `[N, classes]`: 0/1 per label column, or numbers to predict. `owners`
    `[N]` says whose each example is, where the source knows (the natural partition), and `clients`
    are their names there; `sites` `[N]` says at which site each is, a place among `site_names`,
    where the source knows that. `counts` is what loading noticed, for simulations only, and
    `preprocessing` what the source made of raw columns. Where examples are not `labelled` nobody
    knows y, which holds labels of the right form. `typical` is how many examples a client is
    expected to hold, where a source makes them up.
    """

    x: Tensor | Mapped
    y: Tensor
    classes: int
    owners: Indices | None = None
    clients: tuple[str, ...] = ()
    meaning: Meaning = Meaning()
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    preprocessing: Preprocessing | None = None
    labelled: bool = True
    typical: float | None = None
    sites: Indices | None = None
    site_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Indices) -> Examples:
        """The examples at `index` `[n]`; those of a mapped store stay mapped."""
        chosen = torch.from_numpy(index)
        owners = None if self.owners is None else self.owners[index]
        sites = None if self.sites is None else self.sites[index]
        x = self.x.take(chosen) if isinstance(self.x, Mapped) else self.x[chosen]
        return replace(self, x=x, y=self.y[chosen], owners=owners, sites=sites)

    def made_up(self, count: int) -> tuple[Tensor, Tensor]:
        """Features and labels of `count` examples of the same form that are nobody's."""
        generator, device = torch.Generator().manual_seed(0), self.y.device
        shape = (count, *self.x.shape[1:])
        if self.x.dtype.is_floating_point:
            x = torch.randn(shape, generator=generator)
        else:
            x = torch.randint(0, 2, shape, generator=generator)
        y = torch.zeros((count, *self.y.shape[1:]), dtype=self.y.dtype)
        return x.to(device, self.x.dtype), y.to(device)

    def to(self, device: torch.device) -> Examples:
        """The same examples on `device`."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Federation:
    """Clients' examples, and the public test set that belongs to none of them.

    Client k owns rows `offsets[k]:offsets[k + 1]` of `examples`. A client may own nothing.
    `identities` `[clients]` are numbers that follow from each client alone (its place, where None),
    so that its randomness does not depend on who else there is. `public` names the clients behind
    the test set, where it is theirs: no guarantee covers them. `typical` estimates a client's
    number of examples from public facts; None where nothing is known. `relabelled` lists, in order
    of rounds, pairs of a round and labels `[classes]`: from that round on class c is labelled
    `[c]`. `root` are public examples that the server trains on. `shared` says that the test set is
    of clients that train. `stands_for` is how many clients there are, where these are only some of
    them (else 0), and `test_scale` is how many times larger the test set is then.

    Where there are sites, the store has an entry for each client at each of its sites: entry k owns
    `offsets[k]:offsets[k + 1]`, `sites` `[entries]` is the site that holds it, a number below
    `data.sites`, and `persons` `[entries]`, which rise from 0, the client whose it is (None: entry
    k is client k). Whoever asks for `clients` then gets entries, in identities, too.
    """

    examples: Examples
    offsets: Indices
    test: Examples
    identities: Indices | None = None
    public: tuple[str, ...] = ()
    typical: float | None = None
    relabelled: tuple[tuple[int, Tensor], ...] = ()
    root: Examples | None = None
    shared: bool = False
    stands_for: int = 0
    test_scale: float = 1.0
    sites: Indices | None = None
    persons: Indices | None = None
    _stages: dict[int, Federation] = field(default_factory=dict, repr=False, compare=False)

    def at(self, round: int) -> Federation:
        """The population as it is in `round`."""
        passed = sum(1 for start, _ in self.relabelled if start <= round)
        if not passed:
            return self
        if passed not in self._stages:
            labels = self.relabelled[passed - 1][1].to(self.examples.y.device)
            moved = self._each(lambda part: replace(part, y=labels[part.y]))
            self._stages.clear()
            self._stages[passed] = replace(moved, relabelled=())
        return self._stages[passed]

    @classmethod
    def of(cls, examples: Examples, owners: Indices, clients: int, test: Examples) -> Federation:
        """Group `examples` by their owner `[N]`, a number in [0, clients)."""
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(examples.take(order), offsets, test)

    @property
    def clients(self) -> int:
        """How many clients are in the store: entries, where a client may be at several sites."""
        return len(self.offsets) - 1

    @property
    def population_size(self) -> int:
        """How many clients there are, with those whom the clients in the store stand for."""
        if self.stands_for or self.persons is None:
            return self.stands_for or self.clients
        return int(self.persons.max(initial=-1)) + 1

    @property
    def client_offsets(self) -> Indices:
        """The places `[clients + 1]` where each client's examples begin, at all of its sites."""
        if self.persons is None:
            return self.offsets
        first = np.flatnonzero(np.diff(self.persons, prepend=-1))
        return np.append(self.offsets[first], self.offsets[-1])

    @property
    def test_is_few(self) -> bool:
        """Whether the test set stands for a larger one: nothing may be judged by what it lacks."""
        return self.test_scale > 1.0

    def sizes(self, ids: Indices) -> Indices:
        """How many examples each of `ids` `[c]` owns: for simulation alone, never published."""
        return self.offsets[ids + 1] - self.offsets[ids]

    def class_counts(self, ids: Indices) -> Tensor | None:
        """How many labels of each class clients `ids` own `[c, classes]`; None for other labels."""
        y, classes = self.examples.y, self.examples.classes
        if y.dtype != torch.int64:
            return None
        labels = [y[start:end] for start, end in zip(*self._bounds(ids), strict=True)]
        counts = [torch.bincount(part[part >= 0], minlength=classes) for part in labels]
        return torch.stack(counts).float() if counts else torch.zeros(0, classes)

    def _bounds(self, ids: Indices) -> tuple[list[int], list[int]]:
        return self.offsets[ids].tolist(), self.offsets[ids + 1].tolist()

    def identify(self, ids: Indices) -> Indices:
        """The clients' own numbers `[c]`, to key their randomness by."""
        return ids if self.identities is None else self.identities[ids]

    def first_entries(self) -> Indices:
        """For each entry the first of the client whose it is `[entries]`: itself, if at one site.

        What is drawn by its identity is the same for all of a client's entries.
        """
        if self.persons is None:
            return np.arange(self.clients)
        return np.searchsorted(self.persons, self.persons)

    def people(self) -> People:
        """The clients as samplers see them."""
        ids = np.arange(self.clients)
        return People(self.sizes(ids), self.identify(ids), self.sites)

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at `rows` `[...]` of the store: x `[..., *features]` and y `[..., *]`.

        Padding is a row index like any other; the caller masks it.
        """
        x, y, flat = self.examples.x, self.examples.y, rows.reshape(-1)
        labels = y.index_select(0, flat).view(*rows.shape, *y.shape[1:])
        if isinstance(x, Mapped):
            return x[rows], labels
        return x.index_select(0, flat).view(*rows.shape, *x.shape[1:]), labels

    def to(self, device: torch.device) -> Federation:
        """The same population, with all its examples on `device`."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Examples], Examples]) -> Federation:
        """The population with `change` made to clients', test and root examples alike."""
        root = None if self.root is None else change(self.root)
        return replace(
            self, examples=change(self.examples), test=change(self.test), root=root, _stages={}
        )

    def with_root_set(self, count: int) -> Federation:
        """The population whose root set is `count` test examples, evenly spaced, no longer scored.

        Raises `Refused` where that leaves none to score.
        """
        if count == 0:
            return self
        if self.shared:
            raise Refused(
                f"aggregation.root is {count} of the test examples, which would be the server's "
                "own, and these are of clients that train; use a test set of others"
            )
        if count >= len(self.test) * self.test_scale:
            raise Refused(
                f"aggregation.root is {count}, of {len(self.test)} public test examples; expected "
                "fewer, so that some are left to score on"
            )
        count = min(count, len(self.test) - 1)  # where the test set stands for a larger one
        rows = np.arange(len(self.test))
        is_root = np.diff(rows * count // len(self.test), prepend=-1) > 0
        root, test = self.test.take(rows[is_root]), self.test.take(rows[~is_root])
        return replace(self, root=root, test=test, _stages={})

    def server_population(self) -> Federation:
        """A population whose one client is the server, with its root set.

        Raises `ValueError` where the server has none.
        """
        if self.root is None:
            raise ValueError("the server has no root set; set aggregation.root")
        offsets = np.array([0, len(self.root)], dtype=np.int64)
        return Federation(self.root, offsets, self.test)


def client_number(name: str) -> int:
    """A client's own number in [0, 2^63), from its name alone, whoever else there is."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
