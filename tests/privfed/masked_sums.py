"""Small masked sums for tests: graphs, codecs, rows, and wires that change a message."""

from dataclasses import dataclass, replace

import numpy as np

from privfed.core.streams import Streams
from privfed.privacy.codec import Codec
from privfed.secure.channel import Wire
from privfed.secure.identities import client_identity
from privfed.secure.limits import SENDS
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.messages import wire
from privfed.secure.summation import Session

STREAMS = Streams(3, simulated=True)


@dataclass(frozen=True)
class Fixed:
    """A graph without a security requirement, for small shapes that a policy would not choose."""

    threshold: int
    degree: int | None = None
    survivors: int = 0
    byzantine: int = 0

    def corrupt(self, clients):
        return self.byzantine

    def counted_of(self, clients):
        return clients

    def graph(self, clients):
        degree = clients - 1 if self.degree is None else min(self.degree, clients - 1)
        threshold = min(self.threshold, degree + (degree == clients - 1))
        return Graph(clients, degree, threshold, self.survivors)


def codec(length=5, bits=32, capacity=50):
    return Codec.finest(1.0, 1.0, length, bits, capacity, 2.0**30)


def session(clients=6, leaves=(), round=1):
    ids = 3 + 5 * np.arange(clients)
    return Session(round, 0, b"h" * 32, ids, np.array(leaves, dtype=np.int64), STREAMS)


def rows(encoder, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-encoder.largest, encoder.largest + 1, size=(count, encoder.length))


def sent(channel, of, whole):
    """Sends the rows of the clients that send, and returns their sum."""
    leaves = of.leaves if len(of.leaves) else np.zeros(len(of.clients), dtype=np.int64)
    here = np.isin(leaves, SENDS)
    for client, row in zip(of.clients[here].tolist(), whole[here], strict=True):
        channel.send(client, row)
    return whole[here].sum(0)


def tampering(kind, change, upward=True, victim=8):
    """Returns a wire that changes messages of `kind` to or from one client."""

    class Tampered(Wire):
        def carry(self, client, data, going_up):
            message = wire.decode(data)
            if client != victim or going_up is not upward or not isinstance(message, kind):
                return data
            changed = change(message)
            return changed if isinstance(changed, bytes) else wire.encode(changed)

    return Tampered()


def signed(message, sender=8, **changes):
    """Returns a client's message with changes, in the name of `sender`, signed by the client
    itself.
    """
    changed = replace(message, sender=sender, **changes)
    return replace(changed, signature=client_identity(8).sign(changed.text))


def played(policy=None, clients=7, limits=None, **keys):
    of, encoder = session(clients), codec()
    channel = MaskedChannel(
        of, encoder, policy or Fixed(4), **({"limits": limits} if limits else {})
    )
    sent(channel, of, rows(encoder, clients))
    return channel, of.clients.tolist()
