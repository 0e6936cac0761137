"""A client of a masked sum: one answer to each message of the server, and nothing twice.

Bonawitz et al. 2017, figure 4, with the sparse graph of Bell et al. 2020 where there are many
clients. The client trusts its own policy, the public list of identities and what it computes; all
that a server says is checked against these, and anything odd ends the session for this client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.privacy.shares import Layers, Whole
from privfed.secure.graph import Graph, Policy, neighbours
from privfed.secure.limits import Limits
from privfed.secure.messages import (
    Advertise,
    BadMessage,
    FromClient,
    Inbox,
    Invitation,
    Masked,
    Message,
    Roster,
    Shares,
    Survivors,
    Unmask,
    Vote,
    Votes,
    between,
    read_shares,
    share_text,
)
from privfed.secure.primitives import (
    KEY,
    Expander,
    KeyPair,
    LowOrder,
    derive,
    random_key,
    seal,
    unseal,
    verified,
    wipe,
)
from privfed.secure.shamir import share
from privfed.streams import Keys

_FORGOTTEN = (
    *("_pair", "_channel", "_secrets", "_held", "_keys"),
    *("_row", "_identity", "_noise", "_layers", "_voters"),
)
Directory = Mapping[int, bytes]
"""Everybody's long-term Ed25519 public key: without it a server could play all other clients."""


@dataclass(frozen=True)
class Expected:
    """What a client knows of a sum before it is invited: by the run, and the model it was sent."""

    round: int
    exchange: int
    model_hash: bytes
    bits: int
    length: int


_Signed = TypeVar("_Signed", Shares, Masked, Unmask)


class MaskingClient:
    """Answers invitation, roster, inbox, survivors and votes, in this order.

    `row` is asked once for the encoded row `[length]`, when it is masked. To it come the layers of
    `noise`, if there are any. A sum of fewer survivors than `limits` allow is not unmasked.
    Raises `BadMessage` for what it will not answer; it then answers nothing more. One client takes
    part in one session of a round's exchange: to open two and take their difference is up to its
    owner to prevent.
    """

    def __init__(
        self,
        me: int,
        identity: Ed25519PrivateKey,
        directory: Directory,
        policy: Policy,
        expected: Expected,
        row: Callable[[], Whole],
        limits: Limits,
        noise: ClientNoise | None = None,
    ) -> None:
        self.me, self._identity, self._directory = me, identity, directory
        self._policy, self._expected, self._row = policy, expected, row
        self._limits, self._noise = limits, noise
        self._context, self._step = b"", 0

    def handle(self, message: Message) -> FromClient:
        """The answer to the server's next message. Raises `Aborted`, mostly a `BadMessage`."""
        try:
            if self._context and message.context != self._context:
                raise BadMessage("wrong session", "a message of another session")
            self._step += 1
            return self._answer(message)
        except Exception:
            self._end()
            raise

    def _answer(self, message: Message) -> FromClient:
        match (self._step, message):
            case (1, Invitation()):
                return self._advertise(message)
            case (2, Roster()):
                return self._signed(self._share(message))
            case (3, Inbox()):
                return self._signed(self._mask(message))
            case (4, Survivors()):
                return self._vote(message)
            case (5, Votes()):
                answer = self._signed(self._unmask(message))
                self._end()
                return answer
        raise BadMessage("wrong type", f"a {type(message).__name__} out of its turn")

    def _signed(self, message: _Signed) -> _Signed:
        return replace(message, signature=self._identity.sign(message.text))

    def _advertise(self, invitation: Invitation) -> Advertise:
        known = self._expected
        for name in ("round", "exchange", "model_hash", "bits", "length"):
            if getattr(invitation, name) != getattr(known, name):
                raise BadMessage(f"wrong {name}", "an invitation to another sum than this client's")
        self._context = invitation.context
        self._seed, self._mask_secret = random_key(), random_key()
        self._channel, self._pair = KeyPair(random_key()), KeyPair(self._mask_secret)
        public = (self._channel.public, self._pair.public)
        signature = self._identity.sign(Advertise.signed(self._context, self.me, *public))
        return Advertise(self._context, self.me, *public, signature)

    def _share(self, roster: Roster) -> Shares:
        self._graph = self._checked_graph(roster)
        self._agreed = roster.agreed()
        self._places = {client: place for place, client in enumerate(roster.clients, start=1)}
        near = neighbours(roster.seed, roster.clients, self._graph.degree, self.me)
        self._keys = self._checked_keys(roster, near)
        self._secrets = {
            other: _agree(self._channel, keys.channel) for other, keys in self._keys.items()
        }
        holders = self._graph.holders(self.me, near)
        places, threshold = tuple(map(self._places.__getitem__, holders)), self._graph.threshold
        self._layers = self._noise.seeds(len(roster.clients)) if self._noise else ()
        secrets = (bytes(self._seed), bytes(self._mask_secret), *self._layers)
        dealt = [share(secret, threshold, places) for secret in secrets]
        wipe(self._mask_secret)
        held = {who: tuple(one[self._places[who]] for one in dealt) for who in holders}
        self._held = {who: held[who] for who in held.keys() & {self.me}}
        sealed = tuple((other, self._seal(other, held[other])) for other in near)
        commitment = commit(self._context, bytes(self._seed))
        last = commit(self._context, self._layers[-1] if self._layers else b"")
        return Shares(self._context, self.me, commitment, last, sealed)

    def _checked_graph(self, roster: Roster) -> Graph:
        """What this client's own policy makes of the cohort, which the server has to offer."""
        clients = roster.clients
        if list(clients) != sorted(set(clients)) or self.me not in clients:
            raise BadMessage("wrong roster", "clients out of order, twice, or without this one")
        if not set(clients) <= self._directory.keys():
            raise BadMessage("wrong roster", "clients that nobody knows")
        graph = self._policy.graph(len(clients))
        if (roster.degree, roster.threshold) != (graph.degree, graph.threshold):
            raise BadMessage(
                "wrong threshold",
                f"{roster.degree} neighbours of whom {roster.threshold} stay; expected "
                f"{graph.degree} and {graph.threshold}",
            )
        return graph

    def _checked_keys(self, roster: Roster, near: tuple[int, ...]) -> dict[int, Advertise]:
        """The neighbours' keys: all of them, signed by whom they name, and no two alike."""
        if tuple(keys.sender for keys in roster.keys) != near:
            raise BadMessage("wrong neighbours", "keys of others than the graph's neighbours")
        own = (self._channel.public, self._pair.public)
        public = [*own, *(key for keys in roster.keys for key in (keys.channel, keys.mask))]
        if len(set(public)) != len(public):
            raise BadMessage("duplicate key", "two public keys of the roster are the same")
        for keys in roster.keys:
            who = self._directory.get(keys.sender, b"")
            if not verified(who, keys.signature, keys.text):
                raise BadMessage("wrong signature", "keys that their client did not sign")
        return {keys.sender: keys for keys in roster.keys}

    def _seal(self, other: int, shares: tuple[int, ...]) -> bytes:
        text = share_text(self.me, other, shares)
        own = channel_key(self._context, self._secrets[other], self.me, other)
        return seal(own, text, between(self._context, self.me, other))

    def _mask(self, inbox: Inbox) -> Masked:
        senders = [client for client, _ in inbox.sealed]
        if len(set(senders)) != len(senders) or not set(senders) <= self._keys.keys():
            raise BadMessage("wrong senders", "shares twice, or of others than neighbours")
        if len(self._graph.holders(self.me, senders)) < self._graph.threshold:
            raise BadMessage("too few", "fewer neighbours shared their secrets than the threshold")
        self._shared = set(senders)
        for sender, sealed in inbox.sealed:
            text = unseal(
                channel_key(self._context, self._secrets[sender], sender, self.me),
                sealed,
                between(self._context, sender, self.me),
            )
            count = 2 + len(self._layers)
            held = read_shares(text, sender, self.me, count) if text else None
            if held:  # else others' shares have to do: one who garbles them stops nobody
                self._held[sender] = held
        return Masked(self._context, self.me, self._masked_row())

    def _masked_row(self) -> bytes:
        """y_u = x_u + PRG(b_u) + sum_{v < u} PRG(s_uv) - sum_{v > u} PRG(s_uv)."""
        masks = Expander(self._expected.length, self._expected.bits)
        total = masks.zeros()
        row = self._row()
        if self._noise:
            row = row + self._noise.draw(len(self._places), self._layers, len(row))
        total += row.astype(masks.word)
        masks.apply(total, self_key(self._context, self._seed))
        for other in sorted(self._shared):
            secret = _agree(self._pair, self._keys[other].mask)
            masks.apply(total, pair_key(self._context, secret, self.me, other), other > self.me)
        wipe(self._seed)
        del self._pair, self._channel, self._secrets
        return masks.pack(masks.reduce(total))

    def _vote(self, survivors: Survivors) -> Vote:
        clients = survivors.clients
        if list(clients) != sorted(set(clients)) or not set(clients) <= self._places.keys():
            raise BadMessage("wrong survivors", "clients out of order, twice, or not of the roster")
        near = set(clients) & (self._keys.keys() | {self.me})
        if self.me not in near or not near - {self.me} <= self._shared:
            raise BadMessage("wrong survivors", "without this client, or with who never shared")
        voters = self._graph.holders(self.me, near - {self.me})
        if len(voters) < self._graph.threshold or len(clients) < self._graph.survivors:
            raise BadMessage("too few", "fewer survivors than the threshold")
        if len(clients) < self._limits.least(len(self._places)):
            raise BadMessage("too few", "fewer survivors than the noise, or the run, asks for")
        self._survivors, self._near, self._voters = survivors, near, set(voters)
        text = survivors.signed(self._agreed)
        return Vote(self._context, self.me, self._identity.sign(text))

    def _unmask(self, votes: Votes) -> Unmask:
        """One share of each neighbour's: of its seed or of its key, never of both."""
        voters = [vote.sender for vote in votes.votes]
        if len(set(voters)) != len(voters) or not set(voters) <= self._voters:
            raise BadMessage("wrong voters", "votes twice, or of others than surviving neighbours")
        if len(voters) < self._graph.threshold:
            raise BadMessage("too few", "fewer votes than the threshold")
        text = self._survivors.signed(self._agreed)
        for vote in votes.votes:
            if not verified(self._directory.get(vote.sender, b""), vote.signature, text):
                raise BadMessage("inconsistent", "a vote for other survivors than this client's")
        held = sorted(self._held.items())
        seeds = tuple((who, shares[0]) for who, shares in held if who in self._near)
        keys = tuple((who, shares[1]) for who, shares in held if who not in self._near)
        gone = len(self._places) - len(self._survivors.clients)
        too_much = self._near if gone < len(self._layers) else set()  # from layer gone + 1 on
        layers = tuple((who, shares[2 + gone]) for who, shares in held if who in too_much)
        return Unmask(self._context, self.me, seeds, keys, layers)

    def _end(self) -> None:
        """Forget every secret; nothing is answered any more."""
        self._step = 5
        for name in ("_seed", "_mask_secret"):
            if secret := getattr(self, name, None):
                wipe(secret)
        for name in _FORGOTTEN:
            self.__dict__.pop(name, None)


@dataclass(frozen=True)
class ClientNoise:
    """A client's noise in layers, drawn with `keys`; each layer's from a seed of its own."""

    layers: Layers
    keys: Keys

    def seeds(self, clients: int) -> tuple[bytes, ...]:
        """Of layers 1 to T, each the hash of the one before, so that one tells all later ones."""
        count, found = self.layers.count(clients), []
        seed = self.keys.derived(b"layers").bits(KEY // 8).tobytes()
        for _ in range(count):
            found.append(seed)
            seed = next_layer(seed)
        return tuple(found)

    def draw(self, clients: int, seeds: tuple[bytes, ...], length: int) -> Whole:
        """Base and all layers `[length]`."""
        total = self.layers.base(clients).draw(self.keys.derived(b"base"), length)
        for number, seed in enumerate(seeds, start=1):
            total = total + layer_noise(self.layers, clients, number, seed, length)
        return total


def next_layer(seed: bytes) -> bytes:
    return hashlib.sha256(b"privfed layer" + seed).digest()


def layer_noise(layers: Layers, clients: int, number: int, seed: bytes, length: int) -> Whole:
    """What layer `number` of a client is, to itself and to the server that takes it off."""
    return layers.layer(clients, number).draw(Keys(seed, secret=True), length)


def commit(context: bytes, secret: bytes) -> bytes:
    """A hash that tells nothing of a random secret, and by which it is known."""
    return hashlib.sha256(b"privfed commitment" + context + secret).digest()


def self_key(context: bytes, seed: bytes | bytearray) -> bytes:
    """What a client's own mask is expanded from."""
    return derive(seed, context, b"self")


def channel_key(context: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What shares are sealed with: a key for each direction, so that no nonce is used twice."""
    return derive(secret, context, between(b"channel", sender, receiver))


def pair_key(context: bytes, secret: bytes, one: int, other: int) -> bytes:
    """What the mask of two clients is expanded from."""
    return derive(secret, context, between(b"pair", min(one, other), max(one, other)))


def _agree(own: KeyPair, public: bytes) -> bytes:
    try:
        return own.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error
