"""Mixed precision: local steps partly in bfloat16, if that is accurate.

In a sequence of plain layers, convolutions and products with many rows are computed in bfloat16
(`privfed.models.sequence`); in other modules, the operations that PyTorch's autocast selects.
Parameters, losses, updates, clips, sums, noise and scores are in full precision. No proof depends
on the precision: clipping bounds any local computation.
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
"""Largest accepted relative error, in L2 norm, of a gradient in mixed precision."""
FASTER = 1.1
"""Smallest speed-up at which mixed precision is chosen automatically."""
_EXAMPLES = 8


def mixed(network: Network, examples: Examples, batch_size: int) -> Network:
    """Returns the same network, with gradients in mixed precision.

    Args:
      network: the network.
      examples: examples of the population, of which only the form is read.
      batch_size: size of a full batch.

    Raises:
      Refused: if mixed precision is not accurate for this network, or not supported.
    """
    if reason := unsound(network, examples, batch_size):
        raise Refused(f'run.precision is "mixed", but it {reason}; use "full"')
    return replace(network, mixed=batch_size)


def unsound(network: Network, examples: Examples, batch_size: int) -> str:
    """Returns the reason why `network` cannot be trained in mixed precision; empty if it can.

    PyTorch must support the computation, and the relative error of the gradient on synthetic
    examples, without dropout, must be at most 5 %.
    """
    exact = _gradient(network, examples)
    try:
        distance = _off(_gradient(replace(network, mixed=batch_size), examples), exact)
    except RuntimeError as error:
        return f"does not work with this model ({error})"
    if distance <= TOLERANCE:
        return ""
    return (
        f"changes this model's gradient on synthetic examples by {distance:.0%} of its norm, more "
        f"than {TOLERANCE:.0%}"
    )


def as_asked_for(network: Network, examples: Examples) -> str:
    """Returns "in mixed precision", for messages; "" in full precision.

    A remark follows if mixed precision has no effect, because batches are too small.
    """
    if not network.mixed:
        return ""
    exact = _gradient(replace(network, mixed=0), examples)
    if torch.equal(_gradient(network, examples), exact):  # no layer has enough rows
        return "in mixed precision (without effect: batches are too small)"
    return "in mixed precision"


def _gradient(network: Network, examples: Examples) -> Tensor:
    """Returns the gradient `[d]` on synthetic examples, without dropout."""
    with scoring(network.module):
        return network.gradient(network.initial_params, *examples.synthetic(_EXAMPLES)).double()


def _off(rounded: Tensor, exact: Tensor) -> float:
    """Returns the relative error of the gradient `rounded`, in L2 norm."""
    norm = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(rounded - exact)) / max(norm, 1e-30)
