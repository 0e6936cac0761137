"""Proofs that a client of a committee's sum deviated, by its own signatures.

Whatever the server and other clients send, there is no proof against an honest client, unless its
signature is forged or a second input is found for one of its 128-bit hashes. Any party can verify
the proofs, which are of two kinds:

- *Wrong share.* A member signs, with its vote, the root of the numbers it drew for each survivor,
  and then the numbers it opens. An honest member opens only numbers under this root.
- *Wrong dealing.* A client signs the roots of members' numbers, the corrections and commitments to
  its secrets. For an honest client, numbers under its roots reconstruct its committed secrets
  from any `threshold` members.

All signatures are under the hash of one call, for which an honest client signs each message once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from privfed.secure.committee.dealing import DIGEST, commitment_at
from privfed.secure.committee.messages import (
    Ballot,
    Call,
    Disclosure,
    MemberVote,
    SignedDealing,
    vote_text,
)
from privfed.secure.committee.opening import Openings
from privfed.secure.committee.terms import RoundTerms, require_survivors
from privfed.secure.frames import COUNT, NUMBER, Reader, records, sized
from privfed.secure.identities import Directory
from privfed.secure.masked.messages.message import read_framed
from privfed.secure.primitives import KEY
from privfed.secure.summation import Aborted, Culprit, Reason


@dataclass(frozen=True)
class Seats:
    """The committee of one `Call`: its `members`, ascending, and the verifier `openings`.

    `openings` verifies what members open. `identities` has the public signing keys of all clients.
    """

    openings: Openings
    members: tuple[int, ...]
    identities: Directory


@dataclass(frozen=True)
class WrongOpening:
    """Proof that a member opened numbers that are not in the hash trees its ballot committed to."""

    ballot: Ballot
    disclosure: Disclosure
    reason: ClassVar[Reason] = "wrong share"

    @property
    def client(self) -> int:
        """The client that deviated."""
        return self.disclosure.sender

    def holds(self, seats: Seats) -> bool:
        """Whether the proof is valid for the survivors and committee in `seats`.

        A member must have signed both messages and a vote for these survivors, and have opened a
        number that is not under the root in its ballot, for a survivor whose root is not zeros.
        """
        survivors, agreed = seats.openings.survivors, seats.openings.agreed
        public = seats.identities.get(self.client, b"")
        vote = MemberVote(self.client, self.ballot.vote)
        if self.client not in seats.members or self.ballot.sender != self.client:
            return False
        if not vote.cast_by(public, vote_text(agreed, survivors)):
            return False
        if not all(each.signed_by(public) for each in (self.ballot, self.disclosure)):
            return False
        drawn = dict(zip(survivors, self.ballot.roots, strict=False))
        place = 1 + seats.members.index(self.client)
        return any(
            not seats.openings.right(who, place, text, drawn[who])
            for who, text in self.disclosure.shares
            if drawn.get(who, bytes(DIGEST)) != bytes(DIGEST)
        )

    def encoded(self) -> bytes:
        """Returns the bytes of this proof alone, which follow the `Call` and the survivors."""
        return sized(self.ballot.body()) + sized(self.disclosure.body())

    @classmethod
    def read(cls, context: bytes, data: Reader) -> WrongOpening:
        """Parses a proof of this kind. Raises `BadMessage` if it is malformed."""
        return cls(read_framed(Ballot, context, data), read_framed(Disclosure, context, data))


@dataclass(frozen=True)
class UnusableDealing:
    """Proof that the numbers that a client dealt to members do not reconstruct its secrets.

    `texts` are pairs: a member's place in the committee (from 1), and its opened numbers with the
    proof of their hash tree. The numbers belong to the hash trees whose roots the client signed in
    `dealing`, but do not yield the secrets that the client committed to.
    """

    dealing: SignedDealing
    texts: tuple[tuple[int, bytes], ...]
    reason: ClassVar[Reason] = "wrong dealing"

    @property
    def client(self) -> int:
        """The client that deviated."""
        return self.dealing.sender

    def holds(self, seats: Seats) -> bool:
        """Whether the proof is valid for the survivors and committee in `seats`.

        A survivor must have signed the dealing. The `texts` of exactly `threshold` members must be
        valid openings under its roots, but not yield the secrets that it committed to.
        """
        opens, dealt, texts = seats.openings, self.dealing.dealt, dict(self.texts)
        if self.client not in opens.survivors or len(texts) != opens.committee.threshold:
            return False
        if not dealt.fits(len(opens.clients), opens.committee) or not texts.keys() <= {
            *range(1, len(seats.members) + 1)
        }:
            return False
        if not self.dealing.signed_by(seats.identities.get(self.client, b"")):
            return False
        roots = {place: commitment_at(dealt.roots, place - 1) for place in texts}
        if not all(opens.right(self.client, at, texts[at], roots[at]) for at in texts):
            return False
        return opens.seeds(self.client, texts, dealt) is None

    def encoded(self) -> bytes:
        """Returns the bytes of this proof alone, which follow the `Call` and the survivors."""
        texts = (COUNT.pack(place) + sized(text) for place, text in self.texts)
        return sized(self.dealing.body()) + COUNT.pack(len(self.texts)) + b"".join(texts)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> UnusableDealing:
        """Parses a proof of this kind. Raises `BadMessage` if it is malformed."""
        dealing, count = read_framed(SignedDealing, context, data), data.count()
        return cls(dealing, tuple((data.count(), data.sized()) for _ in range(count)))


Evidence = WrongOpening | UnusableDealing
_KINDS: Mapping[str, type[Evidence]] = {
    kind.reason: kind for kind in (WrongOpening, UnusableDealing)
}


def committee_accusation(evidence: Evidence, call: Call, survivors: tuple[int, ...]) -> Culprit:
    """Returns the culprit that `evidence` proves, in a sum of `call` over `survivors`.

    Its proof contains the call and the survivors.
    """
    names = records([NUMBER.pack(who) for who in survivors])
    proof = call.context + sized(call.body()) + names + evidence.encoded()
    return Culprit(evidence.client, call.round, call.exchange, evidence.reason, proof)


def proves_violation(culprit: Culprit, terms: RoundTerms) -> bool:
    """Whether the culprit's own signed messages prove the accusation.

    `terms` may be those of any sum of the run. The result is False for a count of complaints, which
    is no proof, and for a proof that is malformed, of another run or configuration, or of another
    client, round or exchange than the culprit's.
    """
    kind = _KINDS.get(culprit.reason)
    if kind is None:
        return False
    try:
        data = Reader(culprit.proof)
        call = read_framed(Call, data.take(KEY), data)
        survivors = tuple(who for (who,) in data.records(NUMBER))
        evidence = kind.read(call.context, data)
        data.end()
        seats = _seats(call, survivors, terms)
    except Aborted:
        return False
    about = (evidence.client, call.round, call.exchange)
    return about == (culprit.client, culprit.round, culprit.exchange) and evidence.holds(seats)


def _seats(call: Call, survivors: tuple[int, ...], terms: RoundTerms) -> Seats:
    """Returns the committee of a `call`, with the check of its members' openings.

    Raises `Aborted` if the call is of another run or configuration, or if the survivors are not
    distinct clients of the call in ascending order.
    """
    of = replace(terms, round=call.round, exchange=call.exchange, model_hash=call.model_hash)
    of.require(call)
    require_survivors(survivors, call.clients)
    committee, members = of.committee(call.clients)
    openings = Openings(call.context, call.clients, survivors, committee)
    return Seats(openings, members, terms.book.identities)
