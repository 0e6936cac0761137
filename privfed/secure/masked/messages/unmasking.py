"""The messages by which clients agree on the survivors and help to remove the masks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, Reader, records
from privfed.secure.masked.messages.message import ClientMessage, WireMessage, read_sender
from privfed.secure.masked.messages.roster import Attestation
from privfed.secure.masked.messages.sealed_shares import LAYERS, MASK_KEY, SEED
from privfed.secure.masked.shamir import LENGTH
from privfed.secure.primitives import KEY, SIGNATURE, verified

_VOTE = struct.Struct(f"<Q{SIGNATURE}s")
_SHARE = struct.Struct(f"<Q{LENGTH}s")
_LAYER = struct.Struct(f"<QQ{LENGTH}s")

OpenShares = tuple[tuple[int, int], ...]
"""Values of shares, each with the client whose secret it belongs to."""
OpenLayers = tuple[tuple[int, int, int], ...]
"""Values of shares of layers' seeds, each with the client and its layer's number."""


@dataclass(frozen=True)
class Survivors(WireMessage):
    """Message of the server to all clients that sent a row: the clients with rows in the sum.

    `clients` are in order. On a random graph each client also receives the attestations of its own
    surviving neighbours.
    """

    context: bytes
    clients: tuple[int, ...]
    attested: tuple[Attestation, ...] = ()
    kind: ClassVar[int] = 7

    def vote_text(self, agreed: bytes) -> bytes:
        """Returns the text that voters for these survivors sign under the roster hash `agreed`."""
        return b"privfed survivors" + agreed + b"".join(map(NUMBER.pack, self.clients))

    def body(self) -> bytes:
        clients = records([NUMBER.pack(client) for client in self.clients])
        attested = b"".join(attestation.body() for attestation in self.attested)
        return clients + COUNT.pack(len(self.attested)) + attested

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Survivors:
        clients = tuple(client for (client,) in data.records(NUMBER))
        attested = tuple(Attestation.read(data) for _ in range(data.count()))
        return cls(context, clients, attested)


@dataclass(frozen=True)
class Vote(WireMessage):
    """Message of a client to the server: its signature on the survivors.

    An honest client signs only one set of survivors in a session.
    """

    context: bytes
    sender: int
    signature: bytes
    kind: ClassVar[int] = 8
    size: ClassVar[int] = _VOTE.size

    def cast_by(self, public: bytes, text: bytes) -> bool:
        """Whether the holder of `public` signed `text`, the result of `Survivors.vote_text`."""
        return verified(public, self.signature, text)

    def body(self) -> bytes:
        return NUMBER.pack(self.sender) + self.signature

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Vote:
        return cls(context, *data.fields(_VOTE))


@dataclass(frozen=True)
class Votes(WireMessage):
    """Message of the server to one client: votes for the same survivors, by its `Graph.voters`.

    `gone` is the server's count of dropouts from the roster, for the removal of layers of noise.
    """

    context: bytes
    votes: tuple[Vote, ...]
    gone: int = 0
    kind: ClassVar[int] = 9

    def body(self) -> bytes:
        return records([vote.body() for vote in self.votes]) + NUMBER.pack(self.gone)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Votes:
        votes = tuple(Vote(context, *fields) for fields in data.records(_VOTE))
        return cls(context, votes, data.number())


@dataclass(frozen=True)
class Unmask(ClientMessage):
    """Message of a client to the server: the shares that remove masks.

    For each client whose shares it holds, it reveals one: of a survivor's seed (`seeds`) or of a
    dropout's mask key (`keys`). `layers` contains, for each of these survivors that does not keep
    all layers, the number (from 1) of the first layer to be removed, and a share of that layer's
    seed. The number follows from the larger of the server's and this client's counts of dropouts.
    `acknowledged` is a hash of the hashes of the shares that the client received; revealed shares
    must have these hashes.
    """

    seeds: OpenShares
    keys: OpenShares
    layers: OpenLayers = ()
    acknowledged: bytes = bytes(KEY)
    kind: ClassVar[int] = 10

    @property
    def shares(self) -> Iterator[tuple[int, int, int]]:
        """All shares in this message: a client, the number of its secret, and the share's value.

        The number is `SEED`, `MASK_KEY`, or `LAYERS` and above.
        """
        for which, shares in ((SEED, self.seeds), (MASK_KEY, self.keys)):
            yield from ((who, which, value) for who, value in shares)
        yield from ((who, LAYERS + layer - 1, value) for who, layer, value in self.layers)

    def content(self) -> bytes:
        layers = [_LAYER.pack(who, layer, _bytes_of(value)) for who, layer, value in self.layers]
        return (
            self.acknowledged + shares_bytes(self.seeds) + shares_bytes(self.keys) + records(layers)
        )

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Unmask:
        (signature, sender), hashes = read_sender(data), data.take(KEY)
        seeds, keys = read_open_shares(data), read_open_shares(data)
        opened = data.records(_LAYER)
        layers = tuple((who, layer, _value_of(value)) for who, layer, value in opened)
        return cls(context, sender, seeds, keys, layers, hashes, signature=signature)


def shares_bytes(shares: OpenShares) -> bytes:
    """Returns the bytes of `shares`, pairs of a client and the value of a share."""
    return records([_SHARE.pack(who, _bytes_of(value)) for who, value in shares])


def read_open_shares(data: Reader) -> OpenShares:
    """Parses the next list of shares. Raises `BadMessage` if it is malformed."""
    return tuple((who, _value_of(value)) for who, value in data.records(_SHARE))


def _bytes_of(value: int) -> bytes:
    return value.to_bytes(LENGTH, "little")


def _value_of(text: bytes) -> int:
    return int.from_bytes(text, "little")
