"""Mixed precision: forward and backward of local steps in bfloat16, where that is safe and pays.

Of a sequence of plain layers the convolutions and the wide products (`privfed.models.sequence`);
of another module what PyTorch's autocast deems safe. Parameters, losses, updates, clips, sums and
noise stay in full precision, and so does scoring. No proof depends on it: what a client computes
before it is clipped is its own affair.
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
FASTER = 1.1
"""How many times as fast mixed precision has to be where it is left open: less is no gain."""
_EXAMPLES = 8


def mixed(network: Network, examples: Examples, batch_size: int) -> Network:
    """The same network, with gradients in mixed precision. Raises `Refused` where `unsound`."""
    if reason := unsound(network, examples, batch_size):
        raise Refused(f'run.precision = "mixed" {reason}; use "full"')
    return replace(network, mixed=batch_size)


def unsound(network: Network, examples: Examples, batch_size: int) -> str:
    """Why `network` is not to be trained in mixed precision, after that name; empty where it is.

    Its gradient on made-up examples, dropout aside, must not be off by more than 5 % of its norm,
    and PyTorch has to be able to compute it so.
    """
    x, y = examples.made_up(_EXAMPLES)
    with scoring(network.module):
        exact = network.gradient(network.initial_params, x, y).double()
        try:
            in_mixed = replace(network, mixed=batch_size)
            rounded = in_mixed.gradient(network.initial_params, x, y).double()
        except RuntimeError as error:
            return f"does not go with this model: {error}"
    norm = float(torch.linalg.vector_norm(exact))
    deviation = float(torch.linalg.vector_norm(rounded - exact)) / max(norm, 1e-30)
    if deviation <= TOLERANCE:
        return ""
    return (
        f"moves this model's gradient by {deviation:.0%} of its norm, on made-up examples, of "
        f"which at most {TOLERANCE:.0%} are expected"
    )
