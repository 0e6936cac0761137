"""A client of a masked sum, which answers each message of the server once.

The client trusts its own policy, the public directory of identities and its own computation. It
checks every message of the server against these, and ends the session on any violation.
`privfed.secure.masked` proves the guarantee against a malicious server.
"""

from __future__ import annotations

from collections.abc import Collection

from privfed.secure.frames import BadMessage
from privfed.secure.masked.client_memory import ClientMemory
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.messages.roster import Advertise, Attestation, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.sealed_shares import (
    LAYERS,
    acknowledged,
    agreed_secret,
    between,
    channel_key,
    commit,
    pair_key,
    read_shares,
    self_key,
    share_hashes,
    share_text,
)
from privfed.secure.masked.messages.unmasking import OpenLayers, Survivors, Unmask, Vote, Votes
from privfed.secure.masked.messages.wire import FromClient, Message
from privfed.secure.masked.shamir import share
from privfed.secure.packing import Bytes
from privfed.secure.primitives import Expander, KeyPair, random_key, seal, unseal


class MaskingClient(ClientMemory):
    """A client in one sum: answers `Invitation`, `Roster`, `Inbox`, `Survivors`, `Votes` in order.

    The client does not unmask a sum of fewer survivors than `limits` allow; neighbours whose shares
    it could not open do not count. It refuses a server with another configuration. It raises
    `Aborted`, usually as `BadMessage`, for a message that it refuses, and then answers no further
    message. The caller must let a client take part in only one session per exchange of a round,
    since the difference of two opened sums could reveal a row.

    `to_bytes` returns the state from which the client resumes in another process (`from_bytes`). A
    party that may crash answers only through `privfed.secure.masked.committed_party`, which stores
    the client's `progress`.

    Args:
      me: number of the client.
      identity: its long-term signing key.
      directory: long-term public key of each client.
      policy: its own requirements.
      expected: round, exchange, model and codec of the sum that it expects.
      row: returns the encoded row [length]; called once, at the time of masking.
      limits: limits of the sum.
      noise: layers of noise that are added to the row, with keys drawn afresh for each session;
        None without layers.
    """

    def handle(self, message: Message) -> FromClient:
        """Returns the answer to the server's next message.

        Raises:
          Aborted: if the client refuses the message, usually as `BadMessage`.
        """
        try:
            if self._context and message.context != self._context:
                raise BadMessage("wrong session", "the message belongs to another session")
            self._step += 1
            return self._answer(message)
        except Exception:
            self.end()
            raise

    def _answer(self, message: Message) -> FromClient:
        match (self._step, message):
            case (1, Invitation()):
                return self._advertise(message)
            case (2, Roster()):
                return self._share(message).signed(self._identity)
            case (3, Inbox()):
                return self._mask(message).signed(self._identity)
            case (4, Survivors()):
                return self._vote(message)
            case (5, Votes()):
                answer = self._unmask(message).signed(self._identity)
                self.end()
                return answer
        raise BadMessage("wrong type", f"a {type(message).__name__} is not expected now")

    def _advertise(self, invitation: Invitation) -> Advertise:
        layers = self._noise.layers if self._noise else None
        self._expected.require(invitation, self._policy, self._limits, layers)
        self._context = invitation.context
        self._take_secrets(*(bytes(random_key()) for _ in range(4)))
        public = (self._channel.public, self._pair.public)
        return Advertise(self._context, self.me, self._nonce, *public).signed(self._identity)

    def _take_secrets(self, nonce: bytes, seed: bytes, channel: bytes, mask: bytes) -> None:
        self._nonce, self._seed = nonce, bytearray(seed)
        self._channel_secret, self._mask_secret = bytearray(channel), bytearray(mask)
        self._channel, self._pair = KeyPair(channel), KeyPair(mask)

    def _agree_channels(self) -> None:
        self._secrets = {
            other: agreed_secret(self._channel, keys.channel) for other, keys in self._keys.items()
        }

    def _share(self, roster: Roster) -> Shares:
        near = self._take_roster(roster)
        self._check_keys(roster)
        self._agree_channels()
        holders = self._graph.holders(self.me, near)
        if len(holders) < self._graph.threshold:
            raise BadMessage("too few", "fewer neighbours than are needed to restore a secret")
        places, threshold = tuple(map(self._places.__getitem__, holders)), self._graph.threshold
        self._layers = self._noise.seeds(self._expected_parties) if self._noise else ()
        secrets = (bytes(self._seed), bytes(self._mask_secret), *self._layers)
        dealt = [share(secret, threshold, places) for secret in secrets]
        held = {who: tuple(shares[self._places[who]] for shares in dealt) for who in holders}
        self._held = {who: held[who] for who in held.keys() & {self.me}}
        sealed = tuple((other, self._seal(other, held[other])) for other in near)
        commitment = commit(self._agreed, bytes(self._seed))
        layer_commitment = commit(self._agreed, self._layers[-1] if self._layers else b"")
        hashes = tuple((who, self._hashes(self.me, who, held[who])) for who in holders)
        return Shares(self._context, self.me, commitment, layer_commitment, hashes, sealed)

    def _hashes(self, dealer: int, holder: int, shares: tuple[int, ...]) -> bytes:
        return share_hashes(self._agreed, dealer, holder, shares)

    def _checked_graph(self, roster: Roster) -> Graph:
        """Returns the graph of the client's policy. Raises `BadMessage` if the roster differs."""
        clients = roster.clients
        if list(clients) != sorted(set(clients)) or self.me not in clients:
            raise BadMessage(
                "wrong roster", "the clients are out of order or duplicate, or lack this client"
            )
        if not set(clients) <= self._directory.keys():
            raise BadMessage("wrong roster", "the roster contains unknown clients")
        if len(clients) > self._limits.capacity:
            raise BadMessage(
                "wrong roster",
                f"{len(clients)} clients; expected at most {self._limits.capacity}, the capacity",
            )
        graph = self._policy.graph(len(clients))
        if graph.independent and self._noise:
            raise BadMessage("wrong layers", "noise in layers has no proof on a random graph")
        if (roster.degree, roster.threshold) != (graph.degree, graph.threshold):
            raise BadMessage(
                "wrong threshold",
                f"{roster.degree} neighbours with threshold {roster.threshold}; expected "
                f"{graph.degree} and {graph.threshold}",
            )
        return graph

    def _check_keys(self, roster: Roster) -> None:
        """Raises `BadMessage` unless keys are distinct and signed, and have the roster's nonces."""
        nonces = dict(zip(roster.clients, roster.nonces, strict=True))
        if nonces[self.me] != self._nonce:
            raise BadMessage("wrong nonce", "the roster is of another session of this client")
        public = [self._channel.public, self._pair.public]
        public += [key for keys in roster.keys for key in (keys.channel, keys.mask)]
        if len(set(public)) != len(public):
            raise BadMessage(
                "duplicate key",
                "two public keys, of the roster or this client's own, are the same",
            )
        for keys in roster.keys:
            if not keys.signed_by(self._directory.get(keys.sender, b"")):
                raise BadMessage("wrong signature", "some keys are not signed by their client")
            if keys.nonce != nonces[keys.sender]:
                raise BadMessage("wrong nonce", "some keys have another nonce than the roster's")

    def _seal(self, other: int, shares: tuple[int, ...]) -> bytes:
        text = share_text(self.me, other, shares)
        key = channel_key(self._agreed, self._secrets[other], self.me, other)
        return seal(key, text, between(self._agreed, self.me, other))

    def _unseal(self, other: int, sealed: bytes) -> tuple[int, ...] | None:
        """Returns the shares from `other` under the agreed roster; None if unreadable."""
        key = channel_key(self._agreed, self._secrets[other], other, self.me)
        text = unseal(key, sealed, between(self._agreed, other, self.me))
        return read_shares(text, other, self.me, 2 + self._layer_count) if text else None

    def _mask(self, inbox: Inbox) -> Masked:
        senders = [client for client, _ in inbox.sealed]
        if len(set(senders)) != len(senders) or not set(senders) <= self._keys.keys():
            raise BadMessage(
                "wrong senders", "shares are duplicate, or of clients that are no neighbours"
            )
        if [dealer for dealer, _ in inbox.hashes] != sorted(senders):
            raise BadMessage("wrong senders", "the hashes are of shares of other senders")
        self._shared, hashes = set(senders), dict(inbox.hashes)
        for sender, sealed in inbox.sealed:
            held = self._unseal(sender, sealed)
            if held and self._hashes(sender, self.me, held) == hashes[sender]:
                self._held[sender] = held  # masked with in any case, but counted only then
        self._require_enough(self._places.keys(), "senders of shares")
        mine = {who: self._hashes(who, who, self._held[who]) for who in {self.me} & {*self._held}}
        every = tuple(sorted({**hashes, **mine}.items()))
        self._acknowledged = acknowledged(self._agreed, self.me, every)
        complaints = tuple(sorted(self._shared - self._held.keys()))
        attestation = self._attest() if self._graph.independent else None
        return Masked(self._context, self.me, self._masked_row(), complaints, attestation)

    def _attest(self) -> Attestation:
        left_out = tuple(sorted(self._keys.keys() - self._shared))
        text = Attestation.text(self._agreed, self.me, left_out)
        return Attestation(self.me, left_out, self._identity.sign(text))

    def _counted(self, clients: Collection[int]) -> int:
        """Returns the number of `clients`, without neighbours whose shares could not be opened."""
        return len(set(clients) - (self._keys.keys() - self._held.keys()))

    def _require_enough(self, clients: Collection[int], who: str) -> None:
        """Raises `BadMessage` if this client could open the shares of too few of `clients`.

        Too few are fewer than the graph, the limits or the layers of noise require. `who` names
        `clients` in the message.
        """
        total, counted = self._expected_parties, self._counted(clients)
        holders = self._graph.holders(self.me, self._held.keys() & set(clients) - {self.me})
        if len(holders) < self._graph.threshold or counted < self._graph.survivors:
            raise BadMessage(
                "too few",
                f"fewer {who} than the threshold, without those whose shares could not be opened",
            )
        least = self._limits.least(total)
        if self._noise:
            least = max(least, total - self._noise.layers.most_dropouts(total))
        if counted < least:
            raise BadMessage(
                "too few",
                f"fewer {who} than the noise or the run requires: {counted}, without those whose "
                f"shares could not be opened; expected at least {least}",
            )

    def _masked_row(self) -> Bytes:
        """Returns y_u = x_u + PRG(b_u) + sum_{v < u} PRG(s_uv) - sum_{v > u} PRG(s_uv), packed.

        x_u is this client's row with its noise, b_u its self-mask's seed, s_uv its secret with v.
        """
        masks = Expander(self._expected.codec.length, self._expected.codec.bits)
        total = self._row().astype(masks.word)
        if self._noise:
            self._noise.add(total, self._expected_parties, self._layers)
        masks.apply(total, self_key(self._agreed, self._seed))
        for other in sorted(self._shared):
            secret = agreed_secret(self._pair, self._keys[other].mask)
            masks.apply(total, pair_key(self._agreed, secret, self.me, other), other > self.me)
        self._wipe()
        del self._pair, self._channel, self._secrets, self._layers
        return masks.pack(total)

    def _vote(self, survivors: Survivors) -> Vote:
        self._take_survivors(survivors)
        text = survivors.vote_text(self._agreed)
        return Vote(self._context, self.me, self._identity.sign(text))

    def _take_survivors(self, survivors: Survivors) -> None:
        clients = survivors.clients
        if list(clients) != sorted(set(clients)) or not set(clients) <= self._places.keys():
            raise BadMessage(
                "wrong survivors", "the clients are out of order, duplicate or not in the roster"
            )
        near = set(clients) & (self._keys.keys() | {self.me})
        if self.me not in near or not near - {self.me} <= self._shared:
            raise BadMessage(
                "wrong survivors", "they lack this client, or contain clients that sent no shares"
            )
        if self._graph.independent:
            self._require_attested(survivors.attested, near - {self.me})
        self._require_enough(clients, "survivors")
        self._voters = self._graph.voters(self._graph.holders(self.me, near - {self.me}), clients)
        self._survivors, self._near = survivors, near

    def _require_attested(self, attested: tuple[Attestation, ...], near: set[int]) -> None:
        """Raises `BadMessage` unless all of `near` signed that they masked with this client."""
        if [attestation.sender for attestation in attested] != sorted(near):
            raise BadMessage(
                "not attested", "the attestations are not those of the surviving neighbours"
            )
        for attestation in attested:
            public = self._directory.get(attestation.sender, b"")
            given = attestation.given_by(public, self._agreed)
            if self.me in attestation.left_out or not given:
                raise BadMessage("not attested", "a neighbour did not mask with this client")

    def _unmask(self, votes: Votes) -> Unmask:
        """Returns the message with one share per client whose shares this client holds.

        It is a share of a survivor's seed, or of a dropout's mask key. For each survivor that must
        remove layers of noise, the message also has a share of the seed of the first such layer
        (`_too_much`). Raises `BadMessage` if the votes are too few, duplicate, of clients that may
        not vote, or not signed for the same survivors as this client's vote.
        """
        voters = [vote.sender for vote in votes.votes]
        if len(set(voters)) != len(voters) or not set(voters) <= self._voters:
            raise BadMessage("wrong voters", "votes are duplicate, or of clients that may not vote")
        if len(voters) < self._graph.votes(self._limits.least(self._expected_parties)):
            raise BadMessage("too few", "the votes are fewer than the graph requires")
        text = self._survivors.vote_text(self._agreed)
        for vote in votes.votes:
            if not vote.cast_by(self._directory.get(vote.sender, b""), text):
                raise BadMessage(
                    "inconsistent",
                    "a vote is not signed for the survivors that this client voted for",
                )
        held = sorted(self._held.items())
        seeds = tuple((who, shares[0]) for who, shares in held if who in self._near)
        keys = tuple((who, shares[1]) for who, shares in held if who not in self._near)
        gone = self._expected_parties - self._counted(self._survivors.clients)
        layers = self._too_much(max(gone, votes.gone))  # at least this client's own count
        return Unmask(self._context, self.me, seeds, keys, layers, self._acknowledged)

    def _too_much(self, gone: int) -> OpenLayers:
        """Returns, per survivor, the first layer to be removed with `gone` dropouts.

        Each entry has the survivor, the layer's number from 1, and this client's share of its seed.
        Survivors that keep all layers are left out.
        """
        if not self._noise:
            return ()
        keeping = self._noise.layers.keeping(self._expected_parties, gone, self._survivors.clients)
        return tuple(
            (who, keeping[who] + 1, shares[LAYERS + keeping[who]])
            for who, shares in sorted(self._held.items())
            if who in self._near and keeping[who] < self._layer_count
        )
