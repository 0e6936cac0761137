"""An objective with compressed messages.

The wrapping objective declares the rows, exchanges and client states of objective and compression
together. Charges, refusals, encodings, message sizes and resumes follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from pydantic import SkipValidation

from privfed.client.around import Around
from privfed.client.compression.compression import (
    Compression,
    Sending,
    Space,
    Student,
    compressed_row,
)
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout, Shapes

ShapesByName = Mapping[str, tuple[int, ...]]
"""Shapes of a model's parameters by name, in the model's order."""
_PREFIX = "compression_"
"""Prefix of the names of the compression's values in broadcasts and memories."""
_NUMBER = "compression_number"
"""Name of the number of compressed rounds, which selects the round's random numbers.

In a memory it counts earlier rounds; in a broadcast also the current one.
"""


def compressed(
    objective: Objective, compression: Compression, seed: int, shapes: ShapesByName | None = None
) -> Objective:
    """Wraps `objective`: its updates are compressed, by public random numbers of `seed`.

    Args:
      objective: the objective of the run.
      compression: the compression; if it compresses nothing, `objective` itself is returned.
      seed: seed of the public random numbers.
      shapes: shapes of the model's parameters by name; None treats the model as one vector, for
        which compression by layers saves nothing.

    Returns:
      An objective with compressed messages.
    """
    if not compression.compresses:
        return objective
    places = Shapes.named(shapes) if shapes else None
    return Compressed(inner=objective, compression=compression, seed=seed, shapes=places)


def with_student(objective: Objective, student: Student | None) -> Objective:
    """Returns `objective`; if its messages are compressed, with the server's model `student`."""
    if not isinstance(objective, Compressed):
        return objective
    return objective.model_copy(update={"student": student})


class Compressed(Around):
    """The objective `inner`, with its updates `[d]` encoded by `compression`."""

    compression: SkipValidation[Compression]
    seed: int
    shapes: SkipValidation[Shapes | None] = None
    student: SkipValidation[Student | None] = None
    """The server's model on public examples; None if the compression needs none, or before the
    model is built.
    """

    @property
    def broadcasts(self) -> int:
        """Number of vectors `[d]` that each client receives: none if it trains its own model."""
        return 0 if self.compression.trains_own_models else self.inner.broadcasts

    @property
    def keeps(self) -> int:
        """Number of state vectors `[d]` of a client: those of `inner`, and any residual."""
        return self.inner.keeps + self.compression.keeps

    @property
    def exchanges(self) -> int:
        """Number of exchanges of a round, up to and including training, with the compression's."""
        return self.inner.exchanges + self.compression.exchanges - 1

    def state_length(self, d: int) -> int:
        """Returns the number of values that each client keeps between rounds."""
        return self.inner.state_length(d) + self.compression.keeps * d

    def layout(self, d: int) -> Layout:
        """Returns the layout of the message: its part "delta" is the compressed update."""
        return compressed_row(self.compression.length(self._shapes(d)))

    def init(self, params: Tensor) -> Memory:
        """Returns the server's memory before round 1: that of `inner` and the compression's."""
        state = self.compression.init(self._space(len(params)))
        here = {_PREFIX + name: value.to(params.device) for name, value in state.items()}
        start = torch.zeros((), dtype=torch.int64)
        return {**self.inner.init(params), **here, _NUMBER: start}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Yields the exchanges of `inner`, then the compression's; returns the broadcast values."""
        extra = yield from self.inner.prelude(params, memory)
        broadcast = {"params": params, **extra, _NUMBER: memory[_NUMBER] + 1}
        replies = yield from self.compression.exchanges_before(
            self._sending(broadcast), _part_of(memory)
        )
        return {**broadcast, **replies}

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        """Returns the state of a new client: the objective's, with a residual of zero."""
        initial_client_state, params = (
            self.inner.initial_client_state(broadcast),
            broadcast["params"],
        )
        return torch.cat(
            [initial_client_state, params.new_zeros(self.compression.keeps * len(params))]
        )

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the compressed rows `[c, m]`, and the clients' new state; None without state."""
        before, error = self._parted(state, broadcast)
        rows, after = self.inner.message(w, broadcast, before, work)
        sending = replace(self._sending(broadcast), keys=work.keys)
        sent, left = self.compression.encode(rows, error, sending)
        return sent, left if after is None else after if left is None else torch.cat(
            [after, left], 1
        )

    def admitted(self, rows: Tensor) -> Tensor:
        """Returns compressed rows unchanged, since an honest client may send any vector `[m]`."""
        return rows

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        """Returns the update `[d]` of `inner` for the decompressed release, and the new memory."""
        sending = self._sending(broadcast)
        update, state = self.compression.decode(released, sending, _part_of(memory))
        delta, after = self.inner.conclude(broadcast, update, memory, cohorts)
        here = {_PREFIX + name: value for name, value in state.items()}
        return delta, {**after, **here, _NUMBER: memory[_NUMBER] + 1}

    def inner_state(self, state: Tensor | None, broadcast: Broadcast) -> Tensor | None:
        """Returns the client states without the residual; None if nothing else is kept."""
        return self._parted(state, broadcast)[0]

    def _parted(
        self, state: Tensor | None, broadcast: Broadcast
    ) -> tuple[Tensor | None, Tensor | None]:
        """Returns the objective's part of the client states, and the compression residual.

        Each is None if clients do not keep it.
        """
        if state is None or not self.compression.keeps:
            return state, None
        width = self.inner.state_length(len(broadcast["params"]))
        return (state[:, :width] if width else None), state[:, width:]

    def _sending(self, broadcast: Broadcast) -> Sending:
        space = self._space(len(broadcast["params"]))
        return Sending(space, int(broadcast[_NUMBER]), broadcast)

    def _space(self, d: int) -> Space:
        return Space(self._shapes(d), self.seed, self.student)

    def _shapes(self, d: int) -> Shapes:
        return self.shapes or Shapes(("all",), ((d,),))


def _part_of(memory: Memory) -> Memory:
    """Returns the compression's values in `memory`, without the prefix of their names."""
    names = (name for name in memory if name.startswith(_PREFIX) and name != _NUMBER)
    return {name.removeprefix(_PREFIX): memory[name] for name in names}
