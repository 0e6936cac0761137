"""What the final model has learned of canaries' examples: one number for each canary.

To first order, the loss of a canary fell by -g_i (w_T - w_0): by how far the model went against the
gradient g_i of its examples at the start. Much of that way is not due to the canary: other canaries
pull, and so do real clients, some along g_i. So the way is taken apart into the directions of all
canaries and of public clients together, by ridge regression, and a canary's score is the part that
is its own. Noise on the model is alike in all directions, so this is the most likely part where
parts are normal beforehand.

Whether a bound on epsilon is valid does not depend on how scores are made, as long as no coin is
looked at; only how much it shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.examples import CanaryExamples
from privfed.auditing.canaries.self_influence import SelfInfluence

_RIDGE = 0.3
"""The variance of noise over that of parts: between a tenth and one it hardly matters."""


@dataclass(frozen=True)
class Learning:
    """The `examples` of K canaries, and the `influence` of these on a run's public start."""

    examples: CanaryExamples
    influence: SelfInfluence

    @property
    def start(self) -> Tensor:
        """The model `[d]` that the run started from."""
        return self.influence.models[0]

    def scores(self, params: Tensor) -> NDArray[np.float64]:
        """The part of each canary `[K]` in the way from the start to the model `params` `[d]`."""
        canaries = self.influence.directions(self.examples.x, self.examples.y)
        ways = torch.cat([canaries, self.influence.others[0]])
        along = -(ways @ (params - self.start)).double()
        gram = (ways @ ways.T).double()
        ridge = _RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        parts = torch.linalg.solve(gram + ridge, along)
        return np.asarray(parts[: len(canaries)].cpu().numpy())
