"""From what examples say to what each client says of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privfed.deferred import torch
from privfed.vector import Indices

if TYPE_CHECKING:
    from torch import Tensor


def group_means(examples: Tensor, offsets: Indices, groups: Indices | None, count: int) -> Tensor:
    """Sums of clients' `examples` `[n, k]` by group, over all of the client's: `[c * count, k]`.

    Client i's are `examples[offsets[i]:offsets[i + 1]]`, and `groups` `[n]` their groups, of
    `count` (None: all in the first). Row i * count + g is client i's of group g. The sum over a
    client's groups is the mean of its examples, so that many examples weigh as much as few; a
    client without any has zeros. Raises `ValueError` where offsets do not reach from 0 to n, or a
    group is none of them.
    """
    if offsets[0] != 0 or offsets[-1] != len(examples) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; expected 0 to {len(examples)}, rising"
        )
    groups = np.zeros(len(examples), dtype=np.int64) if groups is None else groups
    if len(groups) and not 0 <= groups.min() <= groups.max() < count:
        raise ValueError(f"groups go from {groups.min()} to {groups.max()}, of {count}")
    sizes = np.diff(offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    weights = torch.from_numpy(1.0 / np.repeat(sizes, sizes)).to(examples.device)
    places = torch.from_numpy(owners * count + groups).to(examples.device)
    sums = examples.new_zeros(len(sizes) * count, examples.shape[1], dtype=torch.float64)
    return sums.index_add_(0, places, examples.double() * weights[:, None])
