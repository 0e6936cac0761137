"""A malicious server that deviates in every message of a masked sum, and what it learns.

The clients are real. The server sees all messages, sends each client different ones, and colludes
with clients, which sign, share and reveal anything it needs.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from dataclasses import dataclass, field, replace

import numpy as np

from privfed.core.streams import Keys
from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.secure import primitives
from privfed.secure.identities import client_identity, verifying_key
from privfed.secure.limits import Limits
from privfed.secure.masked import client as masking_client
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.evidence import WrongShare
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import roster, sealed_shares, unmasking
from privfed.secure.masked.messages.roster import Advertise, Attestation, Roster
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.sealed_shares import acknowledged, read_shares, share_text
from privfed.secure.masked.messages.unmasking import Survivors, Vote, Votes
from privfed.secure.masked.policy import Expected, MaskingPolicy
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.primitives import Expander, seal, unseal
from privfed.secure.summation import Aborted

CODEC = Codec(1.0, 1.0, length=2, bits=16)
SEED, KEY, LAYERS = 0, 1, 2
"""Index of a client's secret."""


identity = client_identity


@functools.lru_cache(maxsize=1 << 10)
def public(client):
    return verifying_key(client_identity(client))


class Ideal:
    """An idealised key agreement: a party without either private key does not call it."""

    def __init__(self, private):
        self.public = hashlib.sha256(b"public" + private).digest()

    def agree(self, public):
        return hashlib.sha256(min(self.public, public) + max(self.public, public)).digest()


@dataclass(frozen=True)
class Pen:
    """Idealised signatures, which are never forged."""

    public: bytes

    def sign(self, text):
        return hashlib.sha512(self.public + text).digest()


def idealise(monkeypatch):
    """Replaces the slowest primitives by hashes, which permits several times as many sessions."""
    monkeypatch.setattr(masking_client, "KeyPair", Ideal)
    monkeypatch.setattr(sealed_shares, "derive", lambda *texts: hashed(b"".join(texts)))
    for module in (primitives, unmasking, roster):
        monkeypatch.setattr(
            module, "verified", lambda who, signature, text: Pen(who).sign(text) == signature
        )
    monkeypatch.setattr(sys.modules[__name__], "identity", lambda who: Pen(public(who)))


def hashed(text):
    return hashlib.sha256(text).digest()


@dataclass(frozen=True)
class Setting:
    """The settings that all clients enforce, and the clients that collude with the server."""

    clients: tuple[int, ...]
    colluders: frozenset[int]
    policy: MaskingPolicy
    limits: Limits
    layers: Layers | None = None
    strangers: tuple[int, ...] = ()
    """Further clients, on no roster, that collude with the server; any number is permitted."""

    def least(self, clients):
        """Returns the smallest number of honest rows that may be summed, for a roster of
        `clients`.
        """
        graph = self.policy.graph(clients)
        least = self.limits.least(self.policy.counted_of(clients))
        if graph.independent:
            return graph.votes(least) - graph.isolated - self.policy.corrupt(clients)
        counted = max(least, graph.threshold, graph.survivors)
        return counted - self.policy.corrupt(clients)

    def near(self, roster, who):
        """Returns the neighbours of a client of the roster; all others if it refuses the roster."""
        try:
            graph = self.policy.graph(len(roster.clients))
        except Aborted:
            return tuple(other for other in roster.clients if other != who)
        edge_key = graph.edge_key(roster.seed, roster.agreed())
        return graph.neighbours(edge_key, roster.clients, who)


@dataclass(eq=False, repr=False)
class Honest:
    """One session of an honest client, and its secrets."""

    client: MaskingClient
    row: np.ndarray
    noise: ClientNoise | None
    keys: Advertise
    roster: Roster | None = None
    threshold: int = 0
    agreed: bytes = b""
    pair: masking_client.KeyPair | None = None
    secrets: tuple[bytes, ...] = ()
    sealed: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    dealers: dict[int, Honest] = field(default_factory=dict)
    named: tuple[int, ...] = ()
    handed: tuple[tuple[int, bytes], ...] = ()
    framed: bool = False
    words: np.ndarray | None = None
    attestation: Attestation | None = None
    survivors: tuple[int, ...] = ()
    vote: Vote | None = None

    @property
    def me(self):
        return self.client.me

    def noised(self):
        """Returns its row with all of its noise."""
        if not self.noise:
            return self.row
        layers = self.secrets[LAYERS:]
        return self.row + self.noise.draw(self.client._expected_parties, layers, CODEC.length)


@dataclass(frozen=True)
class Opened:
    """A sum of honest rows without a mask, as the server has it, and the remaining layers of
    each.
    """

    of: tuple[Honest, ...]
    total: np.ndarray
    staying: tuple[int, ...]


class World:
    """All sessions to which a server invites with one invitation."""

    def __init__(self, setting, rng, client=MaskingClient):
        self.setting, self.rng, self._kind = setting, rng, client
        self._expected = Expected(1, 0, b"m" * 32, CODEC)
        self.invitation = self._expected.invitation(
            rng.bytes(32), setting.policy, setting.limits, setting.layers
        )
        self.context = self.invitation.context
        self._directory = {who: public(who) for who in (*setting.clients, *setting.strangers)}
        self.colluders = {who: self._corrupt(who) for who in setting.colluders}
        self.played = dict(self.colluders)
        self.honest: list[Honest] = []
        self._shares: dict[tuple[Honest, int], dict[int, int]] = {}

    def _corrupt(self, who):
        """Returns keys of its own that the colluding `who` signed."""
        keys, channel, mask = self._synthetic_population(who)
        return self.signed(keys), channel, mask

    def signed(self, keys):
        return replace(keys, signature=identity(keys.sender).sign(keys.text))

    def _synthetic_population(self, who):
        channel, mask = (masking_client.KeyPair(self.rng.bytes(32)) for _ in range(2))
        keys = Advertise(self.context, who, self.rng.bytes(32), channel.public, mask.public)
        return keys, channel, mask

    def play(self, who):
        """Generates keys in the name of an honest client that did not sign them."""
        self.played[who] = self._synthetic_population(who)

    # --- its messages to clients, and their answers ---

    def invite(self, who):
        setting, row = self.setting, self.rng.integers(-50, 50, CODEC.length)
        keys = Keys(self.rng.bytes(32), secret=True)
        noise = ClientNoise(setting.layers, keys) if setting.layers else None
        client = self._kind(
            *(who, identity(who), self._directory, setting.policy, self._expected),
            *(row.copy, setting.limits, noise),
        )
        one = Honest(client, row, noise, client.handle(self.invitation))
        self.honest.append(one)
        return one

    def roster(self, clients, invited):
        """Returns a roster with the keys of the `invited` clients and of colluders."""
        clients = tuple(sorted(clients))
        graph = self.setting.policy.graph(len(clients))
        corrupt = {who: keys for who, (keys, _, _) in self.played.items()}
        keys = tuple((corrupt.get(who) or invited[who].keys) for who in clients)
        nonces = tuple(one.nonce for one in keys)
        shape = (graph.degree, graph.threshold, self.rng.bytes(32))
        return Roster(self.context, clients, nonces, *shape, keys)

    def share(self, one, roster):
        private = bytes(one.client._mask_secret)
        near = self.setting.near(roster, one.me)
        keys = tuple(keys for keys in roster.keys if keys.sender in near)
        if (shares := self._told(one, replace(roster, keys=keys))) is None:
            return
        client, one.roster, hashes = one.client, roster, dict(shares.hashes)
        one.sealed = {who: (text, hashes[who]) for who, text in shares.sealed}
        one.threshold = client._graph.threshold
        one.agreed, one.pair = client._agreed, client._pair
        one.secrets = (bytes(client._seed), private, *client._layers)
        for who in self.played.keys() & one.sealed.keys():
            for which, value in enumerate(self._corrupt_shares(who, one)):
                self._learn(one, which, who, value)

    def _corrupt_shares(self, who, one):
        """Returns an honest client's shares for a colluder."""
        _, channel, _ = self.played[who]
        secret, way = channel.agree(one.keys.channel), (one.me, who)
        key = masking_client.channel_key(one.agreed, secret, *way)
        text = unseal(key, one.sealed[who][0], masking_client.between(one.agreed, *way))
        return read_shares(text, *way, len(one.secrets))

    def _learn(self, one, which, holder, value):
        if one and one.roster and holder in one.roster.clients:
            place = 1 + one.roster.clients.index(holder)
            self._shares.setdefault((one, which), {})[place] = value

    def corrupt_text(self, who, one):
        """Returns a colluder's shares, correctly sealed, and their hashes."""
        _, channel, _ = self.played[who]
        values = tuple(int(self.rng.integers(1 << 62)) for _ in one.secrets)
        secret, way = channel.agree(one.keys.channel), (who, one.me)
        key = masking_client.channel_key(one.agreed, secret, *way)
        text = share_text(*way, values)
        hashes = masking_client.share_hashes(one.agreed, *way, values)
        if values[0] % 64 == 0:  # the server claims that other hashes were signed
            hashes = bytes(len(hashes))
        return seal(key, text, masking_client.between(one.agreed, *way)), hashes

    def deliver(self, one, sealed, dealers):
        """Delivers shares by the name under which they arrive; `dealers` are their true senders."""
        one.dealers = {**dealers, one.me: one}
        mine = one.client._held.get(one.me)
        own = (
            {one.me: (b"", masking_client.share_hashes(one.agreed, one.me, one.me, mine))}
            if mine
            else {}
        )
        every = {**sealed, **own}
        one.handed = tuple((who, every[who][1]) for who in sorted(every))
        texts, hashes = (tuple((who, sealed[who][at]) for who in sorted(sealed)) for at in (0, 1))
        masked = self._told(one, Inbox(self.context, texts, hashes))
        if masked is not None:
            one.named = tuple(sealed)
            one.words = np.frombuffer(masked.words, "<u2")
            one.attestation = masked.attestation

    def attested(self, one, clients):
        """Returns the best attestations of neighbours among `clients`, of this or another
        roster.
        """
        if not self.setting.policy.graph(len(one.roster.clients)).independent:
            return ()
        words: dict[int, Attestation] = {}
        for other in self.honest:
            word, better = other.attestation, other.agreed == one.agreed or other.me not in words
            if better and word and one.me not in word.left_out:
                words[other.me] = word
        for who in self.played:
            text = Attestation.text(one.agreed, who, ())
            words[who] = Attestation(who, (), identity(who).sign(text))
        near = self.setting.near(one.roster, one.me)
        return tuple(words[who] for who in near if who in clients and who in words)

    def survive(self, one, clients):
        attested = self.attested(one, clients)
        one.vote = self._told(one, Survivors(self.context, tuple(sorted(clients)), attested))
        if one.vote:
            one.survivors = tuple(sorted(clients))

    def corrupt_vote(self, who, one):
        text = Survivors(self.context, one.survivors).vote_text(one.agreed)
        return Vote(self.context, who, identity(who).sign(text))

    def votes_of(self, clients, one):
        return [self.corrupt_vote(who, one) for who in clients]

    def unmask(self, one, votes, gone=0):
        if answer := self._told(one, Votes(self.context, tuple(votes), gone)):
            proof = WrongShare(answer, one.handed)
            assert answer.acknowledged == acknowledged(one.agreed, one.me, one.handed)
            one.framed = proof.holds(one.roster, self._directory)
            for who, which, value in answer.shares:
                self._learn(one.dealers.get(who), which, one.me, value)

    def _told(self, one, message):
        try:
            return one.client.handle(message)
        except Aborted:
            return None

    # --- the information that it gains ---

    def _secret(self, one, which):
        shares = self._shares.get((one, which), {})
        if one.roster is None or len(shares) < one.threshold:
            return None
        secret = reconstruct(shares, one.threshold)
        assert secret == one.secrets[which]
        return secret

    def opened(self):
        """Returns all sums of honest rows without a mask that the server does not know."""
        self._pairs = {mask.public: mask for _, _, mask in self.played.values()}
        for one in self.honest:
            if secret := self._secret(one, KEY):
                self._pairs[one.pair.public] = masking_client.KeyPair(secret)
        sent = [one for one in self.honest if one.words is not None]
        known, hidden = zip(*map(self._masks, sent), strict=True) if sent else ((), ())
        ends: dict[bytes, list[Honest]] = {}
        for one, keys in zip(sent, hidden, strict=True):
            for key in keys:
                ends.setdefault(key, []).append(one)
        bare = dict(zip(sent, known, strict=True))
        return [
            Opened(group, sum(bare[one] for one in group), tuple(map(self._layers, group)))
            for group in self._groups(sent, ends)
            if all(len(ends[key]) == 2 for one in group for key in hidden[sent.index(one)])
        ]

    def _masks(self, one):
        """Returns a row without masks known to the server, and the keys of the unknown masks."""
        total, hidden = one.words.copy(), []
        expander = Expander(CODEC.length, CODEC.bits)
        seed = self._secret(one, SEED)
        if seed is None:
            hidden.append(one.secrets[SEED])
        else:
            expander.apply(total, masking_client.self_key(one.agreed, seed), subtract=True)
        theirs = {keys.sender: keys.mask for keys in one.roster.keys}
        for other in one.named:
            mine, key = self._pairs.get(one.pair.public), theirs[other]
            pair, end = (mine, key) if mine else (self._pairs.get(key), one.pair.public)
            secret = (pair or one.pair).agree(end if pair else key)
            key = masking_client.pair_key(one.agreed, secret, one.me, other)
            if pair:
                expander.apply(total, key, subtract=other < one.me)
            else:
                hidden.append(key)
        return total, hidden

    def _groups(self, sent, ends):
        """Returns groups of rows that are connected by masks with unknown keys."""
        group = {one: {one} for one in sent}
        for tied in ends.values():
            joined = set().union(*(group[one] for one in tied))
            for one in joined:
                group[one] = joined
        return [tuple(each) for each in {id(each): each for each in group.values()}.values()]

    def _layers(self, one):
        """Returns the number of noise layers that the server cannot remove."""
        most = len(one.secrets) - LAYERS
        told = (j for j in range(most) if self._secret(one, LAYERS + j))
        return next(told, most)


class Broken(AssertionError):
    """A violated guarantee."""


def judge(world):
    """Checks every opened sum: it is exact, of enough rows, and has the required noise."""
    setting, opened = world.setting, world.opened()
    if any(one.framed for one in world.honest):
        raise Broken("an honest client is proved to lie")
    for each in opened:
        exact = sum(one.noised() for one in each.of)
        assert np.array_equal(each.total, exact.astype(np.uint16)), "the judge has miscounted"
        if len({one.agreed for one in each.of}) > 1:
            raise Broken("a sum over two rosters")
        clients, honest = len(each.of[0].roster.clients), len(each.of)
        if honest < setting.least(clients):
            raise Broken(f"a sum of {honest} of {clients}")
        if setting.layers:
            corrupt, parties = setting.policy.corrupt(clients), setting.policy.counted_of(clients)
            left = sum(setting.layers.remaining(parties, count).variance for count in each.staying)
            due = least_noise(setting.layers, parties, honest, corrupt)
            if left < due * (1 - 1e-9):
                raise Broken(f"noise of variance {float(left):g} of {float(due):g}")
    return opened


def least_noise(layers, parties, honest, corrupt):
    """Returns the least variance that `honest` of `parties` parties retain, by the theorem."""
    if layers.colluders:
        return layers.variance
    ends, gone = layers.boundaries(parties), parties - honest - corrupt
    boundary = next((end for end in ends if end >= gone), ends[-1])
    return layers.variance * (1 - min(corrupt, parties - honest) / (parties - boundary))
