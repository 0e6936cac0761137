"""The server of a masked sum: collects, forwards, and in the end takes the masks off the total.

It holds one sum `[length]`, however many take part, public keys, and sealed shares that it cannot
read. What a single client gets wrong is refused by name and leaves everything as it was, so that
this client counts as dropped; where too few are left the session aborts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from privfed.privacy.noise.shares import Layers
from privfed.secure.limits import Limits
from privfed.secure.masked.client import (
    Directory,
    commit,
    pair_key,
    self_key,
)
from privfed.secure.masked.graph import Graph, Policy, neighbours
from privfed.secure.masked.layered_noise import layer_noise, next_layer
from privfed.secure.masked.messages import (
    Advertise,
    BadMessage,
    FromServer,
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
)
from privfed.secure.masked.shamir import PRIME, reconstruct
from privfed.secure.primitives import Expander, KeyPair, LowOrder, Words, random_key, verified
from privfed.secure.summation import Aborted

Dealt = dict[int, dict[int, int]]
"""Shares of secrets: whose, and at which place."""
_ORDER = (Advertise, Shares, Masked, Vote, Unmask)


class MaskingServer:
    """Takes each client's message by `handle`, and ends a step by `proceed`."""

    def __init__(
        self,
        invitation: Invitation,
        clients: tuple[int, ...],
        directory: Directory,
        policy: Policy,
        graph_seed: bytes,
        limits: Limits,
        layers: Layers | None = None,
    ) -> None:
        self.invitation, self._context = invitation, invitation.context
        self._directory, self._policy = directory, policy
        self._limits, self._layers = limits, layers
        self._graph_seed = graph_seed
        self._masks = Expander(invitation.length, invitation.bits)
        self._sum = self._masks.zeros()
        self._probe = KeyPair(random_key())
        self._step, self._awaited, self._alive = 0, set(clients), True
        self._signed = b""
        self._keys: dict[int, Advertise] = {}
        self._taken: set[bytes] = set()
        self._shares: dict[int, Shares] = {}
        self._senders: set[int] = set()
        self._votes: dict[int, Vote] = {}
        self._unmasks: dict[int, Unmask] = {}

    def handle(self, client: int, message: Message) -> None:
        """Take the answer of `client`. Raises `BadMessage`, and then nothing has changed."""
        self._require_alive()
        if not isinstance(message, _ORDER):
            raise BadMessage("wrong type", f"a {type(message).__name__} from a client")
        if message.context != self._context:
            raise BadMessage("wrong session", "a message of another session")
        if not isinstance(message, _ORDER[self._step]):
            raise BadMessage("wrong type", f"a {type(message).__name__} out of its turn")
        if message.sender != client:
            raise BadMessage("wrong sender", "a message in another client's name")
        if client not in self._awaited:
            raise BadMessage("unknown sender", "nobody who is asked, or who answered already")
        text = self._signed if isinstance(message, Vote) else message.text
        if not verified(self._directory.get(client, b""), message.signature, text):
            fault = "inconsistent" if isinstance(message, Vote) else "wrong signature"
            raise BadMessage(fault, "not what its client signed")
        match message:
            case Advertise():
                self._advertised(message)
            case Shares():
                self._shared(message)
            case Masked():
                self._masked(message)
            case Vote():
                self._voted(message)
            case Unmask():
                self._unmasked(message)
        self._awaited.discard(message.sender)

    def proceed(self) -> Mapping[int, FromServer]:
        """End the step: whom to send what next. Raises `Aborted` where too few are left."""
        self._require_alive()
        self._step += 1
        step = (self._roster, self._inboxes, self._survivors, self._consistency)[self._step - 1]
        self._alive = False  # unless the step succeeds
        sent = step()
        self._alive, self._awaited = True, set(sent)
        return sent

    def _require_alive(self) -> None:
        if not self._alive:
            raise Aborted("a session that has ended")

    def _advertised(self, message: Advertise) -> None:
        public = {message.channel, message.mask}
        if len(public) < 2 or public & self._taken:
            raise BadMessage("duplicate key", "a public key that is in use already")
        for key in public:
            try:
                self._probe.agree(key)
            except LowOrder as error:
                raise BadMessage("low-order key", str(error)) from error
        self._taken |= public
        self._keys[message.sender] = message

    def _roster(self) -> Mapping[int, Roster]:
        clients, seed = tuple(sorted(self._keys)), self._graph_seed
        self._graph: Graph = self._policy.graph(len(clients))
        self._places = {client: place for place, client in enumerate(clients, start=1)}
        degree = self._graph.degree
        self._near = {me: neighbours(seed, clients, degree, me) for me in clients}
        nonces = tuple(self._keys[client].nonce for client in clients)
        shape = (degree, self._graph.threshold, seed)
        alike = Roster(self._context, clients, nonces, *shape, keys=())
        self._agreed = alike.agreed()
        return {
            me: replace(alike, keys=tuple(self._keys[other] for other in self._near[me]))
            for me in clients
        }

    def _shared(self, message: Shares) -> None:
        if tuple(client for client, _ in message.sealed) != self._near[message.sender]:
            raise BadMessage("wrong receivers", "shares for others than the graph's neighbours")
        self._shares[message.sender] = message

    def _inboxes(self) -> Mapping[int, Inbox]:
        self._shared_by = set(self._shares)
        self._require(self._shared_by, "shared their keys")
        sealed: dict[int, list[tuple[int, bytes]]] = {me: [] for me in self._shares}
        for sender, message in self._shares.items():
            for receiver, text in message.sealed:
                if receiver in sealed:
                    sealed[receiver].append((sender, text))
        self._commitments = {who: (one.commitment, one.last) for who, one in self._shares.items()}
        self._shares.clear()
        return {me: Inbox(self._context, tuple(sorted(texts))) for me, texts in sealed.items()}

    def _masked(self, message: Masked) -> None:
        if len(message.words) != self._masks.size:
            raise BadMessage("wrong length", "a masked row of another length than the session's")
        words = self._masks.unpack(message.words)
        if words is None:
            raise BadMessage("wrong modulus", "bits beyond the numbers of the session's modulus")
        self._sum += words
        self._senders.add(message.sender)

    def _survivors(self) -> Mapping[int, Survivors]:
        self._require(self._senders, "sent their row")
        if len(self._senders) < self._limits.least(len(self._places)):
            raise Aborted("too few clients sent their row")
        said = Survivors(self._context, tuple(sorted(self._senders)))
        self._signed = said.signed(self._agreed)
        return dict.fromkeys(said.clients, said)

    def _voted(self, message: Vote) -> None:
        self._votes[message.sender] = message

    def _consistency(self) -> Mapping[int, Votes]:
        self._require(set(self._votes), "agreed on the survivors")
        sent: dict[int, Votes] = {}
        for me in sorted(self._votes):
            holders = self._graph.holders(me, self._near[me])
            others = [who for who in holders if who in self._votes]
            some = others[: self._graph.threshold]
            sent[me] = Votes(self._context, tuple(self._votes[who] for who in some))
        return sent

    def _unmasked(self, message: Unmask) -> None:
        near = set(self._graph.holders(message.sender, self._near[message.sender]))
        seeds, keys = ([who for who, _ in pairs] for pairs in (message.seeds, message.keys))
        if len(set(seeds)) != len(seeds) or not set(seeds) <= near & self._senders:
            raise BadMessage("wrong shares", "seeds twice, or of others than surviving neighbours")
        if len(set(keys)) != len(keys) or not set(keys) <= (near & self._shared_by) - self._senders:
            raise BadMessage("wrong shares", "keys twice, or of others than dropped neighbours")
        layers = [who for who, _ in message.layers]
        if len(set(layers)) != len(layers) or not set(layers) <= near & self._senders:
            raise BadMessage("wrong shares", "layers twice, or of others than survivors")
        if message.gone < len(self._places) - len(self._senders):
            raise BadMessage("wrong shares", "of layers of noise that the survivors have to keep")
        values = (*message.seeds, *message.keys, *message.layers)
        if not all(value < PRIME for _, value in values):
            raise BadMessage("wrong shares", "a share outside the field")
        self._unmasks[message.sender] = message

    def total(self) -> tuple[Words, int]:
        """The sum modulo 2^bits and the number of survivors. Raises `Aborted`."""
        self._require_alive()
        self._alive = False
        self._require(set(self._unmasks), "helped to take the masks off")
        seeds: Dealt = {who: {} for who in self._senders}
        keys: Dealt = {who: {} for who in self._shared_by - self._senders}
        layers: dict[int, Dealt] = {}
        for sender, message in self._unmasks.items():
            above = layers.setdefault(message.gone, {who: {} for who in self._senders})
            lists = (message.seeds, message.keys, message.layers)
            for pairs, found in zip(lists, (seeds, keys, above), strict=True):
                for who, value in pairs:
                    found[who][self._places[sender]] = value
        total = self._sum.copy()
        for who, shares in sorted(seeds.items()):
            seed = self._secret(shares)
            if commit(self._agreed, seed) != self._commitments[who][0]:
                raise Aborted("wrong seed: shares of a client's seed do not fit its commitment")
            self._masks.apply(total, self_key(self._agreed, seed), subtract=True)
        for who, shares in sorted(keys.items()):
            self._remove_pairs(total, who, self._secret(shares))
        self._remove_layers(total, layers)
        return self._masks.reduce(total), len(self._senders)

    def _remove_pairs(self, total: Words, gone: int, secret: bytes) -> None:
        """Subtract the masks that survivors put on for a client that never sent its row."""
        pair = KeyPair(secret)
        if pair.public != self._keys[gone].mask:
            raise Aborted("wrong key: shares of a client's key do not fit its public key")
        for other in self._near[gone]:
            if other in self._senders:
                shared = pair.agree(self._keys[other].mask)
                key = pair_key(self._agreed, shared, gone, other)
                self._masks.apply(total, key, subtract=gone < other)

    def _remove_layers(self, total: Words, shares: Mapping[int, Dealt]) -> None:
        """Subtract the layers of noise that fewer survivors would have needed.

        Each helper counted who is `gone` by itself. Where somebody garbled what it dealt some of
        them, these count it as gone: it is the others' count, if they are enough, that holds.
        """
        clients = len(self._places)
        most = self._layers.count(clients) if self._layers else 0
        if self._layers is None or clients - len(self._senders) >= most:
            return
        gone = self._agreed_gone(shares)
        for who in sorted(self._senders) if gone < most else ():
            seed = self._secret(shares[gone][who])
            for number in range(gone + 1, most + 1):
                noise = layer_noise(self._layers, clients, number, seed, len(total))
                total -= noise.astype(total.dtype)
                last, seed = seed, next_layer(seed)
            if commit(self._agreed, last) != self._commitments[who][1]:
                raise Aborted("wrong layer: shares of a layer's seed do not fit its commitment")

    def _agreed_gone(self, shares: Mapping[int, Dealt]) -> int:
        """The smallest number of missing clients for which everybody's layers can be told."""
        for gone in sorted(shares):
            if all(len(held) >= self._graph.threshold for held in shares[gone].values()):
                return gone
        raise Aborted("too few clients count the same survivors to take layers of noise off")

    def _secret(self, shares: Mapping[int, int]) -> bytes:
        try:
            return reconstruct(shares, self._graph.threshold)
        except ValueError as error:
            raise Aborted(f"a secret cannot be put together: {error}") from error

    def _require(self, left: set[int], did: str) -> None:
        """Of all who shared secrets, enough holders have to be `left`."""
        if not recoverable(self._graph, self._near, self._shared_by, left):
            raise Aborted(f"too few clients {did}")


def recoverable(
    graph: Graph, near: Mapping[int, tuple[int, ...]], whose: set[int], left: set[int]
) -> bool:
    """Whether enough of all, and of the holders of each of `whose`, are `left`."""
    if len(left) < max(graph.survivors, graph.threshold):
        return False
    if graph.complete:
        return True
    return all(sum(other in left for other in near[who]) >= graph.threshold for who in whose)
