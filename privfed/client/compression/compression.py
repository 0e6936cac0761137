"""What a compression is: from a client's update `[d]` to what it sends, and back to an update.

It lies between an objective's message and all that bounds and sums rows, so that a row is
compressed first, and *then* clipped, encoded, summed and noised like any other.

What is released is the noised sum of compressed rows. Its sensitivity, per client, is the norm that
the mechanism clips to, whatever a compression did before: it is a function of the client's own
update, its own memory, released values and coins that read nobody's data. So the unit, the
relation, the sampler and the event of a round are those without it; the event counts the
`exchanges`. What the server makes of a release is post-processing. To scale or decode a row after
it was clipped would void this, and no compression has a place to do so.

*Linear* ones apply the same matrix to each row, drawn by public coins (`privfed.core.streams`), so
that the sum of what is sent is the sum of updates, compressed: they go with secure sums and noise.
All others are nonlinear in the row, and their saving is in how numbers are written down: they need
a server that is sent each row.

*Error feedback*: a client adds to its update what compression left off before (Seide et al. 2014;
Karimireddy, Rebjock, Stich & Jaggi 2019), and keeps the rest. The row is clipped after the memory
was added, so that this is a client state like others, and costs nothing more
(`privfed.client.client_states`). What the clip cuts off is not remembered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor
from privfed.core.parts import Part
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout, Shapes


@dataclass(frozen=True)
class Space:
    """Updates of models with these `shapes`, and the `seed` of the coins that all repeat."""

    shapes: Shapes
    seed: int

    def coins(self, number: int) -> Keys:
        """The public coins of the compression of this `number`; 0 are those of the whole run."""
        return Streams(self.seed).at("compression", number)


@dataclass(frozen=True)
class Sending:
    """A round as a client that sends in it knows it: what was `broadcast`, and its `number`.

    `keys` are the clients' own coins.
    """

    space: Space
    number: int
    broadcast: Broadcast
    keys: Keys | None = None


class Compression(Protocol):
    """How an update becomes what a client sends, and a release an update."""

    compresses: ClassVar[bool]
    """Whether it does anything: with none, messages stay as they are."""
    linear: ClassVar[bool]
    """Whether the compressed sum is the sum of what is sent, by public coins alone; else the server
    is sent each row, and rows stay `[d]`."""
    fresh: ClassVar[bool]
    """Whether numbers at one place of a row mean something else in each round."""
    exchanges: ClassVar[int]
    """How often a client sends a part of the same update in a round."""

    @property
    def keeps(self) -> int:
        """Vectors `[d]` that a client remembers for it; above 0, clients have to return."""
        ...

    def length(self, shapes: Shapes) -> int:
        """How many numbers a row has, in each of its exchanges."""
        ...

    def bits(self, shapes: Shapes) -> float | None:
        """Bits that a row takes; None: its numbers are as wide as those of any row."""
        ...

    def received(self, shapes: Shapes) -> int:
        """How many numbers a client is sent for it in a round, beside the model."""
        ...

    def factor(self, shapes: Shapes) -> float:
        """The norm of what is sent over that of the update, about: the clip is for what is sent."""
        ...

    def init(self, space: Space) -> Memory:
        """What the server keeps of former releases, before round 1."""
        ...

    def asked(self, sending: Sending, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Exchanges before the one in which rows are sent; what is broadcast besides."""
        ...

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        """On the client: rows `[c, m]` of `updates` `[c, d]`, and what is left off `[c, d]`.

        `error` `[c, d]` is what was left off before, where it is kept.
        """
        ...

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        """On the server: the update `[d]` of a release `[m]`, and what is kept of it."""
        ...


class CompressionPart(Part):
    """What is so of most compressions: one exchange, and nothing remembered."""

    compresses: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    fresh: ClassVar[bool] = True
    exchanges: ClassVar[int] = 1

    @property
    def keeps(self) -> int:
        return 0

    def bits(self, shapes: Shapes) -> float | None:
        return None

    def received(self, shapes: Shapes) -> int:
        return 0

    def factor(self, shapes: Shapes) -> float:
        return 1.0

    def init(self, space: Space) -> Memory:
        return {}

    def asked(self, sending: Sending, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {}


class ErrorFeedback(CompressionPart):
    """A compression whose clients may remember what it leaves off."""

    error_feedback: bool = False
    """Whether clients remember what was left off, and send it later: for clients that return."""

    @property
    def keeps(self) -> int:
        return int(self.error_feedback)


def compressed_row(length: int) -> Layout:
    """The layout of a row that stands for an update."""
    return Layout((("delta", length),))


class NoCompression(CompressionPart):
    """Messages are sent as they are."""

    compresses: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        return updates, error

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory


class RowByRow(CompressionPart):
    """All numbers of a row stand for themselves: the server takes a release as it is."""

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    @abstractmethod
    def bits(self, shapes: Shapes) -> float:
        """Bits that a row takes."""

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory


class Biased(RowByRow, ErrorFeedback):
    """What is sent of a row is not that row on average: clients may remember the rest."""

    @abstractmethod
    def shortened(self, rows: Tensor) -> Tensor:
        """What is sent of `rows` `[c, d]`: `[c, d]`."""

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        corrected = updates if error is None else updates + error
        sent = self.shortened(corrected)
        return sent, None if error is None else corrected - sent
