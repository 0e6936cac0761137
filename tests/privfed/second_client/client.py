"""The client: a generator that receives five messages, and answers each."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from second_client import encoding as kinds
from second_client.arithmetic import (
    acknowledged,
    agreed_secret,
    commitment,
    derive,
    is_share,
    mask,
    packed,
    polynomial,
    seal,
    share,
    share_hashes,
    signed_by,
    unseal,
)
from second_client.encoding import (
    LABELS,
    Reader,
    Refusal,
    message,
    opened,
    records,
    require,
    sha256,
    sized,
    texts,
    u64,
)
from second_client.graphs import Shape
from second_client.noise import Layers


@dataclass(frozen=True)
class Sum:
    """A client's knowledge of a sum before the invitation; `terms` follow an invitation's
    session.
    """

    terms: bytes
    directory: Mapping[int, bytes]
    shape: Callable[[int], Shape]
    layers: Layers | None = None

    @property
    def bits(self):
        return int.from_bytes(self.terms[-16:-8], "little")

    @property
    def length(self):
        return int.from_bytes(self.terms[-8:], "little")


@dataclass(frozen=True)
class Keys:
    """The keys that a client advertises."""

    nonce: bytes
    channel: bytes
    mask: bytes


@dataclass(frozen=True)
class Roster:
    """The participants, and the values derived from them for this client."""

    clients: list[int]
    shape: Shape
    agreed: bytes
    keys: Mapping[int, Keys]
    channels: Mapping[int, bytes]
    layers: int


@dataclass(frozen=True)
class Held:
    """Shares that this client may reveal, and the senders of shares, valid or not."""

    shares: Mapping[int, tuple[bytes, ...]]
    senders: frozenset[int]
    acknowledged: bytes


class SecondClient:
    """Answers invitation, roster, inbox, survivors and votes, as bytes, in this order."""

    def __init__(self, me: int, identity: Ed25519PrivateKey, task: Sum, row: list[int]) -> None:
        self.me, self.identity, self.task = me, identity, task
        self.session = self._session(row)
        next(self.session)

    def handle(self, data: bytes) -> bytes:
        """Returns the answer to the server's next message. Raises `Refusal`, which ends the
        session.
        """
        try:
            return self.session.send(data)
        except StopIteration:
            raise Refusal("wrong type") from None

    def _session(self, row):
        """Runs the session; secrets are held only here, and end with it."""
        context, reader = opened((yield b""), kinds.INVITATION)
        self._invited(context, reader)
        nonce, seed = secrets.token_bytes(32), secrets.token_bytes(32)
        channel, masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        public = (key.public_key().public_bytes_raw() for key in (channel, masking))
        mine = Keys(nonce, *public)
        content = u64(self.me) + nonce + mine.channel + mine.mask
        content += self.identity.sign(LABELS["keys"] + context + content)

        _, reader = opened((yield message(kinds.KEYS, context, content)), kinds.ROSTER, context)
        roster = self._roster(reader, context, mine, channel)
        layers = self.task.layers.seeds(len(roster.clients)) if self.task.layers else []
        dealt = self._dealt(roster, (seed, masking.private_bytes_raw(), *layers))
        shares = self._shares(context, roster, seed, layers, dealt)

        _, reader = opened((yield shares), kinds.INBOX, context)
        held = self._inbox(reader, roster, dealt.get(self.me))
        if self.task.layers:
            noise = self.task.layers.rows(len(roster.clients), layers, self.task.length)
            row = [sum(each) for each in zip(row, *noise, strict=True)]
        masked = self._masked(roster, held, seed, masking, row)

        _, reader = opened(
            (yield self._signed(kinds.MASKED, context, masked)), kinds.SURVIVORS, context
        )
        survivors = self._survivors(reader, roster, held)
        ballot = LABELS["survivors"] + roster.agreed + u64(*survivors)
        vote = u64(self.me) + self.identity.sign(ballot)

        _, reader = opened((yield message(kinds.VOTE, context, vote)), kinds.VOTES, context)
        gone = self._votes(reader, roster, survivors, ballot)
        yield self._signed(kinds.UNMASK, context, self._unmask(roster, held, survivors, gone))

    def _signed(self, kind, context, content):
        hashed = sha256(bytes([kind]), context, u64(self.me), content)
        signature = self.identity.sign(LABELS["message"] + hashed)
        return message(kind, context, signature + u64(self.me) + content)

    def _signer(self, client, signature, text, fault="wrong signature"):
        require(signed_by(self.task.directory[client], signature, text), fault)

    def _invited(self, context, reader):
        session, terms = reader.take(32), reader.take(len(self.task.terms))
        reader.end()
        require(context == sha256(LABELS["invitation"], session, terms), "wrong session")
        require(terms == self.task.terms, "wrong sum")

    def _roster(self, reader, context, mine, channel):
        nonces = reader.by_client(lambda: reader.take(32), "wrong roster")
        degree, threshold, seed = reader.number(), reader.number(), reader.take(32)
        agreed = sha256(LABELS["roster"], context, reader.data[: reader.at])
        clients = list(nonces)
        require(nonces.keys() <= self.task.directory.keys(), "wrong roster")
        require(nonces.get(self.me) == mine.nonce, "wrong nonce")
        shape = self.task.shape(len(clients))
        require((degree, threshold) == (shape.degree, shape.threshold), "wrong threshold")
        near = shape.neighbours(seed, agreed, clients, self.me)
        require(len(near) + shape.complete >= threshold, "too few")
        require(reader.number(4) == len(near), "wrong neighbours")
        keys = {who: self._keys(reader, who, context, nonces[who]) for who in near}
        reader.end()
        public = [key for each in (mine, *keys.values()) for key in (each.channel, each.mask)]
        require(len(set(public)) == len(public), "duplicate key")
        channels = {who: agreed_secret(channel, keys[who].channel) for who in near}
        layers = self.task.layers.count(len(clients)) if self.task.layers else 0
        return Roster(clients, shape, agreed, keys, channels, layers)

    def _keys(self, reader, client, context, nonce):
        """Returns the next keys in the roster, which must be the client's."""
        require(reader.number() == client, "wrong neighbours")
        content, signature = reader.take(96), reader.take(64)
        self._signer(client, signature, LABELS["keys"] + context + u64(client) + content)
        require(content[:32] == nonce, "wrong nonce")
        return Keys(content[:32], content[32:64], content[64:])

    def _dealt(self, roster, secrets_):
        """Returns shares of all secrets, by holder, including itself on the complete graph."""
        polynomials = [polynomial(secret, roster.shape.threshold) for secret in secrets_]
        places = {who: place for place, who in enumerate(roster.clients, start=1)}
        holders = {*roster.keys, *([self.me] if roster.shape.complete else [])}
        return {who: tuple(share(each, places[who]) for each in polynomials) for who in holders}

    def _shares(self, context, roster, seed, layers, dealt):
        agreed = roster.agreed
        last = layers[-1] if layers else b""
        hashes = {who: share_hashes(agreed, self.me, who, dealt[who]) for who in dealt}
        head = commitment(agreed, seed) + commitment(agreed, last) + texts(hashes)
        sealed = texts({who: self._sealed(roster, who, dealt[who]) for who in roster.keys})
        hashed = sha256(bytes([kinds.SHARES]), context, u64(self.me), head, sha256(sealed))
        signature = self.identity.sign(LABELS["message"] + hashed)
        return message(kinds.SHARES, context, signature + u64(self.me) + head + sealed)

    def _sealed(self, roster, other, shares):
        way = u64(self.me, other)
        key = derive(roster.agreed, roster.channels[other], "channel", self.me, other)
        return seal(key, way + b"".join(shares), roster.agreed + way)

    def _unsealed(self, roster, other, sealed):
        """Returns the shares that `other` sent this client; empty for anything else."""
        way = u64(other, self.me)
        key = derive(roster.agreed, roster.channels[other], "channel", other, self.me)
        text = unseal(key, sealed, roster.agreed + way)
        shares = tuple(text[at : at + 33] for at in range(16, len(text), 33))
        right = len(text) == 16 + 33 * (2 + roster.layers) and text[:16] == way
        return shares if right and all(map(is_share, shares)) else ()

    def _inbox(self, reader, roster, kept):
        sealed, hashes = reader.texts("wrong senders"), reader.texts("wrong senders")
        reader.end()
        require(sealed.keys() <= roster.keys.keys(), "wrong senders")
        require(sealed.keys() == hashes.keys(), "wrong senders")
        shares = {}
        for who, text in sealed.items():
            dealt = self._unsealed(roster, who, text)
            if dealt and share_hashes(roster.agreed, who, self.me, dealt) == hashes[who]:
                shares[who] = dealt
        if kept:
            shares[self.me] = kept
            hashes[self.me] = share_hashes(roster.agreed, self.me, self.me, kept)
        everything = acknowledged(roster.agreed, self.me, hashes)
        held = Held(shares, frozenset(sealed), everything)
        self._require_enough(roster, held, roster.clients)
        return held

    def _counted(self, roster, held, clients):
        """Returns the `clients` that count: all except neighbours whose shares this client
        lacks.
        """
        return {who for who in clients if who in held.shares or who not in roster.keys}

    def _require_enough(self, roster, held, clients):
        holders = held.shares.keys() & set(clients)
        require(len(holders) >= roster.shape.threshold, "too few")
        require(len(self._counted(roster, held, clients)) >= roster.shape.fewest, "too few")

    def _masked(self, roster, held, seed, masking, row):
        """Returns a masked row's body, from the attestation on."""
        total = [row, mask(derive(roster.agreed, seed, "self"), self.task.length, self.task.bits)]
        for other in held.senders:
            secret = agreed_secret(masking, roster.keys[other].mask)
            key = derive(roster.agreed, secret, "pair", *sorted((self.me, other)))
            words = mask(key, self.task.length, self.task.bits)
            total.append([-word for word in words] if other > self.me else words)
        summed = [sum(each) for each in zip(*total, strict=True)]
        complaints = records([u64(who) for who in sorted(held.senders - held.shares.keys())])
        attestation = self._attestation(roster, held) if roster.shape.random else b""
        return sized(attestation) + complaints + packed(summed, self.task.bits)

    def _attestation(self, roster, held):
        left_out = records([u64(who) for who in sorted(roster.keys.keys() - held.senders)])
        text = LABELS["masked with"] + roster.agreed + u64(self.me) + left_out
        return u64(self.me) + self.identity.sign(text) + left_out

    def _survivors(self, reader, roster, held):
        survivors = reader.clients("wrong survivors")
        require(self.me in survivors and set(survivors) <= set(roster.clients), "wrong survivors")
        near = roster.keys.keys() & set(survivors)
        require(near <= held.senders, "wrong survivors")
        attested = reader.by_client(lambda: self._attested(reader), "not attested")
        reader.end()
        require(attested.keys() == (near if roster.shape.random else set()), "not attested")
        for who, (signature, left_out) in attested.items():
            text = LABELS["masked with"] + roster.agreed + u64(who)
            text += records([u64(other) for other in left_out])
            self._signer(who, signature, text, "not attested")
            require(self.me not in left_out, "not attested")
        self._require_enough(roster, held, survivors)
        return survivors

    @staticmethod
    def _attested(reader: Reader):
        """Returns the fields after the sender in an attestation."""
        return reader.take(64), reader.clients("not attested")

    def _votes(self, reader, roster, survivors, ballot):
        """Returns the number of dropouts by the server's count, if the votes are enough."""
        votes = reader.by_client(lambda: reader.take(64), "wrong voters")
        gone = reader.number()
        reader.end()
        voters = set(survivors)
        if not roster.shape.random:
            voters &= {*roster.keys, *([self.me] if roster.shape.complete else [])}
        require(votes.keys() <= voters, "wrong voters")
        require(len(votes) >= roster.shape.votes, "too few")
        for who, signature in votes.items():
            self._signer(who, signature, ballot, "inconsistent")
        return gone

    def _unmask(self, roster, held, survivors, gone):
        stayed = [who for who in sorted(held.shares) if who in survivors]
        left = [who for who in sorted(held.shares) if who not in survivors]
        seeds = records([u64(who) + held.shares[who][0] for who in stayed])
        keys = records([u64(who) + held.shares[who][1] for who in left])
        layers = []
        if self.task.layers:
            total = len(roster.clients)
            gone = max(gone, total - len(self._counted(roster, held, survivors)))
            keeping = self.task.layers.keeping(total, gone, survivors)
            off = [(who, keeping[who]) for who in stayed if keeping[who] < roster.layers]
            layers = [u64(who) + u64(n + 1) + held.shares[who][2 + n] for who, n in off]
        return held.acknowledged + seeds + keys + records(layers)
