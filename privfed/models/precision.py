"""Mixed precision: forward and backward of local steps in bfloat16 where PyTorch deems it safe.

Parameters, losses, updates, clips, sums and noise stay as they are, and models are scored in full.
No proof depends on it: what a client computes before it is clipped is its own affair.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from privfed.data.federation import Examples
from privfed.errors import Refused
from privfed.models.network import Network
from privfed.models.vetting import scoring

TOLERANCE = 0.05
_EXAMPLES = 8


def mixed(network: Network, examples: Examples) -> Network:
    """`network` with gradients in mixed precision.

    Raises `Refused` where its gradient of made-up examples, dropout aside, is then off by more than
    5 % of its norm, or PyTorch cannot take it so.
    """
    found = replace(network, mixed=True)
    x, y = examples.made_up(_EXAMPLES)
    with scoring(network.module):
        exact = network.gradient(network.start, x, y).double()
        try:
            rough = found.gradient(network.start, x, y).double()
        except RuntimeError as error:
            raise Refused(
                f'run.precision = "mixed" does not go with this model: {error}; use "full"'
            ) from error
    size = float(torch.linalg.vector_norm(exact))
    off = float(torch.linalg.vector_norm(rough - exact)) / max(size, 1e-30)
    if not off <= TOLERANCE:
        raise Refused(
            f'run.precision = "mixed" moves this model\'s gradient by {off:.0%} of its norm, on '
            f'made-up examples; expected at most {TOLERANCE:.0%}: use "full"'
        )
    return found
