"""Mixed precision: forward and backward of local steps in bfloat16, where that is safe and pays.

Of a sequence of plain layers the convolutions and the wide products (`privfed.models.sequence`);
of another module what PyTorch's autocast deems safe. Parameters, losses, updates, clips, sums and
noise stay in full precision, and so does scoring. No proof depends on it: what a client computes
before it is clipped is its own affair.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from privfed.core.errors import Refused
from privfed.data.federation import Examples
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
    exact = _gradient(network, examples)
    try:
        deviation = _off(_gradient(replace(network, mixed=batch_size), examples), exact)
    except RuntimeError as error:
        return f"does not go with this model: {error}"
    if deviation <= TOLERANCE:
        return ""
    return (
        f"moves this model's gradient by {deviation:.0%} of its norm, on made-up examples, of "
        f"which at most {TOLERANCE:.0%} are expected"
    )


def as_asked_for(network: Network, examples: Examples) -> str:
    """What a plan says of a precision that was asked for by name; nothing of full precision."""
    if not network.mixed:
        return ""
    exact = _gradient(replace(network, mixed=0), examples)
    if torch.equal(_gradient(network, examples), exact):  # no layer has enough rows
        return "in mixed precision (it changes nothing: batches are too small)"
    return "in mixed precision"


def _gradient(network: Network, examples: Examples) -> Tensor:
    """The gradient `[d]` on made-up examples, dropout aside."""
    with scoring(network.module):
        return network.gradient(network.initial_params, *examples.made_up(_EXAMPLES)).double()


def _off(rounded: Tensor, exact: Tensor) -> float:
    """The error of a gradient, as a share of its norm."""
    norm = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(rounded - exact)) / max(norm, 1e-30)
