"""The server of a masked sum, which collects and forwards messages, then unmasks the total.

The server holds one sum `[length]` (whatever the number of clients), public keys, and encrypted
shares that it cannot read. An invalid message is refused with a reason and changes nothing; its
client counts as dropped out. If too few clients remain, the session aborts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory
from privfed.secure.limits import Limits
from privfed.secure.masked.evidence import Blame
from privfed.secure.masked.graph import recoverable
from privfed.secure.masked.messages.roster import Advertise, Attestation, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.sealed_shares import (
    HASH,
    acknowledged,
    agreed_secret,
    sealed_size,
)
from privfed.secure.masked.messages.unmasking import Survivors, Unmask, Vote, Votes
from privfed.secure.masked.messages.wire import FromServer, Message
from privfed.secure.masked.policy import MaskingPolicy
from privfed.secure.masked.shamir import PRIME
from privfed.secure.masked.unmasking import Members, Unmasking, handed
from privfed.secure.packing import Words
from privfed.secure.primitives import Expander, KeyPair, random_key
from privfed.secure.summation import Aborted, Culprit

_ORDER = (Advertise, Shares, Masked, Vote, Unmask)


class MaskingServer:
    """The server of one sum: `handle` takes a client's message, and `proceed` ends a step.

    In each step it accepts at most one message of each client. After the last step `total` removes
    the masks.

    Args:
      invitation: the invitation to the sum.
      clients: the cohort.
      directory: long-term public key of each client, by which messages must be signed.
      policy: requirements that determine the graph.
      graph_seed: seed [32] of the graph.
      limits: limits of the sum.
      layers: layers of each client's noise; None without layers.
    """

    def __init__(
        self,
        invitation: Invitation,
        clients: tuple[int, ...],
        directory: Directory,
        policy: MaskingPolicy,
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
        self._vote_text = b""
        self._keys: dict[int, Advertise] = {}
        self._taken: set[bytes] = set()
        self._shares: dict[int, Shares] = {}
        self._complaints: dict[int, tuple[int, ...]] = {}
        self._gone, self._culprits = 0, dict[int, Culprit]()
        self._senders: set[int] = set()
        self._attested: dict[int, Attestation] = {}
        self._votes: dict[int, Vote] = {}
        self._unmasks: dict[int, Unmask] = {}

    def handle(self, client: int, message: Message) -> None:
        """Accepts the answer of `client`.

        Raises `BadMessage` for an invalid answer, which changes nothing, and `Aborted` after the
        session has ended.
        """
        self._require_alive()
        if not isinstance(message, _ORDER):
            raise BadMessage("wrong type", f"a {type(message).__name__} from a client")
        if message.context != self._context:
            raise BadMessage("wrong session", "the message belongs to another session")
        if not isinstance(message, _ORDER[self._step]):
            raise BadMessage("wrong type", f"a {type(message).__name__} is not expected now")
        if message.sender != client:
            raise BadMessage("wrong sender", "the message is in another client's name")
        if client not in self._awaited:
            raise BadMessage(
                "unknown sender", "no answer is expected from this client, or it has answered"
            )
        public = self._directory.get(client, b"")
        if isinstance(message, Vote):
            if not message.cast_by(public, self._vote_text):
                raise BadMessage("inconsistent", "the vote is not what its client signed")
        elif not message.signed_by(public):
            raise BadMessage("wrong signature", "the message is not what its client signed")
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
        """Ends the current step; returns the messages of the next one, by receiving client.

        Raises `Aborted` if too few clients remain.
        """
        self._require_alive()
        self._step += 1
        step = (self._roster, self._inboxes, self._survivors, self._consistency)[self._step - 1]
        self._alive = False  # set again if the step succeeds
        with self._named():
            sent = step()
        self._alive, self._awaited = True, set(sent)
        return sent

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Clients identified as Byzantine so far, in order."""
        return tuple(culprit for _, culprit in sorted(self._culprits.items()))

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Aborted:
            if self._complaints:  # complaints are counted only if the sum failed
                self._blame.count(self._complaints.values())
            raise

    def _require_alive(self) -> None:
        if not self._alive:
            raise Aborted("the session has ended")

    def _advertised(self, message: Advertise) -> None:
        public = {message.channel, message.mask}
        if len(public) < 2 or public & self._taken:
            raise BadMessage("duplicate key", "a public key is in use already")
        for key in public:
            agreed_secret(self._probe, key)  # refuses keys of low order
        self._taken |= public
        self._keys[message.sender] = message

    def _roster(self) -> Mapping[int, Roster]:
        clients, seed = tuple(sorted(self._keys)), self._graph_seed
        graph = self._policy.graph(len(clients))
        nonces = tuple(self._keys[client].nonce for client in clients)
        shape = (graph.degree, graph.threshold, seed)
        common = Roster(self._context, clients, nonces, *shape, keys=())
        edge_key = graph.edge_key(seed, common.agreed())
        near = {client: graph.neighbours(edge_key, clients, client) for client in clients}
        masks = {client: keys.mask for client, keys in self._keys.items()}
        expected = self._policy.counted_of(len(clients))
        self._members = Members(common.agreed(), graph, clients, near, masks, expected)
        corrupt = self._policy.corrupt(len(clients)) + self._limits.byzantine
        corrupt = graph.byzantine_holders(corrupt)
        self._blame = Blame(self.invitation, common, self._keys, corrupt, self._culprits)
        return {
            client: replace(common, keys=tuple(self._keys[other] for other in near[client]))
            for client in clients
        }

    def _shared(self, message: Shares) -> None:
        if tuple(client for client, _ in message.sealed) != self._members.near[message.sender]:
            raise BadMessage("wrong receivers", "the shares are not for the graph's neighbours")
        holders = tuple(holder for holder, _ in message.hashes)
        layers = self._members.layers(self._layers)
        sizes = {len(hashes) for _, hashes in message.hashes}
        if holders != self._members.holders(message.sender) or sizes != {(2 + layers) * HASH}:
            raise BadMessage("wrong hashes", "the hashes do not cover all shares of each holder")
        if any(len(text) != sealed_size(layers) for _, text in message.sealed):
            raise BadMessage("wrong length", "the encrypted shares have the wrong length")
        self._shares[message.sender] = message

    def _inboxes(self) -> Mapping[int, Inbox]:
        self._sharers = set(self._shares)
        self._require(self._sharers, "shared their keys")
        sealed: dict[int, list[tuple[int, bytes]]] = {me: [] for me in self._shares}
        for sender, message in self._shares.items():
            for receiver, text in message.sealed:
                if receiver in sealed:
                    sealed[receiver].append((sender, text))
        self._dealings = {who: shares.dealing for who, shares in sorted(self._shares.items())}
        self._shares.clear()
        inboxes = {}
        for me, texts in sealed.items():
            hashes = tuple(pair for pair in handed(self._dealings, me) if pair[0] != me)
            inboxes[me] = Inbox(self._context, tuple(sorted(texts)), hashes)
        return inboxes

    def _masked(self, message: Masked) -> None:
        if len(message.words) != self._masks.size:
            raise BadMessage("wrong length", "the masked row has another length than the session's")
        near, complaints = self._members.near[message.sender], set(message.complaints)
        if len(complaints) < len(message.complaints) or not complaints <= {*near} & self._sharers:
            raise BadMessage(
                "wrong complaints",
                "complaints are duplicate, or about clients that sent this client no shares",
            )
        attestation = self._attestation(message) if self._members.graph.independent else None
        if not self._masks.add(self._sum, message.words):
            raise BadMessage("wrong modulus", "the row has bits beyond the session's modulus")
        self._complaints[message.sender] = message.complaints
        if attestation:
            self._attested[message.sender] = attestation
        self._senders.add(message.sender)

    def _attestation(self, message: Masked) -> Attestation:
        """Returns the sender's valid attestation of its masks. Raises `BadMessage` without one."""
        attestation, near = message.attestation, self._members.near[message.sender]
        left_out = tuple(who for who in near if who not in self._sharers)
        claimed = attestation and (attestation.sender, attestation.left_out)
        if not attestation or claimed != (message.sender, left_out):
            raise BadMessage(
                "not attested",
                "the client did not attest masks with exactly the neighbours that sent shares",
            )
        public = self._directory.get(message.sender, b"")
        if not attestation.given_by(public, self._members.agreed):
            raise BadMessage("not attested", "the client did not sign the attestation of its masks")
        return attestation

    def _survivors(self) -> Mapping[int, Survivors]:
        self._require(self._senders, "sent their row")
        if len(self._senders) < self._limits.least(self._members.expected):
            raise Aborted("too few clients sent their row")
        survivors = Survivors(self._context, tuple(sorted(self._senders)))
        self._vote_text = survivors.vote_text(self._members.agreed)
        return {who: self._to(who, survivors) for who in survivors.clients}

    def _to(self, client: int, survivors: Survivors) -> Survivors:
        """Returns the message to `client`: the survivors, and its neighbours' attestations."""
        near = (who for who in self._members.near[client] if who in self._attested)
        return replace(survivors, attested=tuple(self._attested[who] for who in near))

    def _voted(self, message: Vote) -> None:
        self._votes[message.sender] = message

    def _consistency(self) -> Mapping[int, Votes]:
        self._require(set(self._votes), "agreed on the survivors")
        graph, sent = self._members.graph, dict[int, Votes]()
        needed = graph.votes(self._limits.least(self._members.expected))
        if len(self._votes) < needed:
            raise Aborted("too few clients agreed on the survivors")
        self._gone = self._most_gone()
        for me in sorted(self._votes):
            voters = graph.voters(self._members.holders(me), self._votes) & self._votes.keys()
            votes = tuple(self._votes[who] for who in sorted(voters)[:needed])
            sent[me] = Votes(self._context, votes, self._gone)
        return sent

    def _most_gone(self) -> int:
        """Returns the largest number of dropouts that any honest voter counts.

        A voter also counts as dropouts the survivors about which it complained, at most `corrupt`
        of them if it is honest. With more dropouts a voter releases fewer layers, so that with this
        number only layers are removed that all honest voters release.
        """
        counted = (len(self._senders.intersection(self._complaints[who])) for who in self._votes)
        garbled = max((count for count in counted if count <= self._blame.corrupt), default=0)
        return self._members.expected - len(self._senders) + garbled

    def _keeping(self, gone: int) -> Mapping[int, int]:
        """Returns the number of layers that each survivor keeps with `gone` dropouts."""
        if self._layers is None:
            return dict.fromkeys(self._senders, 0)
        return self._layers.keeping(self._members.expected, gone, self._senders)

    def _unmasked(self, message: Unmask) -> None:
        near = set(self._members.holders(message.sender))
        seeds, keys = ([who for who, _ in pairs] for pairs in (message.seeds, message.keys))
        if len(set(seeds)) != len(seeds) or not set(seeds) <= near & self._senders:
            raise BadMessage(
                "wrong shares",
                "seeds are duplicate, or of clients other than surviving neighbours",
            )
        if len(set(keys)) != len(keys) or not set(keys) <= (near & self._sharers) - self._senders:
            raise BadMessage(
                "wrong shares",
                "keys are duplicate, or of clients other than neighbours that dropped out",
            )
        layers = [who for who, _, _ in message.layers]
        if len(set(layers)) != len(layers) or not set(layers) <= near & self._senders:
            raise BadMessage(
                "wrong shares", "layers are duplicate, or of clients that did not survive"
            )
        keeping = self._keeping(self._members.expected - len(self._senders))
        if any(layer <= keeping[who] for who, layer, _ in message.layers):
            raise BadMessage("wrong shares", "some shares open layers that survivors have to keep")
        if not all(value < PRIME for *_, value in message.shares):
            raise BadMessage("wrong shares", "a share is outside the field")
        received = handed(self._dealings, message.sender)
        if message.acknowledged != acknowledged(self._members.agreed, message.sender, received):
            raise BadMessage("wrong hashes", "the hashes are not of the shares sent to the client")
        self._unmasks[message.sender] = message

    def total(self) -> tuple[Words, int]:
        """Returns the sum modulo 2^bits and the number of survivors.

        Raises `Aborted` if too few clients helped, or a secret cannot be reconstructed.
        """
        self._require_alive()
        self._alive = False
        unmasking = Unmasking(
            self._masks,
            self._members,
            self._dealings,
            self._senders,
            self._unmasks,
            self._layers,
            self._keeping(self._gone),
            self._blame,
        )
        with self._named():
            self._require(set(self._unmasks), "helped to remove the masks")
            return unmasking.total(self._sum), len(self._senders)

    def _require(self, left: set[int], did: str) -> None:
        """Raises `Aborted` unless `left` can restore all clients' secrets (`recoverable`).

        `did` completes the message "too few clients ...".
        """
        members = self._members
        if not recoverable(members.graph, members.near, self._sharers, left):
            raise Aborted(f"too few clients {did}")
