"""The server of a committee's sum: adds masked rows as they come, and has their masks opened.

What a single client or member gets wrong is refused by name and leaves everything as it was. It
holds one sum `[length]`, and of each client the commitments and sealed texts of its one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from privfed.secure.committee.commitments import DIGEST
from privfed.secure.committee.dealing import commitment_at
from privfed.secure.committee.messages import (
    Ballot,
    Ballots,
    Contribution,
    Disclosure,
    FromServer,
    MemberInbox,
    MemberVote,
    Message,
    vote_text,
)
from privfed.secure.committee.opening import Openings
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.frames import BadMessage
from privfed.secure.masked.shamir import LENGTH
from privfed.secure.packing import Words
from privfed.secure.primitives import Expander
from privfed.secure.summation import Aborted

_ORDER = (Contribution, Ballot, Disclosure)


class CommitteeServer:
    """Takes messages by `handle`, and ends a step by `proceed`; then `total` takes the masks off.

    `faults` names clients who misbehaved: their signed messages prove it to the server itself, or
    more members say so than may lie. Nobody is left out of later sums for it.
    """

    def __init__(self, terms: RoundTerms, clients: tuple[int, ...]) -> None:
        self._terms, self.call = terms, terms.call(clients)
        self._agreed = self.call.context
        self._committee, self._members = terms.committee(clients)
        self._masks = Expander(terms.codec.length, terms.codec.bits)
        self._sum = self._masks.zeros()
        self._step, self._awaited, self._alive = 0, set(clients), True
        self._letters: dict[int, Contribution] = {}
        self._ballots: dict[int, Ballot] = {}
        self._openings: dict[int, dict[int, bytes]] = {}
        self._survivors: tuple[int, ...] = ()
        self.faults: dict[int, str] = {}

    def handle(self, client: int, message: Message) -> None:
        """Take the answer of `client`. Raises `BadMessage`, and then nothing has changed."""
        self._require_alive()
        if not isinstance(message, _ORDER) or not isinstance(message, _ORDER[self._step]):
            raise BadMessage("wrong type", f"a {type(message).__name__} out of its turn")
        if message.context != self._agreed:
            raise BadMessage("wrong session", "a message of another session")
        if message.sender != client:
            raise BadMessage("wrong sender", "a message in another client's name")
        if client not in self._awaited:
            raise BadMessage("unknown sender", "nobody who is asked, or who answered already")
        if not message.signed_by(self._terms.book.identities.get(client, b"")):
            raise BadMessage("wrong signature", "not what its client signed")
        match message:
            case Contribution():
                self._contributed(message)
            case Ballot():
                self._voted(message)
            case Disclosure():
                self._opened(message)
        self._awaited.discard(client)

    def proceed(self) -> Mapping[int, FromServer]:
        """End the step: whom to send what next. Raises `Aborted` where too few are left."""
        self._require_alive()
        self._step += 1
        self._alive = False  # unless the step succeeds
        sent = (self._inboxes, self._consistency)[self._step - 1]()
        self._alive, self._awaited = True, set(sent)
        return sent

    def _require_alive(self) -> None:
        if not self._alive:
            raise Aborted("a session that has ended")

    def _contributed(self, message: Contribution) -> None:
        clients, committee, dealt = len(self.call.clients), self._committee, message.dealt
        corrections = clients * (committee.members - committee.threshold + 1)
        sizes = (committee.members * DIGEST, corrections * LENGTH, clients * DIGEST)
        if len(message.sealed) != committee.members or sizes != tuple(
            map(len, (dealt.roots, dealt.corrections, dealt.secrets))
        ):
            raise BadMessage("wrong shares", "dealt to others than the committee")
        if len(message.words) != self._masks.size:
            raise BadMessage("wrong length", "a masked row of another length than the session's")
        if not self._masks.add(self._sum, message.words):
            raise BadMessage("wrong modulus", "bits beyond the numbers of the session's modulus")
        self._letters[message.sender] = replace(message, words=b"")

    def _inboxes(self) -> Mapping[int, MemberInbox]:
        if len(self._letters) < self._terms.least(self._committee):
            raise Aborted("too few clients sent their row")
        self._survivors = tuple(sorted(self._letters))
        self._opens = Openings(self._agreed, self.call.clients, self._survivors, self._committee)
        inboxes = {}
        for at, member in enumerate(self._members):
            if member in self._letters:
                letters = ((who, self._letters[who]) for who in self._survivors)
                texts = tuple((who, letter.sealed[at]) for who, letter in letters)
                inboxes[member] = MemberInbox(self._agreed, texts)
        self._require(inboxes.keys(), "sent a row")
        return inboxes

    def _voted(self, message: Ballot) -> None:
        text = vote_text(self._agreed, self._survivors)
        vote = MemberVote(message.sender, message.vote)
        if not vote.cast_by(self._terms.book.identities[message.sender], text):
            raise BadMessage("inconsistent", "a vote for other survivors than the server's")
        if len(message.roots) != len(self._survivors):
            raise BadMessage("wrong shares", "roots of others than the survivors")
        self._ballots[message.sender] = message

    def _consistency(self) -> Mapping[int, Ballots]:
        self._require(self._ballots.keys(), "agreed on the survivors")
        good = Counter(who for member in self._ballots for who in self._good(member))
        for client in self._survivors:
            if len(self._ballots) - good[client] > self._committee.corrupt:
                self._accuse(client, "sealed shares that are not what it committed to")
        voters = sorted(self._ballots)[: self._committee.threshold]
        votes = tuple(MemberVote(who, self._ballots[who].vote) for who in voters)
        return {member: Ballots(self._agreed, votes) for member in self._ballots}

    def _good(self, member: int) -> set[int]:
        """Whose shares a member holds, as they were committed to."""
        place = self._place(member)
        pairs = zip(self._survivors, self._ballots[member].roots, strict=True)
        return {who for who, root in pairs if root == self._root(who, place)}

    def _place(self, member: int) -> int:
        """The place of a member in the committee, from 1."""
        return 1 + self._members.index(member)

    def _root(self, client: int, place: int) -> bytes:
        return commitment_at(self._letters[client].dealt.roots, place - 1)

    def _opened(self, message: Disclosure) -> None:
        member, texts = message.sender, dict(message.shares)
        good, place = self._good(member), self._place(member)
        if len(texts) != len(message.shares) or not good <= texts.keys():
            raise BadMessage("wrong shares", "shares twice, or not of all that it holds")
        for who in good:
            if not self._opens.right(who, place, texts[who], self._root(who, place)):
                self.faults[member] = "opened what its dealer did not commit to"
                raise BadMessage("wrong shares", f"client {member} {self.faults[member]}")
        self._openings[member] = {who: texts[who] for who in good}

    def total(self) -> tuple[Words, int]:
        """The sum modulo 2^bits and the number of survivors. Raises `Aborted`."""
        self._require_alive()
        self._alive = False
        self._require(self._openings.keys(), "helped to take the masks off")
        total = self._sum.copy()
        for client in self._survivors:
            places = {
                self._place(member): shares[client]
                for member, shares in self._openings.items()
                if client in shares
            }
            if len(places) < self._committee.threshold:
                raise Aborted(f"too few members could open the shares of client {client}")
            seeds = self._opens.seeds(client, places, self._letters[client].dealt)
            if seeds is None:
                self._accuse(client, "shares that are not of the seeds it committed to")
            else:
                self._opens.remove(self._masks, total, client, seeds)
        return self._masks.reduce(total), len(self._survivors)

    def _accuse(self, client: int, what: str) -> None:
        self.faults[client] = what
        raise Aborted(f"wrong dealing: client {client} dealt {what}")

    def _require(self, left: Collection[int], did: str) -> None:
        """Raises `Aborted` unless enough members are `left`."""
        if len(left) < self._committee.threshold:
            raise Aborted(f"too few members of the committee {did}")
