"""An objective whose messages are compressed: what all that bounds and sums rows is given.

Its rows, exchanges and client states are those of the compression around those of the objective,
so that charges, refusals, encodings, bytes and resumes follow from what it declares.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from pydantic import SkipValidation

from privfed.client.around import Around
from privfed.client.compression.compression import Compression, Sending, Space, compressed_row
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout, Shapes

ShapesByName = Mapping[str, tuple[int, ...]]
"""The shapes of a model's parameters, in their order."""
_PREFIX = "compression_"
"""Of names in broadcasts and memories."""
_NUMBER = "compression_number"
"""How many rounds were compressed so far: whose coins a round has."""


def compressed(
    objective: Objective, compression: Compression, seed: int, shapes: ShapesByName | None = None
) -> Objective:
    """`objective` with its updates compressed, by public coins of `seed`.

    Without the model's `shapes` it is as for one vector, of which no compression by layers saves
    anything.
    """
    if not compression.compresses:
        return objective
    places = Shapes.named(shapes) if shapes else None
    return Compressed(inner=objective, compression=compression, seed=seed, shapes=places)


class Compressed(Around):
    """`inner`, whose updates `[d]` are sent as `compression` has them."""

    compression: SkipValidation[Compression]
    seed: int
    shapes: SkipValidation[Shapes | None] = None

    @property
    def keeps(self) -> int:
        """Vectors `[d]` that a client keeps: the objective's, and behind them what was left off."""
        return self.inner.keeps + self.compression.keeps

    @property
    def exchanges(self) -> int:
        """Exchanges before and with training."""
        return self.inner.exchanges + self.compression.exchanges - 1

    def state_length(self, d: int) -> int:
        """How many numbers a client keeps."""
        return self.inner.state_length(d) + self.compression.keeps * d

    def layout(self, d: int) -> Layout:
        """The row that is sent: its part "delta" stands for the update."""
        return compressed_row(self.compression.length(self._shapes(d)))

    def init(self, params: Tensor) -> Memory:
        """The objective's memory, and the compression's."""
        state = self.compression.init(self._space(len(params)))
        here = {_PREFIX + name: value.to(params.device) for name, value in state.items()}
        start = torch.zeros((), dtype=torch.int64)
        return {**self.inner.init(params), **here, _NUMBER: start}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """The objective's exchanges, then the compression's."""
        extra = yield from self.inner.prelude(params, memory)
        broadcast = {"params": params, **extra, _NUMBER: memory[_NUMBER] + 1}
        besides = yield from self.compression.asked(self._sending(broadcast), _part_of(memory))
        return {**broadcast, **besides}

    def unseen(self, broadcast: Broadcast) -> Tensor:
        """The state of a client that has none: nothing was left off."""
        unseen, params = self.inner.unseen(broadcast), broadcast["params"]
        return torch.cat([unseen, params.new_zeros(self.compression.keeps * len(params))])

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        """Compressed rows `[c, m]`, and the clients' new state."""
        before, error = self._parted(state, broadcast)
        rows, after = self.inner.message(w, broadcast, before, work)
        sending = replace(self._sending(broadcast), keys=work.keys)
        sent, left = self.compression.encode(rows, error, sending)
        return sent, left if after is None else after if left is None else torch.cat(
            [after, left], 1
        )

    def admitted(self, rows: Tensor) -> Tensor:
        """Compressed rows as they are: what an honest client sends is any row."""
        return rows

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        """The update of what was released, as the objective concludes from it."""
        sending = self._sending(broadcast)
        update, state = self.compression.decode(released, sending, _part_of(memory))
        delta, after = self.inner.conclude(broadcast, update, memory, cohorts)
        here = {_PREFIX + name: value for name, value in state.items()}
        return delta, {**after, **here, _NUMBER: memory[_NUMBER] + 1}

    def inner_state(self, state: Tensor | None, broadcast: Broadcast) -> Tensor | None:
        """Return clients' states without what compression left off."""
        return self._parted(state, broadcast)[0]

    def _parted(
        self, state: Tensor | None, broadcast: Broadcast
    ) -> tuple[Tensor | None, Tensor | None]:
        """The objective's part of clients' states, and what was left off; None where none is."""
        if state is None or not self.compression.keeps:
            return state, None
        width = self.inner.state_length(len(broadcast["params"]))
        return (state[:, :width] if width else None), state[:, width:]

    def _sending(self, broadcast: Broadcast) -> Sending:
        space = self._space(len(broadcast["params"]))
        return Sending(space, int(broadcast[_NUMBER]), broadcast)

    def _space(self, d: int) -> Space:
        return Space(self._shapes(d), self.seed)

    def _shapes(self, d: int) -> Shapes:
        return self.shapes or Shapes(("all",), ((d,),))


def _part_of(memory: Memory) -> Memory:
    """The compression's part of a memory, by its own names."""
    names = (name for name in memory if name.startswith(_PREFIX) and name != _NUMBER)
    return {name.removeprefix(_PREFIX): memory[name] for name in names}
