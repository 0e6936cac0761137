"""Proofs that a client of a masked sum deviated, by its own signatures; any party can verify them.

Whatever the server and other clients send, there is no proof against an honest client, unless its
signature is forged or two inputs have the same hash. There are two kinds of proof:

- *Wrong share.* In one message a client signs the hashes of the shares that it received
  (`acknowledged`) and the shares that it reveals. An honest client reveals no share whose hash
  differs from the received one.
- *Wrong dealing.* A client signs the hash of each share that it deals, and commitments to its
  secrets. Shares with an honest client's hashes are those it dealt: they lie on one polynomial,
  so any `threshold` of them reconstruct its secret.

All signed and hashed texts are bound to a roster, which holds a nonce of the client for each
session: signatures of two sessions cannot be combined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, BadMessage, Reader, sized
from privfed.secure.identities import Directory
from privfed.secure.masked.layered_noise import next_layer
from privfed.secure.masked.messages.message import read_framed
from privfed.secure.masked.messages.roster import Advertise, Invitation, Roster
from privfed.secure.masked.messages.rows import Dealing
from privfed.secure.masked.messages.sealed_shares import (
    HASH,
    MASK_KEY,
    SEED,
    ShareHashes,
    acknowledged,
    commit,
    hash_of,
    share_hash,
)
from privfed.secure.masked.messages.unmasking import Unmask, read_open_shares, shares_bytes
from privfed.secure.masked.shamir import PRIME, reconstruct
from privfed.secure.primitives import KEY, KeyPair
from privfed.secure.summation import Culprit, Reason


def gives_its_secret(
    dealing: Dealing, agreed: bytes, mask_key: bytes, which: int, secret: bytes
) -> bool:
    """Whether `secret` is the secret number `which` of the signer of `dealing`.

    `agreed` is the hash of the roster. `which` is `SEED`, `MASK_KEY`, or `LAYERS` and above. The
    seed, and seeds of layers, are compared with the commitments in `dealing`; a private mask key
    with the signer's public `mask_key`.
    """
    if which == SEED:
        return commit(agreed, secret) == dealing.commitment
    if which == MASK_KEY:
        return KeyPair(secret).public == mask_key
    last = min((len(hashes) for _, hashes in dealing.hashes), default=0) // HASH - 1
    for _ in range(which, last):
        secret = next_layer(secret)
    return commit(agreed, secret) == dealing.layer_commitment


@dataclass(frozen=True)
class WrongShare:
    """Proof that the signer of `unmask` revealed a share that differs from the one it received."""

    unmask: Unmask
    hashes: ShareHashes
    reason: ClassVar[Reason] = "wrong share"

    @property
    def client(self) -> int:
        """The client that deviated."""
        return self.unmask.sender

    def holds(self, roster: Roster, directory: Directory) -> bool:
        """Whether the proof is valid under the roster.

        The client must have signed `unmask`, which acknowledges `hashes`, and revealed in it a
        share whose hash differs from these.
        """
        unmask, agreed, me = self.unmask, roster.agreed(), self.client
        if not unmask.signed_by(directory.get(me, b"")):
            return False
        if unmask.acknowledged != acknowledged(agreed, me, self.hashes):
            return False
        handed = dict(self.hashes)
        return any(
            hash_of(handed[dealer], which) != share_hash(agreed, dealer, me, which, value)
            for dealer, which, value in unmask.shares
            if dealer in handed
        )

    def encoded(self) -> bytes:
        """Returns the bytes of this proof alone, which follow the invitation and the roster."""
        pairs = [NUMBER.pack(dealer) + sized(hashes) for dealer, hashes in self.hashes]
        return sized(self.unmask.body()) + COUNT.pack(len(pairs)) + b"".join(pairs)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> WrongShare:
        """Parses a proof of this kind. Raises `BadMessage` if it is malformed."""
        unmask = read_framed(Unmask, context, data)
        return cls(unmask, tuple((data.number(), data.sized()) for _ in range(data.count())))


@dataclass(frozen=True)
class WrongDealing:
    """Proof that the signer of `dealing` sent wrong `shares` (by holder) of its secret `which`.

    The shares have the hashes that the signer signed. They do not reconstruct the secret that it
    committed to or, for a mask key, that it advertised in the roster.
    """

    dealing: Dealing
    which: int
    shares: tuple[tuple[int, int], ...]
    reason: ClassVar[Reason] = "wrong dealing"

    @property
    def client(self) -> int:
        """The client that deviated."""
        return self.dealing.sender

    def holds(self, roster: Roster, directory: Directory) -> bool:
        """Whether the proof is valid under the roster, which holds the client's advertised keys.

        The client must have signed the dealing, and exactly `threshold` shares with the signed
        hashes must not reconstruct its secret.
        """
        dealing, agreed, me = self.dealing, roster.agreed(), self.client
        if not dealing.signed_by(directory.get(me, b"")):
            return False
        places = {client: place for place, client in enumerate(roster.clients, start=1)}
        values, hashes = dict(self.shares), dealing.by_holder
        if not values or len(values) != roster.threshold:  # a share binds the hashes to this roster
            return False
        if not values.keys() <= places.keys() & hashes.keys():
            return False
        for holder, value in values.items():
            share = share_hash(agreed, me, holder, self.which, value)
            if value >= PRIME or hash_of(hashes[holder], self.which) != share:
                return False
        if (mask_key := _advertised(roster, me, directory)) is None:
            return False
        try:
            shares = {places[holder]: value for holder, value in values.items()}
            secret = reconstruct(shares, roster.threshold)
        except ValueError:
            return True
        return not gives_its_secret(dealing, agreed, mask_key, self.which, secret)

    def encoded(self) -> bytes:
        """Returns the bytes of this proof alone, which follow the invitation and the roster."""
        return sized(self.dealing.body()) + COUNT.pack(self.which) + shares_bytes(self.shares)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> WrongDealing:
        """Parses a proof of this kind. Raises `BadMessage` if it is malformed."""
        dealing, which = read_framed(Dealing, context, data), data.count()
        return cls(dealing, which, read_open_shares(data))


Evidence = WrongShare | WrongDealing
_KINDS: Mapping[str, type[Evidence]] = {kind.reason: kind for kind in (WrongShare, WrongDealing)}


def accusation(
    evidence: Evidence, invitation: Invitation, roster: Roster, keys: Advertise
) -> Culprit:
    """Returns the culprit that `evidence` proves; the proof contains the invitation and the roster.

    `keys` are the keys that the culprit advertised; a proof of a wrong dealing contains them.
    """
    shown = replace(roster, keys=(keys,) if isinstance(evidence, WrongDealing) else ())
    about = invitation.context + sized(invitation.body()) + sized(shown.body())
    proof = about + evidence.encoded()
    session = (invitation.round, invitation.exchange)
    return Culprit(evidence.client, *session, evidence.reason, proof)


def proves(culprit: Culprit, directory: Directory) -> bool:
    """Whether the culprit's own signed messages prove the accusation.

    Returns False for a count of complaints, which is no proof, and for invalid bytes.
    """
    kind = _KINDS.get(culprit.reason)
    if kind is None:
        return False
    try:
        data = Reader(culprit.proof)
        context = data.take(KEY)
        invitation = read_framed(Invitation, context, data)
        roster = read_framed(Roster, context, data)
        evidence = kind.read(context, data)
        data.end()
    except BadMessage:
        return False
    about = (evidence.client, invitation.round, invitation.exchange)
    if about != (culprit.client, culprit.round, culprit.exchange):
        return False
    return evidence.holds(roster, directory)


def _advertised(roster: Roster, client: int, directory: Directory) -> bytes | None:
    """Returns the mask key that `client` signed for `roster`; None if the roster has none."""
    nonces = dict(zip(roster.clients, roster.nonces, strict=True))
    for keys in roster.keys:
        if keys.sender == client and keys.nonce == nonces.get(client):
            return keys.mask if keys.signed_by(directory.get(client, b"")) else None
    return None


@dataclass(frozen=True)
class Blame:
    """Collects the `culprits` of a session, by client, each with the first evidence against it.

    At most `corrupt` holders of a client's shares are Byzantine, so one more complaint shows that
    the client distributed garbled shares.
    """

    invitation: Invitation
    roster: Roster
    keys: Mapping[int, Advertise]
    corrupt: int
    culprits: dict[int, Culprit]

    def prove(self, evidence: Evidence) -> None:
        """Adds the culprit that `evidence` proves, unless it is among the culprits already."""
        if evidence.client not in self.culprits:
            keys = self.keys[evidence.client]
            self.culprits[evidence.client] = accusation(
                evidence, self.invitation, self.roster, keys
            )

    def count(self, complaints: Iterable[tuple[int, ...]]) -> None:
        """Adds each client about which more than `corrupt` holders complain.

        Each of `complaints` contains the clients about which one holder complains.
        """
        session = (self.invitation.round, self.invitation.exchange)
        for client, count in Counter(who for each in complaints for who in each).items():
            if count > self.corrupt:
                culprit = Culprit(client, *session, "garbled shares", complaints=count)
                self.culprits.setdefault(client, culprit)
