"""A client of a masked sum: one answer to each message of the server, and nothing twice.

Bonawitz et al. 2017, figure 4, with the sparse graph of Bell et al. 2020 where there are many
clients. The client trusts its own policy, the public list of identities and what it computes; all
that a server says is checked against these, and anything odd ends the session for this client.

*Against a server that lies in every message*, to each client otherwise. Of a roster of n clients at
most k work with it; the graph is complete, t of its shares give a secret back, and 2 t > n + k.

**Theorem.** For each roster that honest clients agreed to, either nothing is opened, or one sum: of
the rows of all honest survivors who agreed to it, at least max(least, t) - k of them, with `least`
by this client's `limits`. Of its noise in layers, of total variance v, h such clients keep at least
v h / (h + k).

*Proof.* All keys that are derived are bound to the roster's hash A, and so are votes, and what
shares are sealed for. A holds a nonce of each client, which the client drew for this session: it
agrees to one roster, and to none of another session. (Signatures on shares, masked rows and what
takes masks off are under the invitation's context, which a replay repeats: the server alone checks
these, against who else may carry messages, and nothing here rests on them.)

1. *Votes.* An honest client signs (A, S), with survivors S, once. Whoever takes masks off under A
   saw t votes for its S, at least t - k of honest clients. Two sets would take 2 (t - k) of the
   n - k that are honest: 2 t <= n + k. So there is one S. Its honest voters are V, |V| >= t - k.
2. *Secrets.* An honest client draws its secrets afresh for each session; so are the noise keys
   that its owner hands it. They are shared under its own A alone, and honest clients hold no shares
   of another roster's: they give shares of the seeds of those in S, and of the mask keys of the
   rest; k more shares are known, and k < t. So nobody's secrets are both told. Of honest clients
   who agreed to A, those in S (H, say) keep their mask keys, and the others their seeds: an own
   mask hides these others' rows for good, as it does all rows where nobody saw t votes.
3. *Masks.* A voter masked with everybody in S, by name, under A. So V is in H, all of V mask with
   each other, and with all of H. Who is in H and sent a row had opened, with its own, shares of t
   clients of the roster, and masked with them: as |V| + t >= 2 t - k > n, one of them is in V. So
   masks that nobody knows tie all rows of H together, and where one is on a single row (of H a
   client sent none, or left a voter out) nothing that contains a row of H opens. A mask with a
   member of S who agreed to another roster is on a single row too: its other end has another
   key. It is known only where that client's mask key was told, there.
4. *Counts.* A voter opened under A the shares of at least max(least, t) of S, with its own. Who is
   honest among them dealt them under A, and is in H: all but k.
5. *Layers.* To take off the layers of one of H from number j + 1 on takes t shares of that layer's
   seed, at least one from a voter who counts n - j of S: n - j <= h + k. v / (n - j) is kept.

What is *named* counts for nothing here: a server can name as survivors clients that never agreed to
this roster, whose mask keys it was given under another, and put random bytes into inboxes. They
are masked with by name all the same, so that one client that garbles its shares stops nobody,
unless it leaves fewer than t good shares, or takes a count below `least`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers, Whole
from privfed.secure.agreement import agreement
from privfed.secure.limits import Limits
from privfed.secure.masked.graph import Graph, Policy, neighbours
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import (
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
from privfed.secure.masked.shamir import share
from privfed.secure.primitives import (
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
    codec: Codec

    def invitation(
        self, session: bytes, policy: Policy, limits: Limits, layers: Layers | None
    ) -> Invitation:
        """To this sum, of parties with such settings."""
        terms = settings(self.codec, policy, limits, layers)
        codec, which = self.codec, (self.round, self.exchange, self.model_hash)
        return Invitation(session, *which, codec.bits, codec.length, terms)


@functools.lru_cache(maxsize=256)
def settings(codec: Codec, policy: Policy, limits: Limits, layers: Layers | None) -> bytes:
    """The hash of all that server and clients have to be configured alike for."""
    return agreement(protocol="masks", codec=codec, policy=policy, limits=limits, layers=layers)


def _names(settings: type[Policy] | type[Limits]) -> str:
    return ", ".join(field.name for field in fields(settings))


_Signed = TypeVar("_Signed", Shares, Masked, Unmask)


class MaskingClient:
    """Answers invitation, roster, inbox, survivors and votes, in this order.

    `row` is asked once for the encoded row `[length]`, when it is masked. To it come the layers of
    `noise`, if there are any, whose keys are drawn afresh for each session. A sum of fewer
    survivors than `limits` allow is not unmasked, where those count whose shares this client could
    open. Who is configured otherwise is refused.
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
        self._require_invited(invitation)
        self._context, self._nonce = invitation.context, bytes(random_key())
        self._seed, self._mask_secret = random_key(), random_key()
        self._channel, self._pair = KeyPair(random_key()), KeyPair(self._mask_secret)
        public = (self._channel.public, self._pair.public)
        keys = Advertise(self._context, self.me, self._nonce, *public)
        return replace(keys, signature=self._identity.sign(keys.text))

    def _require_invited(self, invitation: Invitation) -> None:
        """Refuse another sum than this client's, or parties that are configured otherwise."""
        layers = self._noise.layers if self._noise else None
        mine = self._expected.invitation(invitation.session, self._policy, self._limits, layers)
        for name in ("round", "exchange", "model_hash", "bits", "length"):
            if getattr(invitation, name) != getattr(mine, name):
                raise BadMessage(f"wrong {name}", "an invitation to another sum than this client's")
        if invitation.agreement != mine.agreement:
            raise BadMessage(
                "wrong agreement",
                "the server is configured otherwise than this client; compare on both sides the "
                f"codec (clip, step, reach, noise), the policy ({_names(Policy)}), the limits "
                f"({_names(Limits)}), the layers of noise (variance, tolerance) and the version of "
                "privfed",
            )

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
        commitment = commit(self._agreed, bytes(self._seed))
        last = commit(self._agreed, self._layers[-1] if self._layers else b"")
        return Shares(self._context, self.me, commitment, last, sealed)

    def _checked_graph(self, roster: Roster) -> Graph:
        """What this client's own policy makes of the cohort, which the server has to offer."""
        clients = roster.clients
        if list(clients) != sorted(set(clients)) or self.me not in clients:
            raise BadMessage("wrong roster", "clients out of order, twice, or without this one")
        if not set(clients) <= self._directory.keys():
            raise BadMessage("wrong roster", "clients that nobody knows")
        if len(clients) > self._limits.capacity:
            raise BadMessage(
                "wrong roster",
                f"{len(clients)} clients; expected at most {self._limits.capacity}, the capacity",
            )
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
        nonces = dict(zip(roster.clients, roster.nonces, strict=True))
        if nonces[self.me] != self._nonce:
            raise BadMessage("wrong nonce", "a roster of another session of this client's")
        public = [*own, *(key for keys in roster.keys for key in (keys.channel, keys.mask))]
        if len(set(public)) != len(public):
            raise BadMessage("duplicate key", "two public keys of the roster are the same")
        for keys in roster.keys:
            who = self._directory.get(keys.sender, b"")
            if not verified(who, keys.signature, keys.text):
                raise BadMessage("wrong signature", "keys that their client did not sign")
            if keys.nonce != nonces[keys.sender]:
                raise BadMessage("wrong nonce", "keys with another nonce than the roster's")
        return {keys.sender: keys for keys in roster.keys}

    def _seal(self, other: int, shares: tuple[int, ...]) -> bytes:
        text = share_text(self.me, other, shares)
        own = channel_key(self._agreed, self._secrets[other], self.me, other)
        return seal(own, text, between(self._agreed, self.me, other))

    def _unseal(self, other: int, sealed: bytes) -> tuple[int, ...] | None:
        """What `other` dealt this client under the roster that this client agreed to, if it did."""
        own = channel_key(self._agreed, self._secrets[other], other, self.me)
        text = unseal(own, sealed, between(self._agreed, other, self.me))
        return read_shares(text, other, self.me, 2 + len(self._layers)) if text else None

    def _mask(self, inbox: Inbox) -> Masked:
        senders = [client for client, _ in inbox.sealed]
        if len(set(senders)) != len(senders) or not set(senders) <= self._keys.keys():
            raise BadMessage("wrong senders", "shares twice, or of others than neighbours")
        self._shared = set(senders)
        for sender, sealed in inbox.sealed:
            if held := self._unseal(sender, sealed):
                self._held[sender] = held  # who garbles its shares is masked with, and not counted
        self._require_enough(self._places.keys(), "senders of shares")
        return Masked(self._context, self.me, self._masked_row())

    def _counted(self, clients: Collection[int]) -> int:
        """How many they are but for neighbours whose shares this client could not open."""
        return len(set(clients) - (self._keys.keys() - self._held.keys()))

    def _require_enough(self, clients: Collection[int], who: str) -> None:
        """Refuse a sum of so few, where nobody counts who is only named."""
        total, counted = len(self._places), self._counted(clients)
        holders = self._graph.holders(self.me, self._held.keys() & set(clients) - {self.me})
        if len(holders) < self._graph.threshold or counted < self._graph.survivors:
            raise BadMessage(
                "too few", f"fewer {who} than the threshold, or shares not to be opened"
            )
        least = self._limits.least(total)
        if self._noise:
            least = max(least, total - self._noise.layers.count(total))
        if counted < least:
            raise BadMessage(
                "too few",
                f"fewer {who} than the noise, or the run, asks for: {counted} whose shares could "
                f"be opened; expected {least}",
            )

    def _masked_row(self) -> bytes:
        """y_u = x_u + PRG(b_u) + sum_{v < u} PRG(s_uv) - sum_{v > u} PRG(s_uv)."""
        masks = Expander(self._expected.codec.length, self._expected.codec.bits)
        total = masks.zeros()
        row = self._row()
        if self._noise:
            row = row + self._noise.draw(len(self._places), self._layers, len(row))
        total += row.astype(masks.word)
        masks.apply(total, self_key(self._agreed, self._seed))
        for other in sorted(self._shared):
            secret = _agree(self._pair, self._keys[other].mask)
            masks.apply(total, pair_key(self._agreed, secret, self.me, other), other > self.me)
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
        self._require_enough(clients, "survivors")
        self._voters = set(self._graph.holders(self.me, near - {self.me}))
        self._survivors, self._near = survivors, near
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
        gone = len(self._places) - self._counted(self._survivors.clients)
        too_much = self._near if gone < len(self._layers) else set()  # from layer gone + 1 on
        layers = tuple((who, shares[2 + gone]) for who, shares in held if who in too_much)
        return Unmask(self._context, self.me, seeds, keys, gone, layers)

    def _end(self) -> None:
        """Forget every secret; nothing is answered any more."""
        self._step = 5
        for name in ("_seed", "_mask_secret"):
            if secret := getattr(self, name, None):
                wipe(secret)
        for name in _FORGOTTEN:
            self.__dict__.pop(name, None)


def commit(agreed: bytes, secret: bytes) -> bytes:
    """A hash that tells nothing of a random secret, and by which it is known."""
    return hashlib.sha256(b"privfed commitment" + agreed + secret).digest()


def self_key(agreed: bytes, seed: bytes | bytearray) -> bytes:
    """What a client's own mask is expanded from, under the roster that was agreed."""
    return derive(seed, agreed, b"self")


def channel_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What shares are sealed with: a key for each direction, so that no nonce is used twice."""
    return derive(secret, agreed, between(b"channel", sender, receiver))


def pair_key(agreed: bytes, secret: bytes, one: int, other: int) -> bytes:
    """What the mask of two clients is expanded from."""
    return derive(secret, agreed, between(b"pair", min(one, other), max(one, other)))


def _agree(own: KeyPair, public: bytes) -> bytes:
    try:
        return own.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error
