"""Which examples each client sees at each local step, exactly as E epochs of minibatches go.

Every epoch is a fresh permutation of the client's own examples, cut into batches of B; the last
batch of an epoch may be smaller, and a client with fewer than B examples has one batch an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.data.federation import Federation
from privfed.streams import Keys
from privfed.vector import Indices


@dataclass(frozen=True)
class Batches:
    """`rows` `[c, S, B]` of the store and `mask` of the same shape; False is padding.

    Client k takes `steps[k]` steps, all its batches after those are empty. `epochs` `[c, S]` are
    those over before each of its steps. Padding repeats the first example of its own batch. How
    much padding there is depends on who else is in the chunk, and a model may give NaN for an
    example, which no weight of zero undoes: so padding must be an example that is in the batch
    anyway, never another client's and never a made-up one.
    """

    rows: Indices
    mask: NDArray[np.bool_]
    steps: Indices
    epochs: Indices

    def training(self) -> list[tuple[int, bool]]:
        """Each step's number of clients up to the last who trains, and whether those before do.

        They do where clients come in descending order of their steps.
        """
        going = self.steps[:, None] > np.arange(self.rows.shape[1])
        counts = (going * np.arange(1, len(going) + 1)[:, None]).max(0, initial=0)
        return list(zip(counts.tolist(), (going.sum(0) == counts).tolist(), strict=True))


def steps(sizes: Indices, epochs: Indices | int, batch_size: int, most: int = 0) -> Indices:
    """Local steps of clients with `sizes` `[c]` examples, over `epochs` of all or `[c]` of each.

    At most `most` of them, unless that is 0.
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
    """The batches of clients `ids` `[c]`, whose keys `keys` holds in the same order.

    Each takes at most `most_steps`, unless that is 0. A client's batches depend on its own key and
    size only, not on who else is in the chunk.
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
    """`[c, epochs, L]`: row (k, e) starts with a permutation of 0 … sizes[k] - 1."""
    longest = max(int(sizes.max(initial=0)), 1)
    orders = np.empty((len(sizes), epochs, longest), dtype=np.int64)
    beyond = np.arange(longest) >= sizes[:, None]
    for epoch in range(epochs):
        words = keys.per_client(longest, salt=epoch) >> np.uint64(1)
        words[beyond] = np.iinfo(np.uint64).max
        orders[:, epoch] = np.argsort(words, axis=1, kind="stable")
    return orders
