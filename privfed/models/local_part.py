"""The local part of a network, which stays with each client, and the full network that it trains.

For the server, local parameters are constants at their public initial values, like frozen ones:
they are not in the vector that is sent. A client trains a network with a longer vector `[d + p]`:
the shared parameters first, then the local ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from privfed.core.vector import Shapes
from privfed.models.network import Leaves, Network
from privfed.models.sequence import Factor


@dataclass(frozen=True)
class FullNetwork(Network):
    """A network as a client trains it, with shared and local parameters and running statistics.

    Trained batch normalisations (`norms`, by name) use batch statistics, whether they are local, as
    in FedBN (Li, Jiang, Zhang, Kamp & Dou 2021), or averaged. For a single example they use their
    running statistics (`statistics`, by name). These are entries of the vector that have no
    gradient; each forward pass on a batch updates them in place.
    """

    norms: tuple[str, ...] = ()
    statistics: frozenset[str] = frozenset()

    @property
    def unstackable(self) -> str:
        if self.norms:
            return "this model normalises by batch statistics, and padding would change them"
        return super().unstackable

    def leaves(self, flat: Tensor) -> Leaves:
        leaves = super().leaves(flat)
        for name in self.statistics:
            leaves[name].requires_grad_(False)
        return leaves

    def _mean_loss(
        self, leaves: Leaves, x: Tensor, y: Tensor, factors: dict[str, Factor] | None = None
    ) -> Tensor:
        with _by_batch(self.module, self.norms if len(x) > 1 else ()):
            return super()._mean_loss(leaves, x, y, factors)


def full_network(network: Network) -> Network:
    """Returns `network` as clients train it, with its local part and averaged statistics.

    If it has neither, `network` itself is returned.
    """
    local = network.local
    if not (local.names or network.averaged.names):
        return network
    shapes = Shapes((*network.shapes.names, *local.names), (*network.shapes.shapes, *local.shapes))
    params = torch.cat([network.initial_params, local_start(network)])
    norms, statistics = _norms(network.module, frozenset(shapes.names))
    same = {field.name: getattr(network, field.name) for field in fields(Network)}
    made = FullNetwork(**same, norms=norms, statistics=statistics)
    return replace(made, shapes=shapes, initial_params=params)


def local_start(network: Network) -> Tensor:
    """Returns the public initial values `[p]` of a new client's local part; p may be 0."""
    if not network.local.names:
        return network.initial_params[:0]
    return network.local.flatten(network.constants).to(network.initial_params)


def held_shapes(
    module: nn.Module, parameters: Mapping[str, Tensor], norms: Sequence[str]
) -> Shapes:
    """Returns the names and shapes of `parameters`, and of the running statistics of `norms`."""
    held = dict(parameters)
    for name in norms:
        part = module.get_submodule(name)
        prefix = f"{name}." if name else ""
        held |= {f"{prefix}{key}": tensor for key, tensor in part.named_buffers(recurse=False)}
    return Shapes(tuple(held), tuple(tuple(tensor.shape) for tensor in held.values()))


def _norms(module: nn.Module, held: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Returns the running statistics among the names `held`, after the names of their layers."""
    statistics = held & {name for name, _ in module.named_buffers()}
    return tuple(sorted({name.rpartition(".")[0] for name in statistics})), statistics


@contextmanager
def _by_batch(module: nn.Module, norms: tuple[str, ...]) -> Iterator[None]:
    """Returns a context in which the batch normalisations `norms` use batch statistics."""
    parts = [module.get_submodule(name) for name in norms]
    for part in parts:
        part.train()
    try:
        yield
    finally:
        for part in parts:
            part.eval()


def missing_part(network: Network) -> str:
    """Returns a warning that the local part of `network` has its initial values; "" without one."""
    local = network.local
    if not local.names:
        return ""
    named = ", ".join(local.names[:4]) + (", …" if len(local.names) > 4 else "")
    return (
        f"{local.length} parameters of this model ({named}) are local to each client (model.local) "
        "and have their initial values here, as for a new client: the model is useful only with a "
        "client's own values"
    )
