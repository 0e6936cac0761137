"""Plans each client's minibatch at each local step of E epochs.

Every epoch is a fresh permutation of the client's own examples, cut into batches of B. The last
batch of an epoch may be smaller. A client with fewer than B examples has one batch per epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.client.descent import LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective
from privfed.core.streams import Keys
from privfed.core.vector import Indices
from privfed.data.federation import Federation

P = TypeVar("P")
R = TypeVar("R")
MOST_AHEAD = 1 << 24
"""Upper bound on the number of values read ahead (64 MB); larger chunks are read step by step."""


def read_ahead(pieces: Iterable[P], read: Callable[[P], R]) -> Iterator[tuple[P, R]]:
    """Yields each of `pieces`, in order, as a pair with the result of `read` for it.

    A thread reads one piece ahead of the caller. An exception of `read` is raised when its piece
    would be yielded. After the iterator is closed, no further piece is read.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="reading") as thread:
        before = None
        for piece in pieces:
            following = piece, thread.submit(read, piece)
            if before:
                yield before[0], before[1].result()
            before = following
        if before:
            yield before[0], before[1].result()


def in_memory(federation: Federation, ids: Indices) -> Federation:
    """Returns a population of clients `ids` `[c]` only, renumbered from 0, with examples in memory.

    Features are as `Federation.gather` returns them to training (clipped and scaled). If none of
    the clients has an example, one random synthetic example is stored, which belongs to no client.
    """
    offsets = np.concatenate([[0], np.cumsum(federation.sizes(ids))]).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    rows = np.repeat(federation.offsets[ids], np.diff(offsets)) + within
    if len(rows):
        index = torch.from_numpy(rows).to(federation.examples.y.device)
        x, y = federation.gather(index)
    else:
        x, y = federation.examples.synthetic(1)
    examples = replace(
        federation.examples, x=x, y=y, owners=None, clients=(), sites=None, site_names=()
    )
    return replace(
        federation,
        examples=examples,
        offsets=offsets,
        identities=federation.identify(ids),
        sites=None if federation.sites is None else federation.sites[ids],
        persons=None,
        _stages={},
    )


def as_read(federation: Federation, ids: Indices) -> tuple[Federation, Indices]:
    """Returns the clients `ids` `[c]` in memory (`in_memory`), and their indices 0 to c - 1.

    Returns `federation` and `ids` unchanged if the features of these clients are more than
    `MOST_AHEAD` values in total.
    """
    numbers = int(federation.sizes(ids).sum()) * math.prod(federation.examples.x.shape[1:])
    if numbers > MOST_AHEAD:
        return federation, ids
    return in_memory(federation, ids), np.arange(len(ids))


@dataclass(frozen=True)
class Course:
    """Local training of c clients in progress.

    Attributes:
      origin: initial models, shape [c, d].
      w: current models, shape [c, d]; changed in place at every step.
      state: client states, shape [c, k], or None; if the objective's `anchored` is "all", each
        client's gradient at its initial model instead, shape [c, d].
      carried: vectors carried between steps, shape [c, j], changed in place at every step; None
        if the objective carries none.
      counts: number of each client's examples by class, shape [c, classes]; None unless the
        objective changes the loss (`changes_loss`) and labels are classes.
    """

    origin: Tensor
    w: Tensor
    state: Tensor | None
    carried: Tensor | None
    counts: Tensor | None = None

    @classmethod
    def begin(
        cls,
        objective: Objective,
        clients: int,
        broadcast: Broadcast,
        state: Tensor | None,
        measured: Tensor | None = None,
    ) -> Course:
        """Returns the training of `clients` clients before their first step.

        `measured` `[c, b]` are the clients' losses at the b broadcast models; None unless the
        objective's `measures` is "loss".
        """
        origin = objective.origin(broadcast, state, measured).expand(clients, -1)
        carried = objective.carry(broadcast, state)
        if carried is not None:
            carried = carried.expand(clients, -1).clone()
        return cls(origin, origin.clone(), state, carried)

    def of(self, clients: slice) -> Course:
        """Returns the training of a slice of the c clients; its tensors are views of these."""
        state = None if self.state is None else self.state[clients]
        carried = None if self.carried is None else self.carried[clients]
        counts = None if self.counts is None else self.counts[clients]
        return Course(self.origin[clients], self.w[clients], state, carried, counts)

    def step(
        self,
        grad: Tensor,
        anchor: Tensor | None,
        number: int,
        epoch: Tensor,
        steps: Tensor,
        lr: float,
    ) -> LocalStep:
        """Returns the inputs of the next step; the arguments are fields of `LocalStep`."""
        return LocalStep(self.w, grad, anchor, self.state, self.carried, number, epoch, steps, lr)

    def go(
        self,
        direction: Tensor,
        lr: float,
        carried: Tensor | None,
        training: Tensor | None = None,
    ) -> None:
        """Moves the models by `-lr` times `direction` `[c, d]`, and stores `carried` `[c, j]`.

        If a mask `training` `[c, 1]` is given, all other clients' models and carried vectors are
        left unchanged. Nothing is stored if `carried` is None.
        """
        if self.carried is not None and carried is not None:  # first: `carried` may be `w` itself
            going = carried if training is None else torch.where(training, carried, self.carried)
            self.carried.copy_(going)
        if training is None:
            self.w.sub_(direction, alpha=lr)
        else:
            self.w.sub_(torch.where(training, lr * direction, 0.0))


@dataclass(frozen=True)
class Batches:
    """The batches of c clients at S steps, padded to B examples each.

    Padding repeats the first example of the same batch. The amount of padding depends on the other
    clients in the chunk, and a model may return NaN for an example, which a weight of zero does not
    cancel. Padding must therefore be an example of the batch, never another client's and never a
    synthetic one.

    Attributes:
      rows: indices of examples in the population's store, shape [c, S, B].
      mask: whether an entry of `rows` is an example (True) or padding, shape [c, S, B].
      steps: number of steps of each client, shape [c]; at later steps all entries are padding.
      epochs: number of epochs completed before each step, shape [c, S].
    """

    rows: Indices
    mask: NDArray[np.bool_]
    steps: Indices
    epochs: Indices

    def training(self) -> list[tuple[int, bool]]:
        """Returns, for each step, a number n, and whether each of the first n clients has a batch.

        Clients from index n on have none at this step. The second value is always True if clients
        are in descending order of their number of steps.
        """
        going = self.steps[:, None] > np.arange(self.rows.shape[1])
        counts = (going * np.arange(1, len(going) + 1)[:, None]).max(0, initial=0)
        return list(zip(counts.tolist(), (going.sum(0) == counts).tolist(), strict=True))


def steps(sizes: Indices, epochs: Indices | int, batch_size: int, most: int = 0) -> Indices:
    """Returns the number of local steps `[c]` of each client.

    Args:
      sizes: number of examples of each client, shape [c].
      epochs: local epochs, an integer or shape [c].
      batch_size: examples per batch.
      most: upper bound on the number of steps; 0 is no bound.
    """
    total = epochs * -(-sizes // batch_size)
    return np.minimum(total, most) if most else total


def plan_batches(
    federation: Federation,
    ids: Indices,
    keys: Keys,
    epochs: Indices | int,
    batch_size: int,
    most_steps: int = 0,
) -> Batches:
    """Builds the batches of clients `ids` `[c]`.

    A client's batches depend only on its own key and size, not on the other clients in the chunk.

    Args:
      federation: the population.
      ids: client indices, shape [c].
      keys: random streams of these clients, in the same order.
      epochs: local epochs, an integer or shape [c].
      batch_size: examples per batch.
      most_steps: upper bound on the steps of each client; 0 is no bound.

    Returns:
      Example indices and masks of all steps, padded to a common shape.
    """
    sizes = federation.sizes(ids)
    batch_size = min(batch_size, max(int(sizes.max(initial=0)), 1))
    total = steps(sizes, epochs, batch_size, most_steps)
    most = int(np.max(epochs, initial=1))
    orders = _permutations(sizes, keys, most)
    step = np.arange(total.max(initial=0))
    per_epoch = np.maximum(-(-sizes // batch_size), 1)[:, None]
    epoch, batch = np.divmod(step[None, :], per_epoch)
    position = batch[:, :, None] * batch_size + np.arange(batch_size)
    mask = (position < sizes[:, None, None]) & (step < total[:, None])[:, :, None]
    first = np.where(mask[:, :, :1], position[:, :, :1], 0)
    epoch = np.minimum(epoch, most - 1)
    flat = epoch[:, :, None] * orders.shape[2]
    chosen = flat + np.where(mask, position, first)
    chosen = chosen.reshape(len(ids), mask.shape[1] * batch_size)
    within = np.take_along_axis(
        orders.reshape(len(ids), orders.shape[1] * orders.shape[2]), chosen, axis=1
    ).reshape(mask.shape)
    rows = within + federation.offsets[ids][:, None, None]
    return Batches(np.where(sizes[:, None, None] > 0, rows, 0), mask, total, epoch)


def _permutations(sizes: Indices, keys: Keys, epochs: int) -> Indices:
    """Returns a permutation of 0 … sizes[k] - 1 for each client k and epoch.

    The result is `[c, epochs, L]`, with L the largest size (at least 1). In the row of client k
    further entries, from `sizes[k]` on, are meaningless.
    """
    longest = max(int(sizes.max(initial=0)), 1)
    orders = np.empty((len(sizes), epochs, longest), dtype=np.int64)
    beyond = np.arange(longest) >= sizes[:, None]
    for epoch in range(epochs):
        words = keys.per_client(longest, salt=epoch) >> np.uint64(1)
        words[beyond] = np.iinfo(np.uint64).max
        orders[:, epoch] = np.argsort(words, axis=1, kind="stable")
    return orders
