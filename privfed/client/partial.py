"""Partial models: a client trains the whole network, and sends what of it is shared.

Around the objective of a run, which knows of the shared part `[d]` alone, so that its row, its
server and its event are those of a smaller model. What stays `[p]` takes plain gradient steps:

- *both at once*: FedPer (Arivazhagan, Aggarwal, Singh & Choudhary 2019) where a head stays,
  LG-FedAvg (Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov & Morency 2020, Algorithm 1)
  where a body does, FedBN (Li, Jiang, Zhang, Kamp & Dou 2021, Algorithm 1) where batch
  normalisations do;
- *one after the other*: FedRep (Collins, Hassani, Mokhtari & Shakkottai 2021, Algorithm 1): for so
  many epochs what stays, the shared part fixed, and then what is shared, with what stays fixed.

*What is released* is the row `[m]` of the shared part, clipped and summed as ever. It follows from
the client's examples, its coins, what was released and its own state; so what stays costs nothing
beyond it (`privfed.client.client_states`). No number of what stays is in it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import ConfigDict, SkipValidation
from torch import Tensor

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Grouping, LocalStep, Memory, Objective, Work
from privfed.client.objectives.sgd import Sgd
from privfed.core.vector import Layout


class Partial(Sgd):
    """`shared` on the first numbers of a model, and plain steps on the rest.

    The rest begins at `start` `[p]`, which is public. A client keeps p numbers, and behind them
    what `shared` has it keep.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    keeps: ClassVar[int] = 1

    shared: SkipValidation[Objective]
    """The objective of the shared part."""
    start: SkipValidation[Tensor]
    local_epochs: int = 0
    """For so many epochs of a round, what stays is trained alone, and what is shared after them; 0:
    both are, in all of them."""

    @property
    def plain(self) -> bool:
        return self.shared.plain and not self.local_epochs

    @property
    def grouping(self) -> Grouping | None:
        return self.shared.grouping

    @property
    def sums_states(self) -> bool:
        """Whether the server sums what clients keep for `shared`: of what stays it sums nothing."""
        return self.shared.sums_states

    def state_length(self, d: int) -> int:
        """For d shared numbers."""
        return len(self.start) + self.shared.state_length(d)

    def layout(self, d: int) -> Layout:
        return self.shared.layout(d)

    def init(self, params: Tensor) -> Memory:
        return self.shared.init(self._shared(params))

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        sent = self._shared(params)
        extra = yield from self.shared.prelude(sent, memory)
        return {"params": sent, **extra}

    def unseen(self, broadcast: Broadcast) -> Tensor:
        return torch.cat([self.start, self.shared.unseen(broadcast)])

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        return self._joined(self.shared.origin(broadcast, self._rest(state), measured), state)

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self._joined(broadcast["params"], state)

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        if self.local_epochs:  # how many steps the shared part has taken
            return broadcast["params"].new_zeros(1)
        return self.shared.carry(broadcast, self._rest(state))

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        if self.local_epochs:
            return self._in_turn(step)
        w, grad, rest = self._shared(step.w), self._shared(step.grad), self._rest(step.state)
        direction, carried = self.shared.along(replace(step, w=w, grad=grad, state=rest), broadcast)
        return torch.cat([direction, self._local(step.grad)], dim=1), carried

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if self.local_epochs and work.carried is not None:
            work = replace(work, steps=work.carried[:, 0], carried=None)
        shared, rest = self._shared(w), self._rest(state)
        row, after = self.shared.message(shared, broadcast, rest, work)
        stays = self._local(w)
        return row, stays if after is None else torch.cat([stays, after], dim=1)

    def _in_turn(self, step: LocalStep) -> tuple[Tensor, Tensor | None]:
        """A plain step of what stays `[c, p]`, or of what is shared `[c, d]`, by the epoch."""
        alone = (step.epoch < self.local_epochs)[:, None]
        shared = torch.where(alone, 0.0, self._shared(step.grad))
        stays = torch.where(alone, self._local(step.grad), 0.0)
        taken = None if step.carried is None else step.carried + (~alone).to(step.w)
        return torch.cat([shared, stays], dim=1), taken

    def _joined(self, shared: Tensor, state: Tensor | None) -> Tensor:
        """Whole models `[c, d + p]`; of who keeps nothing `[d + p]`, from the public start."""
        if state is None:
            return torch.cat([shared, self.start.expand(*shared.shape[:-1], -1)], dim=-1)
        stays = state[:, : len(self.start)]
        return torch.cat([shared.expand(len(stays), -1), stays], dim=1)

    def _rest(self, state: Tensor | None) -> Tensor | None:
        """What clients keep for the objective of the shared part `[c, k]`."""
        if state is None or state.shape[1] == len(self.start):
            return None
        return state[:, len(self.start) :]

    def _shared(self, vectors: Tensor) -> Tensor:
        """The shared numbers `[..., d]` of whole vectors `[..., d + p]`."""
        return vectors[..., : vectors.shape[-1] - len(self.start)]

    def _local(self, vectors: Tensor) -> Tensor:
        """The numbers `[..., p]` that stay, of whole vectors `[..., d + p]`."""
        return vectors[..., vectors.shape[-1] - len(self.start) :]
