"""The server of a committee's sum: adds masked rows as they arrive, then removes their masks.

An invalid message from one client or member is refused with a reason and does not change the sum.
The server holds one sum `[length]`, and the commitments and sealed texts of each client's message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from privfed.secure.committee.dealing import commitment_at
from privfed.secure.committee.evidence import (
    Evidence,
    UnusableDealing,
    WrongOpening,
    committee_accusation,
)
from privfed.secure.committee.messages import (
    Ballot,
    Ballots,
    Contribution,
    Disclosure,
    FromServer,
    MemberInbox,
    MemberVote,
    Message,
    SignedDealing,
    vote_text,
)
from privfed.secure.committee.opening import Openings
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.frames import BadMessage
from privfed.secure.packing import Words
from privfed.secure.primitives import Expander
from privfed.secure.summation import Aborted, Culprit

_ORDER = (Contribution, Ballot, Disclosure)


class CommitteeServer:
    """The server of one sum: `handle` takes messages, `proceed` ends a step, `total` opens the sum.

    `culprits` are clients that deviated: either their own signed messages prove this (`evidence`),
    or the number of members that complain exceeds the number that may be Byzantine or collude.
    """

    def __init__(self, terms: RoundTerms, clients: tuple[int, ...]) -> None:
        self._terms, self.call = terms, terms.call(clients)
        self._agreed = self.call.context
        self._committee, self._members = terms.committee(clients)
        self._masks = Expander(terms.codec.length, terms.codec.bits)
        self._sum = self._masks.zeros()
        self._step, self._awaited, self._alive = 0, set(clients), True
        self._sealed: dict[int, tuple[bytes, ...]] = {}
        self._ballots: dict[int, Ballot] = {}
        self._openings: dict[int, dict[int, bytes]] = {}
        self._survivors: tuple[int, ...] = ()
        self._dealings: dict[int, SignedDealing] = {}
        self._culprits: dict[int, Culprit] = {}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Clients identified as Byzantine in this sum so far, in order."""
        return tuple(culprit for _, culprit in sorted(self._culprits.items()))

    def handle(self, client: int, message: Message) -> None:
        """Accepts the answer of `client`.

        Raises `BadMessage` for an invalid answer, which changes nothing except `culprits`, and
        `Aborted` after the session has ended.
        """
        self._require_alive()
        if not isinstance(message, _ORDER) or not isinstance(message, _ORDER[self._step]):
            raise BadMessage("wrong type", f"a {type(message).__name__} is not expected now")
        if message.context != self._agreed:
            raise BadMessage("wrong session", "the message belongs to another session")
        if message.sender != client:
            raise BadMessage("wrong sender", "the message is in another client's name")
        if client not in self._awaited:
            raise BadMessage(
                "unknown sender", "no answer is expected from this client, or it has answered"
            )
        if not message.signed_by(self._terms.book.identities.get(client, b"")):
            raise BadMessage("wrong signature", "the message is not what its client signed")
        match message:
            case Contribution():
                self._contributed(message)
            case Ballot():
                self._voted(message)
            case Disclosure():
                self._opened(message)
        self._awaited.discard(client)

    def proceed(self) -> Mapping[int, FromServer]:
        """Ends the current step; returns the messages of the next one, by receiving client.

        Raises `Aborted` if too few clients or members remain, if too few members hold usable shares
        of a client that sent garbled ones, or after the session has ended.
        """
        self._require_alive()
        self._step += 1
        self._alive = False  # set again if the step succeeds
        sent = (self._inboxes, self._consistency)[self._step - 1]()
        self._alive, self._awaited = True, set(sent)
        return sent

    def _require_alive(self) -> None:
        if not self._alive:
            raise Aborted("the session has ended")

    def _contributed(self, message: Contribution) -> None:
        fits = message.dealt.fits(len(self.call.clients), self._committee)
        if len(message.sealed) != self._committee.members or not fits:
            raise BadMessage("wrong shares", "the dealing does not fit the roster or the committee")
        if len(message.words) != self._masks.size:
            raise BadMessage("wrong length", "the masked row has another length than the session's")
        if not self._masks.add(self._sum, message.words):
            raise BadMessage("wrong modulus", "the row has bits beyond the session's modulus")
        self._dealings[message.sender] = message.dealing
        self._sealed[message.sender] = message.sealed

    def _inboxes(self) -> Mapping[int, MemberInbox]:
        if len(self._sealed) < self._terms.least(self._committee):
            raise Aborted("too few clients sent their row")
        self._survivors = tuple(sorted(self._sealed))
        self._opens = Openings(self._agreed, self.call.clients, self._survivors, self._committee)
        inboxes = {}
        for at, member in enumerate(self._members):
            if member in self._sealed:
                texts = tuple((who, self._sealed[who][at]) for who in self._survivors)
                inboxes[member] = MemberInbox(self._agreed, texts)
        self._require(inboxes.keys(), "sent a row")
        return inboxes

    def _voted(self, message: Ballot) -> None:
        text = vote_text(self._agreed, self._survivors)
        vote = MemberVote(message.sender, message.vote)
        if not vote.cast_by(self._terms.book.identities[message.sender], text):
            raise BadMessage("inconsistent", "the vote is for other survivors than the server's")
        if len(message.roots) != len(self._survivors):
            raise BadMessage("wrong shares", "the ballot does not have one root for each survivor")
        self._ballots[message.sender] = message

    def _consistency(self) -> Mapping[int, Ballots]:
        self._require(self._ballots.keys(), "agreed on the survivors")
        self._count_complaints()
        voters = sorted(self._ballots)[: self._committee.threshold]
        votes = tuple(MemberVote(who, self._ballots[who].vote) for who in voters)
        return {member: Ballots(self._agreed, votes) for member in self._ballots}

    def _count_complaints(self) -> None:
        """Records each client whose shares were unusable for too many members.

        These are more members than may be Byzantine or collude with the server.

        Raises:
          Aborted: if too few members hold good shares of such a client.
        """
        good = Counter(who for member in self._ballots for who in self._good(member))
        corrupt = self._committee.corrupt + self._terms.limits.byzantine
        session = (self.call.round, self.call.exchange)
        for client in self._survivors:
            if (count := len(self._ballots) - good[client]) > corrupt:
                culprit = Culprit(client, *session, "garbled shares", complaints=count)
                self._culprits[client] = culprit
        stopping = (who for who in self._culprits if good[who] < self._committee.threshold)
        for client in stopping:
            raise Aborted(
                f"wrong dealing: client {client} distributed shares that members cannot use"
            )

    def _good(self, member: int) -> set[int]:
        """Returns the survivors whose dealing has the root for this member that its ballot has."""
        place = self._place(member)
        pairs = zip(self._survivors, self._ballots[member].roots, strict=True)
        return {who for who, root in pairs if root == self._root(who, place)}

    def _place(self, member: int) -> int:
        """Returns a member's place in the committee, from 1."""
        return 1 + self._members.index(member)

    def _root(self, client: int, place: int) -> bytes:
        return commitment_at(self._dealings[client].dealt.roots, place - 1)

    def _opened(self, message: Disclosure) -> None:
        member, texts = message.sender, dict(message.shares)
        good, place = self._good(member), self._place(member)
        if len(texts) != len(message.shares) or not good <= texts.keys():
            raise BadMessage("wrong shares", "some shares are duplicate or missing")
        if not all(
            self._opens.right(who, place, texts[who], self._root(who, place)) for who in good
        ):
            self._prove(WrongOpening(self._ballots[member], message))
            raise BadMessage(
                "wrong shares", f"client {member} opened shares that their sender did not commit to"
            )
        self._openings[member] = {who: texts[who] for who in good}

    def total(self) -> tuple[Words, int]:
        """Returns the sum modulo 2^bits and the number of survivors.

        Raises `Aborted` if too few members opened shares, or a dealing is wrong.
        """
        self._require_alive()
        self._alive = False
        self._require(self._openings.keys(), "helped to remove the masks")
        total = self._sum.copy()
        seeds = {client: self._seeds(client) for client in self._survivors}
        for client, opened in seeds.items():
            if opened is None:
                raise Aborted(
                    f"wrong dealing: client {client} distributed shares of other seeds than those "
                    "of its masks"
                )
            self._opens.remove(self._masks, total, client, opened)
        return self._masks.reduce(total), len(self._survivors)

    def _seeds(self, client: int) -> Mapping[int, bytes] | None:
        """Returns a survivor's opened seeds; if they are wrong, records a proof and returns None.

        Raises `Aborted` if too few members opened shares of this survivor.
        """
        places = sorted(
            (self._place(member), shares[client])
            for member, shares in self._openings.items()
            if client in shares
        )
        if len(places) < self._committee.threshold:
            raise Aborted(f"too few members could open the shares of client {client}")
        texts, dealing = tuple(places[: self._committee.threshold]), self._dealings[client]
        seeds = self._opens.seeds(client, dict(texts), dealing.dealt)
        if seeds is None:
            self._prove(UnusableDealing(dealing, texts))
        return seeds

    def _prove(self, evidence: Evidence) -> None:
        culprit = committee_accusation(evidence, self.call, self._survivors)
        self._culprits.setdefault(evidence.client, culprit)

    def _require(self, left: Collection[int], did: str) -> None:
        """Raises `Aborted` if `left`, the remaining members, are fewer than the threshold.

        `did` completes the message "too few members of the committee ...".
        """
        if len(left) < self._committee.threshold:
            raise Aborted(f"too few members of the committee {did}")
