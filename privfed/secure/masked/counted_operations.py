"""What a masked sum is made of, by its graph: counted as client and server do it."""

from __future__ import annotations

from privfed.privacy.codec import Codec
from privfed.secure.masked.graphs.graph import Graph
from privfed.secure.operations import Operations
from privfed.secure.primitives import Expander


def masked_operations(graph: Graph, codec: Codec, layers: int) -> Operations:
    """The operations of all `graph.clients` and of the server, where nobody drops out.

    *A client* of k neighbours agrees with each on a key for shares and on one for masks, derives
    one key for each direction of a channel and for each mask, and its own mask's; it deals shares
    of 2 + `layers` secrets to k + 1 holders, by t products each, and expands k + 1 masks, a base
    and `layers` of noise. It signs five messages, and on a random graph whom it masked with. *The
    server* tries both its keys, checks the signatures, puts its seed together again from t shares
    (with layers two secrets), for t (t - 1) products of weights that all clients share on the
    complete graph, and takes its mask and the layers off. In one process clients check no other
    signatures, and of two the first to ask for their secret makes it for both.
    """
    n, k, t = graph.clients, graph.degree, graph.threshold
    secrets, opened = 2 + layers, 2 if layers else 1
    size = codec.length * Expander(1, codec.bits).word.itemsize
    weights = (1 if graph.complete else n) * 2 * t * (t - 1)
    return Operations(
        masked=n * (k + 2) * size,
        packed=n * Expander(codec.length, codec.bits).size,
        drawn=n * codec.length * (1 + 2 * layers if layers else 0),
        agreements=n * (k + 2),
        derived=n * (3 * k + 2),
        sealed=n * 2 * k,
        signatures=n * (12 if graph.independent else 10),
        products=n * (secrets * (k + 1) + opened) * t + weights,
    )
