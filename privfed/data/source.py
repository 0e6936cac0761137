"""What a source of examples is: it loads, and declares where its examples come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from privfed.data.federation import Examples
from privfed.data.preprocessing import Preprocessing
from privfed.streams import Streams
from privfed.vector import Indices

if TYPE_CHECKING:
    from torch import Tensor


class Source(Protocol):
    """Where examples come from.

    What it refuses it names by file, row and what was declared; what stands there belongs into the
    `private` of `Refused`, never into its message.
    """

    natural_partition: ClassVar[bool]
    """Whether the source may know who owns each example, and partitions by that unless told."""
    found: ClassVar[bool]
    """Whether it is a file of real people, say, whose number has to be declared."""

    @property
    def squared_norm(self) -> float | None:
        """What |x|^2 of no example exceeds, as the configuration alone declares; None: nothing."""
        ...

    def sources(self, seed: int) -> tuple[str, ...]:
        """Where its examples come from: two sources that share one may hold the same people's.

        The first says who is a client, where clients are the source's own. Never how examples are
        dealt to clients, nor what a copy would change.
        """
        ...

    def load(self, clients: int, streams: Streams) -> Examples:
        """All examples. Owners, where known, are numbers from 0."""
        ...

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Public examples beside those of `load`: a file of them, or those of `clients` others.

        None where there are none.
        """
        ...


@runtime_checkable
class LabelFree(Protocol):
    """A source whose examples may come without labels, for a model to predict."""

    def load_inputs(self) -> Examples:
        """All examples, in the order of the file, and whether they are `labelled`."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A source that makes x from several raw columns, and can do so for made-up rows."""

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> Tensor:
        """X `[N, features]` of numbers `[N, *]` and places among categories' values `[N, *]`.

        Columns are in the order of `how`, which declares what of this source they are. Nothing is
        refused: numbers beyond their bounds and other categories are taken as if declared so.
        """
        ...
