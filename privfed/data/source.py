"""The interface of sources of examples, which load examples and declare their origin."""

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

    A refusal's message names file, row and declared values. Contents of the file belong in the
    argument `private` of `Refused`, never in the message.
    """

    natural_partition: ClassVar[bool]
    """Whether the source may state the owner of each example; "natural" is then the default."""
    holds_real_clients: ClassVar[bool]
    """Whether the clients exist, as in a file; their number then has to be declared."""

    @property
    def squared_norm(self) -> float | None:
        """Upper bound on the squared L2 norm of every example, from the configuration alone.

        None if the configuration determines no bound.
        """

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns the origins of the examples: two sources with a common origin may share clients.

        An origin that ends in "*" matches all origins with that prefix. If the source states
        owners, the first origin identifies its clients. Origins do not depend on the assignment of
        examples to clients, and a copy of the data has the same origins.
        """

    def load(self, clients: int, streams: Streams) -> Examples:
        """Returns all examples; `owners`, if the source states clients, are numbers from 0.

        Args:
          clients: number of clients, for sources that synthesise them.
          streams: random streams of the run.
        """

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Returns public test examples, none of which `load` returns; None if there are none.

        Their clients may be among those of `load`.

        Args:
          clients: number of test clients, for sources that synthesise them.
          streams: random streams of the run.
        """


@runtime_checkable
class LabelFree(Protocol):
    """A source that can also load examples without labels, for prediction."""

    def load_inputs(self) -> Examples:
        """Returns all examples in the order of the file.

        Their labels may be missing: then `Examples.labelled` is False, and `y` has placeholders.
        """


@runtime_checkable
class NamesSites(Protocol):
    """A source that states the site of each example, if its key `site` is not empty."""

    site: str
    """The column of sites; empty if there is none."""


@runtime_checkable
class DeclaresExamples(Protocol):
    """A source whose keys determine the form of an example, so that no data are needed for it."""

    def declared_example(self) -> Examples:
        """Returns one synthetic example. Raises `Refused` if the keys do not determine its form."""


@runtime_checkable
class CountsEarlier(Protocol):
    """A source of statistics that declares `earlier` runs on the same clients.

    The total ε includes these runs, which the ledger of the statistics does not contain.
    """

    earlier: list[str]
    """The directories of earlier runs on the same clients."""


@runtime_checkable
class UserObjectSource(Protocol):
    """A source of clients that were passed as a Python object, which no file of a run contains."""

    kept_by_user: ClassVar[bool]


@runtime_checkable
class Prepares(Protocol):
    """A source that computes x from several raw columns, and can do so for synthetic values."""

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> Tensor:
        """Returns the features `[N, features]` of raw numbers `[N, *]` and category codes `[N, *]`.

        A code is the index of a value in its category; any other code counts as no category.
        Columns are in the order of `how`, which declares their preprocessing. Nothing is refused:
        numbers beyond their bounds are clipped.
        """
