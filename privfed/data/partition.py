"""What a partition is: it says who owns each example."""

from __future__ import annotations

from typing import ClassVar, Protocol

from privfed.data.federation import Examples
from privfed.streams import Streams
from privfed.vector import Indices


class Partition(Protocol):
    """Who owns each example."""

    natural: ClassVar[bool]
    """Whether owners are the source's own clients."""
    by_chance: ClassVar[bool]
    """Whether examples are dealt by chance: any handful of them is like a client's."""
    deals: ClassVar[bool]
    """Whether it gives examples to others than whose they are."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """`[N]` numbers from 0; below `clients` where the partition is simulated."""
        ...
