"""What a model has learned of canaries' examples: one number for each canary, by its losses.

Whether a bound on epsilon is valid does not depend on how scores are made, as long as no coin is
looked at; only how much it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.examples import CanaryExamples
from privfed.models.calling import scoring
from privfed.models.network import Network

_AT_ONCE = 1024
"""How many examples are scored at once."""


@dataclass(frozen=True)
class Learning:
    """The `examples` of K canaries, and what the start of a `network` made of them.

    `before` `[K]` are mean losses at the start, and `norms` `[K]` those of their gradients there.
    """

    network: Network
    examples: CanaryExamples
    before: Tensor
    norms: Tensor

    def scores(self, params: Tensor) -> NDArray[np.float64]:
        """By how much the losses of canaries fell until the model `params` `[d]`, `[K]`.

        In units of a step along a canary's own gradient: noise of a deviation on the model moves
        all of these alike.
        """
        fell = self.before - mean_losses(self.network, params, self.examples)
        scores = (fell / self.norms.clamp(min=1e-12)).double()
        return scores.cpu().numpy()


def mean_losses(network: Network, params: Tensor, examples: CanaryExamples) -> Tensor:
    """The mean loss `[K]` of each canary's examples at the model `params` `[d]`."""
    return torch.cat([*_losses(network, params, examples)]).view(len(examples), -1).mean(1)


@torch.no_grad()
def _losses(network: Network, params: Tensor, examples: CanaryExamples) -> Iterator[Tensor]:
    x, y = examples.x.flatten(0, 1), examples.y.flatten(0, 1)
    with scoring(network.module):
        for rows in torch.split(torch.arange(len(y)), _AT_ONCE):
            yield network.losses(params, x[rows], y[rows])
