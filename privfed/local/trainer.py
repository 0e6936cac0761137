"""Local training of a chunk of clients: stacked as one batched model, or one after the other.

Both take exactly the same batches and give the same rows up to float rounding. Stacked wins for
small models, where PyTorch's cost per call dominates; the loop wins where one model already fills
the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.data.federation import Federation
from privfed.local.batches import Batches, plan_batches, steps
from privfed.local.exchange import Broadcast
from privfed.local.objective import Objective, Work
from privfed.models.network import Leaves, Network
from privfed.streams import Keys
from privfed.vector import Indices

Way = Literal["stacked", "loop"]
Statistic = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Rows `[c, *]` of models w `[c, d]` on batches x, y of which `real` `[c, B]` counts."""
Steering = Callable[[Tensor, Tensor, float], Tensor]
"""From a direction `[c, d]`, how far models lie from the broadcast one `[c, d]`, and a rate: the
direction `[c, d]` that a simulated attacker takes instead."""
DROPOUT, _MEASURING = 2**62, 2**62 + 1
"""Salts that no epoch has."""


@dataclass(frozen=True)
class LocalTrainer:
    """E epochs of minibatch SGD at rate `lr` on each client's mean loss.

    At most `most_steps` of its steps, unless that is 0.
    """

    federation: Federation
    network: Network
    objective: Objective
    lr: float
    epochs: int
    batch_size: int
    way: Way
    most_steps: int = 0
    steering: Steering | None = None
    """Where clients are attackers who go their own way."""

    @property
    def plain(self) -> bool:
        """Whether steps go along the gradient."""
        return self.objective.plain and self.steering is None

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        """What models w `[c, d]` descend along `[c, d]`: the objective's, and what attackers do."""
        direction = self.objective.direction(grad, w, broadcast, state)
        if self.steering is None:
            return direction
        return self.steering(direction, w - broadcast["params"], self.lr)

    def train(
        self,
        ids: Indices,
        broadcast: Broadcast,
        states: Tensor | None,
        keys: Keys,
        epochs: Indices | None = None,
        returning: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows `[c, m]` of clients `ids` `[c]`, and their new states.

        `states` `[c, k]` are theirs; only those `returning` `[c]` have one of their own.
        `epochs` `[c]` are each client's, where stragglers do fewer than all. Clients are cheapest
        in descending order of their number of steps; any order is right.
        """
        each = np.full(len(ids), self.epochs) if epochs is None else epochs
        batches = plan_batches(self.federation, ids, keys, each, self.batch_size, self.most_steps)
        if self.objective.anchored == "all":
            states = self.gradients(ids, broadcast["params"], keys)
        if self.way == "stacked":
            w = self._stacked(batches, broadcast, states)
        else:
            w = self._loop(batches, broadcast, states, keys)
        work = Work(
            torch.from_numpy(batches.steps).to(w),
            self.lr,
            self._measured(ids, broadcast["params"], w, keys),
            returning,
        )
        return self.objective.message(w, broadcast, states, work)

    def steps(self, sizes: Indices, epochs: Indices | int) -> Indices:
        """Local steps `[c]` of clients with `sizes` `[c]` examples in so many `epochs`."""
        return steps(sizes, epochs, self.batch_size, self.most_steps)

    def gradients(self, ids: Indices, params: Tensor, keys: Keys) -> Tensor:
        """Each client's gradient `[c, d]` of its mean loss over all its examples; 0 for none."""
        still = params.expand(len(ids), -1)
        return self._mean(ids, still, keys, self.batch_size, len(params), self._gradient)

    def _measured(self, ids: Indices, params: Tensor, w: Tensor, keys: Keys) -> Tensor | None:
        """What the objective `measures`: losses `[c, 1]` at `params`, or Fishers `[c, d]` at w."""
        if self.objective.measures == "loss":
            still = params.expand(len(ids), -1)
            return self._mean(ids, still, keys, self.batch_size, 1, self._loss)
        if self.objective.measures == "fisher":  # the mean of squares is not the square of means
            return self._mean(
                ids, w, keys, 1, len(params), lambda *batch: self._gradient(*batch).square()
            )
        return None

    def _mean(
        self, ids: Indices, w: Tensor, keys: Keys, batch_size: int, width: int, of: Statistic
    ) -> Tensor:
        """`of` batches at w `[c, d]`, averaged over each client's examples `[c, width]`."""
        batches = plan_batches(self.federation, ids, keys, 1, batch_size)
        rows = torch.from_numpy(batches.rows).to(w.device)
        mask = torch.from_numpy(batches.mask).to(w.device)
        sizes = torch.from_numpy(self.federation.sizes(ids)).to(w).clamp(min=1)[:, None]
        total = w.new_zeros(len(ids), width)
        seeds = keys.per_client(rows.shape[1], salt=_MEASURING) >> np.uint64(1)
        with own_draws(w.device):
            for step in range(rows.shape[1]):
                for some in self._together(len(ids)):
                    real = mask[some, step]
                    if not bool(real.any()):
                        continue
                    x, y = self.federation.gather(rows[some, step])
                    seed_draws(int(seeds[some][0, step]), w.device)  # a client's dropout is its own
                    mean = of(w[some], x, y, real)
                    weighted = mean * real.sum(1, keepdim=True)
                    total[some] += torch.where(real.any(1, keepdim=True), weighted, 0.0)
        return total / sizes

    def _gradient(self, w: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        if self.way == "stacked":
            return self._stacked_gradient(w, x, y, real)
        return self.network.gradient(w[0], x[real], y[real])[None]

    def _loss(self, w: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        if self.way == "loop":
            return self.network.losses(w[0], x[real], y[real]).mean().reshape(1, 1)
        losses = self.network.stacked_losses(w, x, y)
        return (losses * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)

    def _together(self, count: int) -> Iterator[slice]:
        """All clients of a chunk at once, or each alone."""
        if self.way == "stacked":
            yield slice(0, count)
        else:
            yield from (slice(client, client + 1) for client in range(count))

    def _stacked(self, batches: Batches, broadcast: Broadcast, states: Tensor | None) -> Tensor:
        device = broadcast["params"].device
        rows, mask = (_by_step(each).to(device) for each in (batches.rows, batches.mask))
        shares = mask / mask.sum(2, keepdim=True).clamp(min=1)
        w = broadcast["params"].repeat(len(batches.steps), 1)
        leaves, held = {}, 0
        for step, (count, all_train) in enumerate(batches.training()):
            real, now = mask[step, :count], w[:count]
            x, y = self.federation.gather(rows[step, :count])
            if self.plain and all_train:
                if count != held:
                    leaves, held = self.network.leaves(now), count
                parts = self.network.stacked_gradient_parts(leaves, x, y, shares[step, :count])
                self._descend(leaves, parts)
                continue
            grad = self._stacked_gradient(now, x, y, real)
            state = None if states is None else states[:count]
            if self.objective.anchored == "batch":
                state = self._stacked_gradient(broadcast["params"].expand(count, -1), x, y, real)
            move = self.lr * self.direction(grad, now, broadcast, state)
            now -= torch.where(real.any(1, keepdim=True), move, 0.0)
        return w

    def _stacked_gradient(self, w: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Each client's gradient `[c, d]` of its mean loss over its real examples."""
        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)
        return self.network.stacked_gradient(w, x, y, shares)

    @torch.no_grad()
    def _descend(self, leaves: Leaves, parts: list[Tensor]) -> None:
        torch._foreach_add_(list(leaves.values()), parts, alpha=-self.lr)

    def _loop(
        self, batches: Batches, broadcast: Broadcast, states: Tensor | None, keys: Keys
    ) -> Tensor:
        device = broadcast["params"].device
        w = broadcast["params"].repeat(len(batches.rows), 1)
        seeds = keys.per_client(1, salt=DROPOUT)[:, 0] >> np.uint64(1)
        with own_draws(device):
            for client, steps in enumerate(batches.steps):
                seed_draws(int(seeds[client]), device)  # dropout is its own, not the chunk's
                now = w[client : client + 1]
                state = None if states is None else states[client : client + 1]
                leaves = self.network.leaves(now[0])
                for step in range(steps):
                    real = batches.rows[client, step][batches.mask[client, step]]
                    x, y = self.federation.gather(torch.from_numpy(real).to(device))
                    if self.plain:
                        self._descend(leaves, self.network.gradient_parts(leaves, x, y))
                        continue
                    twice = self.objective.anchored == "batch"
                    same = _draws(device) if twice else None
                    grad = self.network.gradient(now[0], x, y)
                    if same is not None:
                        _draw_again(same, device)  # the same batch, dropout included
                        state = self.network.gradient(broadcast["params"], x, y)[None]
                    direction = self.direction(grad[None], now, broadcast, state)
                    now.sub_(direction, alpha=self.lr)
        return w


def _by_step(each: NDArray[Any]) -> Tensor:
    """`[c, S, B]` as `[S, c, B]`, the clients of a step side by side."""
    return torch.from_numpy(np.ascontiguousarray(each.swapaxes(0, 1)))


def own_draws(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn inside leaves torch's own generators as they were."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _draws(device: torch.device) -> Tensor:
    """The state of the generator in use."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.default_generator.get_state()


def _draw_again(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.default_generator.set_state(state)


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed the generators in use here as `torch.manual_seed`, which takes 70 times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
