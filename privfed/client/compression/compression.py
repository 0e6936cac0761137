"""The interface of compressions, which map a client's update `[d]` to its message, and back.

Compression comes between an objective's message and all code that bounds and sums rows: a row is
compressed first, and *then* clipped, encoded, summed and noised like any other.

The release is the noised sum of compressed rows. Its sensitivity, per client, is the norm to which
the mechanism clips, whatever the compression did before: a compressed row is a function of the
client's own update, its own memory, released values and random numbers that are independent of the
data. Unit, adjacency relation, sampler and event of a round are therefore those without
compression; the event counts the `exchanges`. Decompression on the server is post-processing.
Scaling or decoding a row after clipping would void this, and no compression can do so.

*Linear* compressions apply the same matrix, drawn by public random numbers
(`privfed.core.streams`), to each row. The sum of messages is then the compressed sum of updates,
which supports secure sums and noise. Soft labels are not linear in the update, but the server needs
only their sum (`summable`). All others encode numbers in fewer bits, and need a server that
receives each row.

*Error feedback*: a client adds the residual of earlier compressions to its update (Seide et al.
2014; Karimireddy, Rebjock, Stich & Jaggi 2019), and keeps the new residual. The row is clipped
after the residual was added, so the residual is a client state like any other, and costs no
additional privacy (`privfed.client.client_states`). The residual does not include what clipping
removes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor
from privfed.core.parts import Part
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout, Shapes


class Student(Protocol):
    """Interface of a model's architecture on m public unlabelled examples."""

    def outputs(self, models: Tensor) -> Tensor:
        """Returns the outputs `[c, m, k]` of `models` `[c, d]` for the public examples."""

    def distilled(self, models: Tensor, targets: Tensor, batches: Tensor, lr: float) -> Tensor:
        """Returns `models` `[c, d]` after training on `targets`.

        Args:
          models: parameters at the start, shape [c, d].
          targets: a distribution over classes for each public example, shape [m, k].
          batches: indices of public examples in each step, shape [steps, B].
          lr: learning rate.
        """


@dataclass(frozen=True)
class Space:
    """The `shapes` of a model's parameters, and the `seed` of the public random numbers.

    `student` is the server's model on public examples; None if the run has no public examples, or
    its model is not built yet.
    """

    shapes: Shapes
    seed: int
    student: Student | None = field(default=None, compare=False)

    def keys(self, number: int) -> Keys:
        """Returns the public random stream of compressed round `number`, from 1.

        Number 0 is the stream of what is drawn once per run.
        """
        return Streams(self.seed).at("compression", number)


@dataclass(frozen=True)
class Sending:
    """The inputs of compression in a round.

    Attributes:
      space: shapes of updates, and seed of the public random numbers.
      number: number of the compressed round, from 1.
      broadcast: released values by name.
      keys: the clients' own random streams; None on the server.
    """

    space: Space
    number: int
    broadcast: Broadcast
    keys: Keys | None = None


class Compression(Part):
    """Encodes an update as a client's message, and decodes a release to an update.

    By default it is linear, with one exchange and no memory.
    """

    compresses: ClassVar[bool] = True
    """Whether messages are compressed; false only for `NoCompression`."""
    linear: ClassVar[bool] = True
    """Whether the sum of messages is the compressed sum of updates."""
    needs_classes: ClassVar[bool] = False
    """Whether outputs must be logits of classes; any other `model.loss` is then refused."""
    keeping: ClassVar[str] = "error_feedback"
    """The key by which clients keep state, for messages."""
    fresh: ClassVar[bool] = True
    """Whether the coordinates of a row have another meaning in each round."""
    exchanges: ClassVar[int] = 1
    """Number of exchanges of a round in which a client sends a part of the same update."""

    @property
    def summable(self) -> bool:
        """Whether the server needs only the sum of messages; if not, it receives each row of d."""
        return self.linear

    @property
    def keeps(self) -> int:
        """Number of vectors `[d]` that a client keeps between rounds.

        If it is above 0, clients have to take part repeatedly.
        """
        return 0

    @property
    def public(self) -> int:
        """Number of public test examples that messages are about; 0 if they need none."""
        return 0

    @property
    def architectures(self) -> Sequence[str]:
        """Names of the architectures of clients' own models; empty if all have the server's."""
        return ()

    @property
    def trains_own_models(self) -> bool:
        """Whether clients train models of their own, and do not receive the server's."""
        return False

    @property
    def norm_bound(self) -> float:
        """Upper bound on the norm of a message before clipping; infinite if there is none."""
        return math.inf

    @abstractmethod
    def length(self, shapes: Shapes) -> int:
        """Returns the number of values of a row, the same in each of the `exchanges`."""

    def bits(self, shapes: Shapes) -> float | None:
        """Returns the bits per row; None if its values have the same width as uncompressed ones."""
        return None

    def received(self, shapes: Shapes) -> int:
        """Returns the number of values a client receives per round, in addition to the model."""
        return 0

    def factor(self, shapes: Shapes) -> float:
        """Returns the approximate ratio of a message's norm, before clipping, to its update's."""
        return 1.0

    def init(self, space: Space) -> Memory:
        """Returns the server's memory at round 1; empty by default."""
        return {}

    def exchanges_before(
        self, sending: Sending, memory: Memory
    ) -> Generator[Exchange, Tensor, Broadcast]:
        """Yields the exchanges before the last one, whose rows `decode` reads; by default none.

        Args:
          sending: the inputs of compression, without clients' random streams.
          memory: the server's memory of earlier releases.

        Yields:
          An exchange; the caller sends its release into the generator.

        Returns:
          Values, by name, to broadcast in addition.
        """
        yield from ()
        return {}

    @abstractmethod
    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        """Encodes updates on the client.

        Args:
          updates: client updates, shape [c, d].
          error: residuals of earlier rounds, shape [c, d]; None if clients keep none.
          sending: the inputs of compression.

        Returns:
          The rows [c, m] and the new residuals [c, d]; None instead of these if clients keep none.
        """

    @abstractmethod
    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        """Decodes a release on the server.

        Args:
          released: the released aggregate, shape [m].
          sending: the inputs of compression, without clients' random streams.
          memory: the server's memory of earlier releases.

        Returns:
          The update [d] and the server's new memory.
        """


class ErrorFeedback(Compression):
    """A compression whose clients keep a residual if `error_feedback` is true, else nothing."""

    error_feedback: bool = False
    """Whether clients keep the compression residual and send it later; needs clients
    that return.
    """

    @property
    def keeps(self) -> int:
        return int(self.error_feedback)


def compressed_row(length: int) -> Layout:
    """Returns the layout of a row that is an update, compressed to `length` values."""
    return Layout((("delta", length),))


class NoCompression(Compression):
    """No compression: messages are sent unchanged."""

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


class RowByRow(Compression):
    """A nonlinear compression: rows keep their length d, and the server uses releases unchanged."""

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    @abstractmethod
    def bits(self, shapes: Shapes) -> float:
        """Returns the number of bits of a row."""

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory


class Biased(RowByRow, ErrorFeedback):
    """A biased compression (its expectation is not the row), with an optional residual."""

    @abstractmethod
    def shortened(self, rows: Tensor) -> Tensor:
        """Returns the compressed form `[c, d]` of `rows` `[c, d]`."""

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        corrected = updates if error is None else updates + error
        sent = self.shortened(corrected)
        return sent, None if error is None else corrected - sent
