"""What crafted canaries hold: examples of the run's own kind, made up from its secret key.

They depend on nobody's private data: on the key, on the public model at the start, and on public
examples where the run has some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.coins import canary_identities
from privfed.auditing.canaries.input_space import InputSpace
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.data.federation import Examples, Federation
from privfed.streams import Keys
from privfed.vector import Indices


@dataclass(frozen=True)
class CanaryExamples:
    """Examples x `[K, n, *features]` and y `[K, n, *labels]` of K canaries."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def federation(
        self, numbers: Indices, heads: NDArray[np.bool_], like: Federation
    ) -> Federation:
        """A population of the canaries `numbers` `[c]`, whose examples are of the form of `like`.

        Those without `heads` `[c]` hold none, so that their training leaves a model as it is.
        Labels stay as they are in rounds in which those of `like` change.
        """
        holding = torch.from_numpy(numbers[heads])
        x, y = (part[holding].flatten(0, 1) for part in (self.x, self.y))
        device = like.examples.y.device
        examples = Examples(x.to(device), y.to(device), like.examples.classes)
        offsets = np.concatenate([[0], np.cumsum(heads * self.y.shape[1])]).astype(np.int64)
        return Federation(examples, offsets, like.test, canary_identities(numbers))


def made_up(
    keys: Keys, each: int, steps: int, space: InputSpace, influence: SelfInfluence
) -> CanaryExamples:
    """`each` examples for the canary of each of the `keys`, after `steps` of crafting.

    With 0 steps they are random.
    """
    parts = list(_chunks(list(keys.each()), each, steps, space, influence))
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    return CanaryExamples(x, y)


def _chunks(
    keys: Sequence[Keys], each: int, steps: int, space: InputSpace, influence: SelfInfluence
) -> Iterator[tuple[Tensor, Tensor]]:
    device = influence.models.device
    for first in range(0, len(keys), influence.together):
        some = keys[first : first + influence.together]
        drawn = [space.drawn(canary, each) for canary in some]
        x, y = (torch.stack(part).to(device) for part in zip(*drawn, strict=True))
        yield space.crafted(x, y, influence, steps, some) if steps else (x, y)
