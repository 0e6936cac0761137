"""What a partition is: it says which client owns each example."""

from __future__ import annotations

from typing import ClassVar, Protocol

from privfed.data.federation import Examples
from privfed.streams import Streams
from privfed.vector import Indices


class Partition(Protocol):
    """A rule that gives each example to a client."""

    natural: ClassVar[bool]
    """Whether owners are the source's own clients."""
    by_chance: ClassVar[bool]
    """Whether examples are dealt by chance: any handful of them is like a client's."""
    deals: ClassVar[bool]
    """Whether it gives examples to other clients than those whose they are."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """The owner `[N]` of each example, a number from 0; below `clients` if simulated."""
        ...
