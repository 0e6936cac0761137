"""Local training of a chunk of clients: stacked as one batched model, or one after the other.

Both modes use exactly the same batches and give the same rows up to float rounding. Stacking is
faster for small models, where PyTorch's cost per call dominates. The loop is faster for models so
large that a single one fills the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.client.batches import Batches, Course, plan_batches, steps
from privfed.client.descent import LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.answers import refuse_shape
from privfed.core.streams import Keys, drawing_alone, seed_draws
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.metrics.groups import ClientGroups
from privfed.models.network import Leaves, Network

Way = Literal["stacked", "loop"]
Statistic = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps models w `[c, d]`, batches x and y, and a mask `[c, B]` of valid examples to rows `[c, *]`.
"""
Steering = Callable[[Tensor, Tensor, float], Tensor]
"""Maps a direction `[c, d]`, the models' displacement from their origin `[c, d]` and a rate to the
direction `[c, d]` of a simulated attacker.
"""
DROPOUT, _MEASURING = 2**62, 2**62 + 1
"""Salts of random streams, which differ from the numbers of epochs."""


@dataclass(frozen=True)
class LocalTrainer:
    """Trains each client by epochs of minibatch SGD at rate `lr` on its mean loss.

    A client takes at most `most_steps` steps; 0 is no bound.
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
    """Changes the directions of simulated attackers; None for honest clients."""
    groups: ClientGroups | None = None
    """Source of each client's group, if the objective needs it."""

    @property
    def plain(self) -> bool:
        """Whether each step is a plain gradient step on the run's loss."""
        return self.objective.plain and self.steering is None

    def go(
        self, course: Course, step: LocalStep, broadcast: Broadcast, training: Tensor | None = None
    ) -> None:
        """Takes a step in the objective's direction, which `steering` changes if it is set.

        If a mask `training` `[c, 1]` is given, only the clients marked there take the step.
        """
        direction, carried = self.objective.along(step, broadcast)
        if self.steering is not None:
            direction = self.steering(direction, course.w - course.origin, self.lr)
        course.go(direction, self.lr, carried, training)

    def train(
        self,
        ids: Indices,
        broadcast: Broadcast,
        states: Tensor | None,
        keys: Keys,
        epochs: Indices | None = None,
        returning: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Trains clients.

        Training is fastest if clients with the most local steps come first; any order is correct.

        Args:
          ids: client indices, shape [c].
          broadcast: released values by name.
          states: client states, shape [c, k], or None.
          keys: random streams of the clients.
          epochs: number of epochs of each client, shape [c]; None if all do `self.epochs`.
          returning: mask [c] of clients that have a state from an earlier round.

        Returns:
          The rows [c, m] and the clients' new states [c, k], or None if clients keep none.
        """
        each = np.full(len(ids), self.epochs) if epochs is None else epochs
        batches = plan_batches(self.federation, ids, keys, each, self.batch_size, self.most_steps)
        losses = self.losses(ids, broadcast["params"], keys)
        course = Course.begin(self.objective, len(ids), broadcast, states, losses)
        shape = (len(ids), self.network.shapes.length)
        refuse_shape(course.origin, shape, self.objective, Objective.origin)
        if self.objective.changes_loss:
            course = replace(course, counts=self.federation.class_counts(ids))
        if self.objective.anchored == "all":
            course = replace(course, state=self._gradients(ids, course.origin, keys))
        if self.way == "stacked":
            self._stacked(batches, broadcast, course)
        else:
            self._loop(batches, broadcast, course, keys)
        measured = self._fishers(ids, course.w, keys) if losses is None else losses
        steps = torch.from_numpy(batches.steps).to(course.w)
        groups = None
        if self.groups:
            groups = torch.from_numpy(self.groups.of(self.federation, ids)).to(course.w.device)
        work = Work(steps, self.lr, measured, returning, course.carried, keys, groups)
        return self.objective.message(course.w, broadcast, course.state, work)

    @property
    def models_measured(self) -> int:
        """Number of models at which a client measures.

        It is the number of broadcast models if the objective's `measures` is "loss", else 1.
        """
        return self.objective.broadcasts if self.objective.measures == "loss" else 1

    def steps(self, sizes: Indices, epochs: Indices | int) -> Indices:
        """Returns the number of local steps `[c]` of clients with `sizes` `[c]` examples."""
        return steps(sizes, epochs, self.batch_size, self.most_steps)

    def gradients(self, ids: Indices, params: Tensor, keys: Keys) -> Tensor:
        """Returns the gradients `[c, d]` of clients' mean losses at the model `params` `[d]`.

        The gradient of a client without examples is zero.
        """
        return self._gradients(ids, params.expand(len(ids), -1), keys)

    def _gradients(self, ids: Indices, w: Tensor, keys: Keys) -> Tensor:
        """Returns the result of `gradients` for one model per client, w `[c, d]`."""
        return self._mean(ids, w, keys, self.batch_size, w.shape[1], self._gradient)

    def losses(self, ids: Indices, params: Tensor, keys: Keys) -> Tensor | None:
        """Returns the clients' mean losses `[c, b]` at the b models in `params` `[b d]`.

        None if the objective does not measure losses.
        """
        if self.objective.measures != "loss":
            return None
        models = params.view(-1, self.network.shapes.length)
        losses = [
            self._mean(ids, model.expand(len(ids), -1), keys, self.batch_size, 1, self._loss)
            for model in models
        ]
        return torch.cat(losses, dim=1)

    def _fishers(self, ids: Indices, w: Tensor, keys: Keys) -> Tensor | None:
        """Returns the Fisher diagonals `[c, d]` at models w `[c, d]`.

        None unless the objective's `measures` is "fisher".
        """
        if self.objective.measures != "fisher":
            return None
        return self._mean(  # one example per batch, to square each gradient
            ids, w, keys, 1, w.shape[1], lambda *batch: self._gradient(*batch).square()
        )

    def _mean(
        self, ids: Indices, w: Tensor, keys: Keys, batch_size: int, width: int, of: Statistic
    ) -> Tensor:
        """Returns the mean `[c, width]` of the statistic `of` over each client's examples.

        `of` returns its mean `[c, width]` over the valid examples of a batch. The models are w
        `[c, d]`; the result of a client without examples is zero.
        """
        batches = plan_batches(self.federation, ids, keys, 1, batch_size)
        rows = torch.from_numpy(batches.rows).to(w.device)
        mask = torch.from_numpy(batches.mask).to(w.device)
        sizes = torch.from_numpy(self.federation.sizes(ids)).to(w).clamp(min=1)[:, None]
        total = w.new_zeros(len(ids), width)
        seeds = keys.per_client(rows.shape[1], salt=_MEASURING) >> np.uint64(1)
        with preserved_generators(w.device):
            for step in range(rows.shape[1]):
                for some in self._together(len(ids)):
                    real = mask[some, step]
                    if not bool(real.any()):
                        continue
                    x, y = self.federation.gather(rows[some, step])
                    seed_draws(
                        int(seeds[some][0, step]), w.device
                    )  # each client has its own dropout
                    mean = of(w[some], x, y, real)
                    weighted = mean * real.sum(1, keepdim=True)
                    total[some] += torch.where(real.any(1, keepdim=True), weighted, 0.0)
        return total / sizes

    def _gradient(self, w: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        if self.way == "stacked":
            return self._stacked_gradient(w, x, y, real)
        return self.network.gradient(w[0].clone(), x[real], y[real])[None]  # statistics move

    def _loss(self, w: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        if self.way == "loop":
            return self.network.losses(w[0], x[real], y[real]).mean().reshape(1, 1)
        losses = self.network.stacked_losses(w, x, y)
        return (losses * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)

    def _together(self, count: int) -> Iterator[slice]:
        """Yields slices of `count` clients: one of all if models are stacked, else one of each."""
        if self.way == "stacked":
            yield slice(0, count)
        else:
            yield from (slice(client, client + 1) for client in range(count))

    def _stacked(self, batches: Batches, broadcast: Broadcast, course: Course) -> None:
        device = course.w.device
        planned = batches.rows, batches.mask, batches.epochs
        rows, mask, epochs = (_by_step(each).to(device) for each in planned)
        shares = mask / mask.sum(2, keepdim=True).clamp(min=1)
        total = torch.from_numpy(batches.steps).to(course.w)
        leaves, held = {}, 0
        for step, (count, all_train) in enumerate(batches.training()):
            real, now = mask[step, :count], course.of(slice(count))
            x, y = self.federation.gather(rows[step, :count])
            if self.plain and all_train:
                if count != held:
                    leaves, held = self.network.leaves(now.w), count
                parts = self.network.stacked_gradient_parts(leaves, x, y, shares[step, :count])
                self._descend(leaves, parts)
                continue
            grad, anchor = self._local_gradient(now, broadcast, x, y, real), None
            if self.objective.anchored == "batch":
                anchor = self._stacked_gradient(self._anchor(now, broadcast), x, y, real)
            taken = now.step(grad, anchor, step, epochs[step, :count], total[:count], self.lr)
            self.go(now, taken, broadcast, real.any(1, keepdim=True))

    def _local_gradient(
        self, course: Course, broadcast: Broadcast, x: Tensor, y: Tensor, mask: Tensor
    ) -> Tensor:
        """Returns each client's gradient `[c, d]` of the objective's mean loss over a batch.

        Examples that are False in `mask` `[c, B]` are padding, and do not count.
        """
        if not self.objective.changes_loss:
            return self._stacked_gradient(course.w, x, y, mask)
        stacked, reads = self.way == "stacked", self.objective.reads_features
        fields = {"y": y}
        if course.counts is not None:
            fields["counts"] = course.counts
        others = self.objective.contrasts(broadcast, course.state)
        if others is not None:
            models = others.expand(len(course.w), -1, -1).unbind(1)
            features = [self.network.features(model, x, stacked) for model in models]
            fields["others"] = torch.stack(features, dim=1)

        def losses(outputs: Tensor, features: Tensor | None) -> Tensor:
            batch = {"outputs": outputs, **fields}
            if features is not None:
                batch["features"] = features
            return self.objective.client_losses(self.network.loss, batch)

        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)
        return self.network.gradient_of(losses, course.w, x, shares, reads, stacked)

    def _anchor(self, course: Course, broadcast: Broadcast) -> Tensor:
        """Returns the models `[c, d]` at which the second gradient of batches is computed."""
        anchor = self.objective.anchor(course.w, broadcast, course.state, course.carried)
        return anchor.expand(len(course.w), -1)

    def _stacked_gradient(self, w: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Returns each client's gradient `[c, d]` of its mean loss over examples in `mask`."""
        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)
        return self.network.stacked_gradient(w, x, y, shares)

    @torch.no_grad()
    def _descend(self, leaves: Leaves, parts: list[Tensor]) -> None:
        torch._foreach_add_(list(leaves.values()), parts, alpha=-self.lr)

    def _loop(self, batches: Batches, broadcast: Broadcast, course: Course, keys: Keys) -> None:
        device, total = course.w.device, torch.from_numpy(batches.steps).to(course.w)
        seeds = keys.per_client(1, salt=DROPOUT)[:, 0] >> np.uint64(1)
        with preserved_generators(device):
            for client, steps in enumerate(batches.steps):
                seed_draws(int(seeds[client]), device)  # dropout must not depend on the chunk
                now = course.of(slice(client, client + 1))
                leaves = self.network.leaves(now.w[0])
                epochs = torch.from_numpy(batches.epochs[client]).to(device)
                for step in range(steps):
                    real = batches.rows[client, step][batches.mask[client, step]]
                    x, y = self.federation.gather(torch.from_numpy(real).to(device))
                    if self.plain:
                        self.network.descend(leaves, x, y, self.lr)
                        continue
                    grad, anchor = self._alone(now, broadcast, x, y)
                    here = epochs[step : step + 1]
                    taken = now.step(grad, anchor, step, here, total[client : client + 1], self.lr)
                    self.go(now, taken, broadcast)

    def _alone(
        self, course: Course, broadcast: Broadcast, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Returns a client's gradient `[1, d]` on a batch, and the one at its anchor, if any."""
        device = course.w.device
        before = _draws(device) if self.objective.anchored == "batch" else None
        if self.objective.changes_loss:
            real = torch.ones(1, len(x), dtype=torch.bool, device=device)
            grad = self._local_gradient(course, broadcast, x[None], y[None], real)
        else:
            grad = self.network.gradient(course.w[0], x, y)[None]
        if before is None:
            return grad, None
        _draw_again(before, device)  # for the same dropout
        return grad, self.network.gradient(self._anchor(course, broadcast)[0], x, y)[None]


def _by_step(each: NDArray[Any]) -> Tensor:
    """Returns `each` `[c, S, B]` as a contiguous tensor `[S, c, B]`."""
    return torch.from_numpy(np.ascontiguousarray(each.swapaxes(0, 1)))


def preserved_generators(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context that restores torch's random generators (CPU, and `device`) at its end."""
    return drawing_alone([device] if device.type == "cuda" else [])


def _draws(device: torch.device) -> Tensor:
    """Returns the state of torch's random generator for `device`."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.default_generator.get_state()


def _draw_again(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.default_generator.set_state(state)
