"""Mixed precision: forward and backward of local steps in bfloat16 where PyTorch deems it safe.

Parameters, losses, updates, clips, sums and noise stay in full precision, and so does scoring. No
proof depends on it: what a client computes before it is clipped is its own affair.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from privfed.data.federation import Examples
from privfed.errors import Refused
from privfed.models.calling import scoring
from privfed.models.network import Network

TOLERANCE = 0.05
"""The error of a gradient in mixed precision that is accepted, as a share of its norm."""
_EXAMPLES = 8


def mixed(network: Network, examples: Examples) -> Network:
    """The same network, with gradients in mixed precision.

    Raises `Refused` where its gradient on made-up examples, dropout aside, is then off by more than
    5 % of its norm, or where PyTorch cannot compute it so.
    """
    in_mixed = replace(network, mixed=True)
    x, y = examples.made_up(_EXAMPLES)
    with scoring(network.module):
        exact = network.gradient(network.initial_params, x, y).double()
        try:
            rounded = in_mixed.gradient(network.initial_params, x, y).double()
        except RuntimeError as error:
            raise Refused(
                f'run.precision = "mixed" does not go with this model: {error}; use "full"'
            ) from error
    norm = float(torch.linalg.vector_norm(exact))
    deviation = float(torch.linalg.vector_norm(rounded - exact)) / max(norm, 1e-30)
    if not deviation <= TOLERANCE:
        raise Refused(
            f'run.precision = "mixed" moves this model\'s gradient by {deviation:.0%} of its norm, '
            f'on made-up examples; expected at most {TOLERANCE:.0%}: use "full"'
        )
    return in_mixed
