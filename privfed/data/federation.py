"""Examples, and the population: all clients' examples in one array (the store), with offsets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.inputs import Inputs, synthetic_inputs
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Outside, Preprocessing
from privfed.sampling.cohort import Population

NO_LABEL = -1
"""The label of a position that has no label (padding)."""


@dataclass(frozen=True)
class Meaning:
    """The meaning of labels: names of classes or of label columns.

    If labels are numbers to predict, they are stored scaled: a label y stands for y * scale + shift
    in the unit of the source.
    """

    names: tuple[str, ...] = ()
    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Examples:
    """Features `x` and labels `y` of N examples.

    Attributes:
      x: Features `[N, *features]`, float32 or int64 tokens, in memory or mapped from a file.
      y: Labels: int64 classes below `classes` (`[N]`, or `[N, T]` with a label per position,
        `NO_LABEL` for none), or float32 values `[N, classes]`: 0/1 per label column, or numbers to
        predict.
      classes: Number of classes, or of label columns.
      owners: The client `[N]` of each example, a number from 0; None if the source does not state
        it.
      clients: Names of the clients; empty if they have none.
      meaning: Meaning of the labels.
      counts: Counts that the loader observed, by name, such as of clipped values; for simulations
        only.
      preprocessing: How the source computed x from raw columns; None if it states no such
        computation.
      labelled: Whether labels are known; otherwise y has placeholders of the same shape and type.
      typical: Expected number of examples per client, if the source generates its examples;
        otherwise None.
      sites: The site `[N]` of each example, an index into `site_names`; None if the source does not
        state it.
      site_names: Names of the sites.
      outside: For each declared name or pattern, the numbers beyond the bounds; for a public table
        only, otherwise empty.
      inputs: Inputs of the model by name, if the source declares them; otherwise empty.
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
    outside: tuple[Outside, ...] = ()
    inputs: Inputs = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Indices) -> Examples:
        """Returns the examples at the indices `index` `[n]`; `Mapped` features stay mapped."""
        chosen = torch.from_numpy(index)
        owners = None if self.owners is None else self.owners[index]
        sites = None if self.sites is None else self.sites[index]
        x = self.x.take(chosen) if isinstance(self.x, Mapped) else self.x[chosen]
        return replace(self, x=x, y=self.y[chosen], owners=owners, sites=sites)

    def synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns random features and zero labels of `count` synthetic examples.

        Shapes and types are those of these examples; features are values of the declared `inputs`,
        if any. The seed is fixed.
        """
        generator, device = torch.Generator().manual_seed(0), self.y.device
        shape = (count, *self.x.shape[1:])
        if self.inputs:
            x = synthetic_inputs(self.inputs, count)
        elif self.x.dtype.is_floating_point:
            x = torch.randn(shape, generator=generator)
        else:
            x = torch.randint(0, 2, shape, generator=generator)
        y = torch.zeros((count, *self.y.shape[1:]), dtype=self.y.dtype)
        return x.to(device, self.x.dtype), y.to(device)

    def to(self, device: torch.device) -> Examples:
        """Returns the same examples on `device`."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Federation:
    """Clients' examples, and a public test set without examples of clients, unless it is `shared`.

    Client k's examples are `examples` at indices `offsets[k]:offsets[k + 1]`; there may be none.
    With sites, the store has an *entry* for each client at each of its sites, and `offsets`,
    `clients` and `identities` refer to entries instead of clients.

    Attributes:
      examples: Examples of all clients, client by client.
      offsets: Index of each client's first example, and the number of all examples.
      test: The test set.
      identities: A number `[clients]` for each client, which keys its random streams and does not
        depend on the other clients; None if it is the client's index.
      public: Names of the clients that were declared public, whose examples are the test set: no
        guarantee covers them.
      typical: Estimate of a client's number of examples from public facts; None if unknown.
      relabelled: Pairs (round, labels `[classes]`), in order of rounds: from that round on,
        examples of class c have the label `labels[c]`.
      root: Public examples for the server, or for clients to label; None if there are none.
      shared: Whether the test set belongs to clients that also train.
      stands_for: Number of clients of the complete population, if this is a subset that represents
        it; otherwise 0.
      test_scale: Size of the complete test set divided by the size of `test`.
      sites: The site `[entries]` of each entry, a number below `data.sites`; None without sites.
      persons: The client `[entries]` of each entry, ascending from 0 (None: entry k is client k).
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
        """Returns the population with the labels that examples have in `round` (`relabelled`)."""
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
        """Returns a population with `examples` grouped by client, given each one's owner `[N]`.

        Args:
          examples: all training examples.
          owners: client of each example, shape [N].
          clients: number of clients.
          test: the test set.
        """
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(examples.take(order), offsets, test)

    @property
    def clients(self) -> int:
        """Number of clients in the store, or of entries, if a client may be at several sites."""
        return len(self.offsets) - 1

    @property
    def population_size(self) -> int:
        """Number of clients of the complete population; one at several sites counts once."""
        if self.stands_for or self.persons is None:
            return self.stands_for or self.clients
        return int(self.persons.max(initial=-1)) + 1

    @property
    def client_offsets(self) -> Indices:
        """The `offsets` `[clients + 1]` of clients, each with the examples of all its sites."""
        if self.persons is None:
            return self.offsets
        first = np.flatnonzero(np.diff(self.persons, prepend=-1))
        return np.append(self.offsets[first], self.offsets[-1])

    @property
    def test_is_few(self) -> bool:
        """Whether `test` is a subset of a larger test set, so that it may lack some classes."""
        return self.test_scale > 1.0

    def sizes(self, ids: Indices) -> Indices:
        """Returns the number of examples `[c]` of each of the clients (or entries) `ids` `[c]`.

        For simulations only: never published.
        """
        return self.offsets[ids + 1] - self.offsets[ids]

    def class_counts(self, ids: Indices) -> Tensor | None:
        """Returns the number of labels of each class `[c, classes]` for each of the `ids`.

        `ids` are those of clients (or entries). Positions without a label are not counted. None if
        labels are not classes.
        """
        y, classes = self.examples.y, self.examples.classes
        if y.dtype != torch.int64:
            return None
        labels = [y[start:end] for start, end in zip(*self._bounds(ids), strict=True)]
        counts = [torch.bincount(part[part >= 0], minlength=classes) for part in labels]
        return torch.stack(counts).float() if counts else torch.zeros(0, classes)

    def _bounds(self, ids: Indices) -> tuple[list[int], list[int]]:
        return self.offsets[ids].tolist(), self.offsets[ids + 1].tolist()

    def identify(self, ids: Indices) -> Indices:
        """Returns the identities `[c]` of clients `ids` `[c]`, which key their random streams."""
        return ids if self.identities is None else self.identities[ids]

    def first_entries(self) -> Indices:
        """Returns, for each entry, the first entry `[entries]` of the same client.

        A random draw that is keyed by the first entry is the same for all of a client's entries.
        """
        if self.persons is None:
            return np.arange(self.clients)
        return np.searchsorted(self.persons, self.persons)

    def population(self) -> Population:
        """Returns the sizes, identities and sites of clients (or entries), for samplers."""
        ids = np.arange(self.clients)
        return Population(self.sizes(ids), self.identify(ids), self.sites)

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns examples at the indices `rows` `[...]`: x `[..., *features]` and y `[..., *]`.

        If `rows` is padded, the padding must be valid indices, too; the caller masks their
        examples.
        """
        x, y, flat = self.examples.x, self.examples.y, rows.reshape(-1)
        labels = y.index_select(0, flat).view(*rows.shape, *y.shape[1:])
        if isinstance(x, Mapped):
            return x[rows], labels
        return x.index_select(0, flat).view(*rows.shape, *x.shape[1:]), labels

    def to(self, device: torch.device) -> Federation:
        """Returns the same population, with all its examples on `device`."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Examples], Examples]) -> Federation:
        """Returns this population with `change` applied to the clients', test and root examples."""
        root = None if self.root is None else change(self.root)
        return replace(
            self, examples=change(self.examples), test=change(self.test), root=root, _stages={}
        )

    def with_root_set(self, count: int, key: str = "aggregation.root") -> Federation:
        """Returns the population with `count` evenly spaced test examples moved to the root set.

        If `test` is a subset of a larger test set, at least one example remains in it, and fewer
        than `count` are moved if necessary.

        Args:
          count: number of examples; 0 for no root set.
          key: the key of the run file that states this number.

        Raises:
          Refused: if no example of the complete test set would remain, or the test set is of
            clients that train.
        """
        if count == 0:
            return self
        if self.shared:
            raise Refused(
                f"{key} is {count}, but the server's test examples are of clients that "
                f"train; use a test set of other clients, or remove {key}"
            )
        if count >= len(self.test) * self.test_scale:
            raise Refused(
                f"{key} is {count}, but there are {len(self.test)} public test "
                f"examples, and at least one must remain for scoring; lower {key}"
            )
        count = min(count, len(self.test) - 1)  # if the test set stands for a larger one
        rows = np.arange(len(self.test))
        is_root = np.diff(rows * count // len(self.test), prepend=-1) > 0
        root, test = self.test.take(rows[is_root]), self.test.take(rows[~is_root])
        return replace(self, root=root, test=test, _stages={})

    def server_population(self) -> Federation:
        """Returns a population with a single client, the server, whose examples are the root set.

        Raises `ValueError` if the server has no root set.
        """
        if self.root is None:
            raise ValueError("the server has no root set; set aggregation.root")
        offsets = np.array([0, len(self.root)], dtype=np.int64)
        return Federation(self.root, offsets, self.test)


def client_number(name: str) -> int:
    """Returns a client's identity, an integer in [0, 2^63): a hash of its name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
