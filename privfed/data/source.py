"""What a source of examples is: it loads them, and declares where they come from."""

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

    A refusal names file, row and what was declared; what stands in the file belongs into the
    `private` of `Refused`, never into its message.
    """

    natural_partition: ClassVar[bool]
    """Whether the source may know who owns each example, and partitions by that unless told."""
    real_people: ClassVar[bool]
    """Whether it holds given people (a file, say), whose number has to be declared."""

    @property
    def squared_norm(self) -> float | None:
        """A bound on |x|^2 of every example that follows from the configuration alone, if any."""
        ...

    def sources(self, seed: int) -> tuple[str, ...]:
        """The origins of its examples: two sources that share one may hold the same people.

        One that ends in "*" stands for all whose names begin alike. The first says who is a client,
        where clients are the source's own. They never say how examples are dealt to clients, and do
        not change with a copy of the data.
        """
        ...

    def load(self, clients: int, streams: Streams) -> Examples:
        """All examples. Owners, where the source knows them, are numbers from 0."""
        ...

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Public examples beside those of `load`: a file of them, or those of `clients` others.

        Returns None where the source has none.
        """
        ...


@runtime_checkable
class LabelFree(Protocol):
    """A source whose examples may come without labels, for a model to predict."""

    def load_inputs(self) -> Examples:
        """All examples in the order of the file; `labelled` says whether they have labels."""
        ...


@runtime_checkable
class NamesSites(Protocol):
    """A source that may say which site holds an example."""

    site: str
    """The column that says so; empty where none does."""


@runtime_checkable
class KeptByUser(Protocol):
    """A source of people who were passed as an object, which no file of the run holds."""

    kept_by_user: ClassVar[bool]


@runtime_checkable
class Prepares(Protocol):
    """A source that makes x from several raw columns, and can do so for made-up rows."""

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> Tensor:
        """The features `[N, features]` of raw numbers `[N, *]` and category codes `[N, *]`.

        A code is the place of a value among those of its category. Columns are in the order of
        `how`, which declares what of this source they are. Nothing is refused: numbers beyond
        their bounds and other categories are taken as if they were declared to be clipped.
        """
        ...
