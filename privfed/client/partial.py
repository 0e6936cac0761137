"""Objectives for models of which clients send only a shared part, or with batch statistics.

The objective wraps the run's objective, which trains only the shared part `[d]`: row, server and
event are those of a smaller model. The local part `[p]` takes plain gradient steps:

- *simultaneously*: FedPer (Arivazhagan, Aggarwal, Singh & Choudhary 2019) if the head is local,
  LG-FedAvg (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov & Morency 2020, Algorithm 1)
  if the body is local, FedBN (Li, Jiang, Zhang, Kamp & Dou 2021, Algorithm 1) if batch
  normalisations are local;
- *alternately*: FedRep (Collins, Hassani, Mokhtari & Shakkottai 2021, Algorithm 1): the local part
  for a number of epochs, with the shared part fixed, and then the shared part, with the local part
  fixed.

*Releases*: sums of the rows `[m]` of the shared part, clipped as usual. A row contains no local
parameter. It depends on the client's examples, its random numbers, released values and its own
state, so the local part costs no privacy beyond the row (`privfed.client.client_states`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import SkipValidation
from torch import Tensor

from privfed.client.around import Around
from privfed.client.descent import LocalStep
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Work
from privfed.core.vector import Layout


class Averaging(Around):
    """The objective `inner` on a model's parameters; its running statistics are averaged.

    The last `count` entries of the model's vector are the running statistics of batch
    normalisations, which forward passes update. A client sends their changes after the row of
    `inner`. Changes have no norm bound, so models with such statistics are refused under privacy.
    """

    count: int

    def state_length(self, d: int) -> int:
        """Returns the number of values of a client's state: that of `inner`."""
        return self.inner.state_length(d - self.count)

    def layout(self, d: int) -> Layout:
        """Returns the layout of `inner`, with the statistics appended as its last part."""
        return self.inner.layout(d - self.count).plus("statistics", self.count)

    def init(self, params: Tensor) -> Memory:
        return self.inner.init(self._parts(params)[0])

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        return (yield from self.inner.prelude(self._parts(params)[0], memory))

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return self.inner.initial_client_state(self._sent(broadcast))

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        start = super().origin(self._sent(broadcast), state, measured)
        shared = self._parts(broadcast["params"])[1].expand(*start.shape[:-1], -1)
        return torch.cat([start, shared], dim=-1)

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        return super().carry(self._sent(broadcast), state)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        (w, statistics), (grad, _) = self._parts(step.w), self._parts(step.grad)
        direction, carried = super().along(replace(step, w=w, grad=grad), self._sent(broadcast))
        return torch.cat([direction, torch.zeros_like(statistics)], dim=1), carried

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        parameters, statistics = self._parts(w)
        row, after = self.inner.message(parameters, self._sent(broadcast), state, work)
        change = statistics - self._parts(broadcast["params"])[1]
        return torch.cat([row, change], dim=1), after

    def admitted(self, rows: Tensor) -> Tensor:
        inner, statistics = self._parts(rows)
        return torch.cat([self.inner.admitted(inner), statistics], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        row, statistics = self._parts(released)
        delta, after = self.inner.conclude(self._sent(broadcast), row, memory, cohorts)
        return torch.cat([delta, statistics]), after

    def _sent(self, broadcast: Broadcast) -> Broadcast:
        """Returns `broadcast` for `inner`: its "params" without the statistics."""
        return {**broadcast, "params": self._parts(broadcast["params"])[0]}

    def _parts(self, vectors: Tensor) -> Sequence[Tensor]:
        """Splits `vectors` into all but the last `count` entries, and these (the statistics)."""
        return torch.split(vectors, [vectors.shape[-1] - self.count, self.count], -1)


class Partial(Around):
    """The objective `inner` on the shared parameters of a model, and plain steps on the local ones.

    The public vector `start` `[p]` is the initial local part of every client. A client's state is
    its local part, p numbers, followed by the state of `inner`.
    """

    keeps: ClassVar[int] = 1

    start: SkipValidation[Tensor]
    local_epochs: int = 0
    """Number of first epochs of a round that train only the local part; later epochs train only the
    shared part. If 0, all epochs train both parts.
    """

    @property
    def personalises(self) -> bool:
        """True, since each client has its own local part."""
        return True

    @property
    def plain(self) -> bool:
        return self.inner.plain and not self.local_epochs

    def state_length(self, d: int) -> int:
        """Returns the number of values of a client's state if the model has d shared parameters."""
        return len(self.start) + self.inner.state_length(d)

    def init(self, params: Tensor) -> Memory:
        return self.inner.init(self._parts(params)[0])

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        sent = self._parts(params)[0]
        extra = yield from self.inner.prelude(sent, memory)
        return {"params": sent, **extra}

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return torch.cat([self.start, self.inner.initial_client_state(broadcast)])

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        return self._joined(super().origin(broadcast, state, measured), state)

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self._joined(broadcast["params"], state)

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        if self.local_epochs:  # the number of steps of the shared part
            return broadcast["params"].new_zeros(1)
        return super().carry(broadcast, state)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        if self.local_epochs:
            return self._in_turn(step)
        grad, local = self._parts(step.grad)
        shared = replace(step, w=self._parts(step.w)[0], grad=grad)
        direction, carried = super().along(shared, broadcast)
        return torch.cat([direction, local], dim=1), carried

    def contrasts(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        others = super().contrasts(broadcast, state)
        if others is None or state is None:
            return others
        models = others.expand(len(state), -1, -1)
        stays = state[:, None, : len(self.start)].expand(-1, models.shape[1], -1)
        return torch.cat([models, stays], dim=2)

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if self.local_epochs and work.carried is not None:
            work = replace(work, steps=work.carried[:, 0], carried=None)
        shared, local = self._parts(w)
        row, after = self.inner.message(shared, broadcast, self.inner_state(state, broadcast), work)
        return row, local if after is None else torch.cat([local, after], dim=1)

    def _in_turn(self, step: LocalStep) -> tuple[Tensor, Tensor | None]:
        """Returns directions `[c, d + p]`, and the new carried vectors.

        In the first `local_epochs` epochs only the local part of a direction is nonzero, afterwards
        only the shared part. Carried is `[c, 1]`, the number of steps of the shared part so far,
        or None if `step.carried` is.
        """
        alone = (step.epoch < self.local_epochs)[:, None]
        shared, local = self._parts(step.grad)
        taken = None if step.carried is None else step.carried + (~alone).to(step.w)
        both = torch.where(alone, 0.0, shared), torch.where(alone, local, 0.0)
        return torch.cat(both, dim=1), taken

    def _joined(self, shared: Tensor, state: Tensor | None) -> Tensor:
        """Joins shared and local parts to models `[c, d + p]`; `[d + p]` without client states."""
        if state is None:
            return torch.cat([shared, self.start.expand(*shared.shape[:-1], -1)], dim=-1)
        stays = state[:, : len(self.start)]
        return torch.cat([shared.expand(len(stays), -1), stays], dim=1)

    def inner_state(self, state: Tensor | None, broadcast: Broadcast) -> Tensor | None:
        """Returns the states `[c, k]` of `inner`, without local parts; None if it keeps none."""
        if state is None or state.shape[1] == len(self.start):
            return None
        return state[:, len(self.start) :]

    def _parts(self, vectors: Tensor) -> Sequence[Tensor]:
        """Returns the shared parameters `[..., d]` and the local ones `[..., p]` of `vectors`."""
        return torch.split(vectors, [vectors.shape[-1] - len(self.start), len(self.start)], -1)
