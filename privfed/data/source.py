"""The contract of sources of examples: they load them, and declare their origin."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from privfed.core.deferred import Tensor
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.preprocessing import Preprocessing


class Source(Protocol):
    """A source of examples.

    A refusal names file, row and declared values; contents of the file belong into the `private`
    part of `Refused`, never into its message.
    """

    natural_partition: ClassVar[bool]
    """Whether the source may know the owner of each example; then that is the default partition."""
    holds_real_clients: ClassVar[bool]
    """Whether it holds a given population (e.g. a file), whose size has to be declared."""

    @property
    def squared_norm(self) -> float | None:
        """A bound on |x|^2 of every example that follows from the configuration alone, if any."""
        ...

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns the origins of its examples: sources that share one may share clients.

        An origin that ends in "*" stands for all names with that prefix. The first identifies the
        clients, if clients are the source's own. Origins do not depend on the assignment of
        examples to clients, and do not change with a copy of the data.
        """
        ...

    def load(self, clients: int, streams: Streams) -> Examples:
        """Returns all examples. Owners, if the source knows them, are numbers from 0.

        Args:
          clients: number of clients, for sources that synthesise them.
          streams: random streams of the run.
        """
        ...

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Returns public examples, none of them from `load`, possibly of `clients` other clients.

        Returns None if the source has no such examples.
        """
        ...


@runtime_checkable
class LabelFree(Protocol):
    """A source whose examples may come without labels, for a model to predict."""

    def load_inputs(self) -> Examples:
        """Returns all examples in the order of the file, possibly unlabelled (`labelled`)."""
        ...


@runtime_checkable
class NamesSites(Protocol):
    """A source that may know the site of an example."""

    site: str
    """The column of sites; empty if there is none."""


@runtime_checkable
class KeptByUser(Protocol):
    """A source of clients that were passed as an object, which no file of the run contains."""

    kept_by_user: ClassVar[bool]


@runtime_checkable
class Prepares(Protocol):
    """A source that computes x from several raw columns, and can do so for synthetic rows."""

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> Tensor:
        """Returns the features `[N, features]` of raw numbers `[N, *]` and category codes `[N, *]`.

        A code is the index of a value in its category. Columns are in the order of `how`, which
        declares their preprocessing. Nothing is refused: numbers beyond their bounds and other
        categories are treated as if clipping were declared.
        """
        ...
