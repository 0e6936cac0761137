"""A client of a committee's sum: one message per round, and two more as a committee member.

The client trusts its own terms, the run's key book and its own computation; any violation by the
server ends the sum for this client. `privfed.secure.committee` proves the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.privacy.integers import Integers
from privfed.secure.committee.dealing import (
    DIGEST,
    Tree,
    column_tree,
    deal_secrets,
    member_numbers,
    proof,
)
from privfed.secure.committee.key_book import (
    mask_key,
    pair_seed,
    sealing_key,
    shares_context,
)
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.messages import (
    Ballot,
    Ballots,
    Call,
    Contribution,
    Disclosure,
    FromClient,
    MemberInbox,
    MemberVote,
    Message,
    vote_text,
)
from privfed.secure.committee.opening import opened_numbers
from privfed.secure.committee.terms import RoundTerms, require_survivors
from privfed.secure.frames import BadMessage
from privfed.secure.primitives import KEY, Expander, random_key, seal, unseal

_ENDED = 3


class CommitteeClient:
    """A client in one sum: it answers the `Call` and, as a member, its `MemberInbox` and `Ballots`.

    The client raises `Aborted`, usually as `BadMessage`, for a message that it refuses, and
    afterwards answers no message of this sum.

    Args:
      identity: the client's long-term signing key.
      ring: the client's secrets of the run, made with the key book of `terms`.
      terms: the properties of the sum that it expects.
      row: returns the encoded row [length]; called once, at the time of masking, after `ring` has
        stored that the secrets of this exchange are used.
    """

    def __init__(
        self,
        identity: Ed25519PrivateKey,
        ring: Keyring,
        terms: RoundTerms,
        row: Callable[[], Integers],
    ) -> None:
        self.me, self._identity, self._ring = ring.me, identity, ring
        self._terms, self._row = terms, row
        self._agreed, self._step = b"", 0
        self._openers: dict[int, bytes] = {}
        self._drawn: dict[int, tuple[tuple[int, ...], Tree]] = {}

    def handle(self, message: Message) -> FromClient:
        """Returns the answer to the server's next message.

        Raises:
          Aborted: if the client refuses the message, usually as `BadMessage`.
        """
        try:
            if self._agreed and message.context != self._agreed:
                raise BadMessage("wrong session", "the message belongs to another session")
            self._step += 1
            return self._answer(message)
        except Exception:
            self._end()
            raise

    def _answer(self, message: Message) -> FromClient:
        match (self._step, message):
            case (1, Call()):
                return self._contribute(message).signed(self._identity)
            case (2, MemberInbox()):
                return self._vote(message).signed(self._identity)
            case (3, Ballots()):
                opening = self._open(message).signed(self._identity)
                self._end()
                return opening
        raise BadMessage("wrong type", f"a {type(message).__name__} is not expected now")

    def _end(self) -> None:
        self._step = _ENDED
        self._openers.clear()
        self._drawn.clear()

    def _contribute(self, call: Call) -> Contribution:
        terms = self._terms
        terms.require(call)
        if self._ring.book != terms.book.digest:
            raise BadMessage("wrong key book", "the key ring belongs to another session's key book")
        if self.me not in call.clients:
            raise BadMessage("wrong roster", "the cohort does not contain this client")
        self._committee, self._members = terms.committee(call.clients)
        shared = self._ring.take(call.round, call.exchange)
        self._agreed, self._clients = call.context, call.clients
        self._others = tuple(other for other in call.clients if other != self.me)
        seeds = (pair_seed(self._agreed, shared[other], self.me, other) for other in self._others)
        secrets = (bytes(random_key()), *seeds)
        words = self._masked_row(secrets)
        keys = tuple(bytes(random_key()) for _ in self._members)
        dealt = deal_secrets(self._agreed, self.me, secrets, keys, self._committee.threshold)
        sealed = tuple(
            self._seal(member, shared[member], key)
            for member, key in zip(self._members, keys, strict=True)
        )
        if self.me in self._members:
            self._openers = {
                who: sealing_key(self._agreed, shared[who], who, self.me) for who in call.clients
            }
        return Contribution(self._agreed, self.me, sealed, dealt, words)

    def _masked_row(self, secrets: tuple[bytes, ...]) -> bytes:
        """Returns y_u = x_u + PRG(m_u) + sum_{v < u} PRG(r_uv) - sum_{v > u} PRG(r_uv), packed.

        x_u is this client's row. m_u, its fresh seed, and r_uv, its seeds with the other clients v,
        are the `secrets`, in this order.
        """
        masks = Expander(self._terms.codec.length, self._terms.codec.bits)
        total = masks.zeros()
        total += self._row().astype(masks.word)
        masks.apply(total, mask_key(self._agreed, secrets[0]))
        for other, secret in zip(self._others, secrets[1:], strict=True):
            masks.apply(total, mask_key(self._agreed, secret), subtract=other > self.me)
        return bytes(masks.pack(total))

    def _seal(self, member: int, shared: bytes, text: bytes) -> bytes:
        way = (self.me, member)
        return seal(
            sealing_key(self._agreed, shared, *way), text, shares_context(self._agreed, *way)
        )

    def _unseal(self, sender: int, sealed: bytes) -> bytes | None:
        """Returns the key that `sender` dealt to this member; None if it cannot be decrypted."""
        context = shares_context(self._agreed, sender, self.me)
        return unseal(self._openers[sender], sealed, context)

    def _vote(self, inbox: MemberInbox) -> Ballot:
        if self.me not in self._members:
            raise BadMessage("wrong member", "the inbox is for a client outside the committee")
        survivors = inbox.survivors
        require_survivors(survivors, self._clients)
        if len(survivors) < self._terms.least(self._committee):
            raise BadMessage("too few", "fewer clients survived than a sum requires")
        roots = tuple(self._draw(*letter) for letter in inbox.sealed)
        self._openers.clear()
        self._survivors = survivors
        vote = self._identity.sign(vote_text(self._agreed, survivors))
        return Ballot(self._agreed, self.me, vote, roots)

    def _draw(self, sender: int, sealed: bytes) -> bytes:
        """Derives this member's numbers for the secrets of `sender` from the key in `sealed`.

        Stores them and returns the root `[DIGEST]` of their hash tree. If `sealed` cannot be
        decrypted, stores nothing and returns zeros.
        """
        key = self._unseal(sender, sealed)
        if key is None:
            return bytes(DIGEST)
        place = 1 + self._members.index(self.me)
        column = member_numbers(key, len(self._clients))
        levels = column_tree(self._agreed, sender, place, column)
        self._drawn[sender] = column, levels
        return levels[-1][0]

    def _open(self, ballots: Ballots) -> Disclosure:
        """Returns this member's numbers that open the survivors' masks.

        They are those for the survivors' fresh seeds, and for the seeds that survivors share with
        dropouts. Raises `BadMessage` if the votes in `ballots` are duplicate, fewer than the
        threshold, or not signed by members for the same survivors as this member's vote.
        """
        self._check_votes(ballots.votes)
        shares = []
        for client, (column, levels) in sorted(self._drawn.items()):
            numbers = opened_numbers(self._clients, self._survivors, client).values()
            values = (column[number].to_bytes(KEY, "little") for number in numbers)
            shares.append((client, b"".join(values) + proof(levels, numbers)))
        return Disclosure(self._agreed, self.me, tuple(shares))

    def _check_votes(self, votes: tuple[MemberVote, ...]) -> None:
        voters = [vote.member for vote in votes]
        if len(set(voters)) != len(voters) or not set(voters) <= set(self._members):
            raise BadMessage(
                "wrong voters", "duplicate votes, or votes of clients outside the committee"
            )
        if len(voters) < self._committee.threshold:
            raise BadMessage("too few", "the votes are fewer than the threshold")
        text = vote_text(self._agreed, self._survivors)
        for vote in votes:
            if not vote.cast_by(self._terms.book.identities.get(vote.member, b""), text):
                raise BadMessage(
                    "inconsistent",
                    "a vote is not signed for the survivors that this client voted for",
                )
