"""A malicious server towards clients and members of a committee's sums, and what it learns.

The clients are real, and keep their rings over two exchanges of a run. The server sees all
messages. It calls each client to several rosters, and shows each member different survivors and
votes, also those of other rosters and exchanges. It colludes with clients, which vote and open
anything. It forgets nothing: a secret is known once enough of its shares, or its own bytes, were
revealed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from privfed.privacy.codec import Codec
from privfed.secure.committee import client as committee_client
from privfed.secure.committee.channel import simulated_keys
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.dealing import deal_secrets, member_numbers
from privfed.secure.committee.key_book import mask_key, sealing_key, shares_context
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.messages import SEALED, Ballots, MemberInbox, MemberVote, vote_text
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.primitives import KEY, Expander, unseal
from privfed.secure.summation import Aborted

CODEC = Codec(1.0, 1.0, length=2, bits=16)
PRIME = 2**31 - 1


@dataclass(eq=False)
class Party:
    """An honest client that agreed to a call, its message, and the `secrets` and `keys` it
    shared.
    """

    client: CommitteeClient
    terms: RoundTerms
    row: np.ndarray
    roster: tuple[int, ...]
    letter: object
    secrets: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    members: tuple[int, ...]
    threshold: int
    survivors: tuple[int, ...] = ()
    votes: list[tuple[tuple[int, ...], MemberVote]] = field(default_factory=list)

    @property
    def me(self):
        return self.client.me

    @property
    def agreed(self):
        return self.letter.context

    @property
    def others(self):
        """The owner of each secret's pair, in order; the first is the client's own."""
        return (self.me, *(who for who in self.roster if who != self.me))


class World:
    """A run of clients that may be called to several rosters in each exchange."""

    def __init__(self, rng, clients, colluders, policy, limits, kind=CommitteeClient, ring=Keyring):
        self.rng, self.colluders = rng, frozenset(colluders)
        self.policy, self.limits, self.kind = policy, limits, kind
        self.honest = [who for who in clients if who not in self.colluders]
        self.run = simulated_keys(tuple(clients))
        self.rings = {
            who: ring(self.run.pairs[who], card, self.run.book)
            for who, card in self.run.book.cards.items()
        }
        self.parties, self.numbers, self.seeds, self.held = [], set(), set(), []

    def begin(self, round, exchange):
        """Begins an exchange: returns its terms, and generates rows known only to their owners."""
        book = self.run.book
        terms = RoundTerms(round, exchange, b"m" * 32, CODEC, self.policy, self.limits, book)
        self.rows = {who: self.rng.integers(-50, 50, CODEC.length) for who in self.honest}
        self.held += [(who, self.rings[who].take(round, exchange)) for who in self.colluders]
        return terms

    def call(self, terms, roster, those):
        """Calls the honest clients of a roster in `those`; clients that answer take part."""
        call = terms.call(tuple(sorted(roster)))
        for who in call.clients:
            if who not in those or who in self.colluders or self.rng.random() < 0.1:
                continue
            row = self.rows[who]
            client = self.kind(client_identity(who), self.rings[who], terms, row.copy)
            with mock.patch.object(committee_client, "deal_secrets", wraps=deal_secrets) as dealt:
                try:
                    letter = client.handle(call)
                except Aborted:
                    continue
            _, _, secrets, keys, threshold = dealt.call_args.args
            members = terms.committee(call.clients)[1]
            self.parties.append(
                Party(client, terms, row, call.clients, letter, secrets, keys, members, threshold)
            )

    def show(self, member, survivors, crossed):
        """Shows a member the survivors, with messages they sent to it, here or elsewhere, or random
        ones.
        """
        texts = []
        for who in sorted(survivors):
            letter = self._letter(who, member, crossed)
            if letter and len(letter.sealed) == len(member.members):
                sealed = letter.sealed[member.members.index(member.me)]
                texts.append((who, sealed))
            else:
                texts.append((who, self.rng.bytes(SEALED)))
        try:
            ballot = member.client.handle(MemberInbox(member.agreed, tuple(texts)))
        except Aborted:
            return
        member.survivors = tuple(sorted(survivors))
        member.votes.append((member.survivors, MemberVote(member.me, ballot.vote)))

    def _letter(self, who, member, crossed):
        those = [party for party in self.parties if party.me == who]
        alike = [party for party in those if party.agreed == member.agreed]
        if crossed and those and self.rng.random() < 0.3:
            return those[int(self.rng.integers(len(those)))].letter
        return next((party.letter for party in [*alike, *those]), None)

    def open(self, member, dishonest, crossed):
        """Gives a member votes for its survivors.

        If `dishonest`, adds votes for others, and if `crossed` those under other rosters.
        """
        votes = {}
        inside = [party for party in self.parties if party.me in member.members]
        for party in sorted(inside, key=lambda party: party.agreed == member.agreed):
            for survivors, vote in party.votes:
                alike = party.agreed == member.agreed or crossed
                if alike and (dishonest or survivors == member.survivors):
                    votes[party.me] = vote
        text = vote_text(member.agreed, member.survivors)
        for who in self.colluders & set(member.members):
            votes[who] = MemberVote(who, client_identity(who).sign(text))
        cast = tuple(votes[who] for who in sorted(votes))
        try:
            opening = member.client.handle(Ballots(member.agreed, cast))
        except Aborted:
            return
        for _, text in opening.shares:
            self.numbers |= {text[at : at + KEY] for at in range(0, len(text), KEY)}

    def collude(self):
        """Records the shares of colluding members, and the seeds of their masks."""
        for party in self.parties:
            for who, secrets in self.held:
                shared = secrets[party.me]
                self.seeds.add(committee_client.pair_seed(party.agreed, shared, party.me, who))
                way = (party.me, who)
                key, context = sealing_key(party.agreed, shared, *way), shares_context
                for sealed in party.letter.sealed:
                    if (dealt := unseal(key, sealed, context(party.agreed, *way))) is not None:
                        numbers = member_numbers(dealt, len(party.roster))
                        self.numbers |= {number.to_bytes(KEY, "little") for number in numbers}

    def _reconstruct(self):
        """Records secrets with enough known shares, in whichever session these were opened."""
        for party in self.parties:
            columns = [member_numbers(key, len(party.roster)) for key in party.keys]
            for number, secret in enumerate(party.secrets):
                drawn = (column[number].to_bytes(KEY, "little") for column in columns)
                if sum(part in self.numbers for part in drawn) >= party.threshold:
                    self.seeds.add(secret)

    def opened(self):
        """Yields sums of rows without a mask whose seed the server does not know.

        Each is given by its parties, with their factors, and the server's result.
        """
        self._reconstruct()
        bare, hidden = (
            zip(*map(self._masks, self.parties), strict=True) if self.parties else ((),) * 2
        )
        keys = sorted(set().union(*hidden)) if hidden else []
        matrix = [[each.get(key, 0) for key in keys] for each in hidden]
        for factors in left_kernel(matrix):
            those = {at: factor for at, factor in enumerate(factors) if factor}
            total = sum(int(factor) * bare[at].astype(np.int64) for at, factor in those.items())
            yield {self.parties[at]: factor for at, factor in those.items()}, total

    def _masks(self, party):
        """Returns a party's row without known masks, and the factor of each other mask."""
        expander = Expander(CODEC.length, CODEC.bits)
        total, hidden = np.frombuffer(party.letter.words, "<u2").copy(), {}
        for other, seed in zip(party.others, party.secrets, strict=True):
            key, sign = mask_key(party.agreed, seed), 1 if other <= party.me else -1
            if seed in self.seeds:
                expander.apply(total, key, subtract=sign > 0)
            else:
                hidden[key] = hidden.get(key, 0) + sign
        return total, hidden


def left_kernel(matrix):
    """Returns a basis of the factors with which rows of a small matrix sum to zero, modulo a prime.

    Numbers above half the prime are negative. Each vector has a position of its own with value 1.
    """
    count = len(matrix)
    rows = [[*row, *(int(at == place) for at in range(count))] for place, row in enumerate(matrix)]
    width, solved = len(rows[0]) - count if rows else 0, 0
    for column in range(width + count):
        if column == width:
            rows, solved = rows[solved:], 0
        at = next((at for at in range(solved, len(rows)) if rows[at][column] % PRIME), None)
        if at is None:
            continue
        rows[solved], rows[at] = rows[at], rows[solved]
        inverse = pow(rows[solved][column], -1, PRIME)
        rows[solved] = [value * inverse % PRIME for value in rows[solved]]
        for other in range(len(rows)):
            if other != solved and (factor := rows[other][column]):
                pairs = zip(rows[other], rows[solved], strict=True)
                rows[other] = [(value - factor * base) % PRIME for value, base in pairs]
        solved += 1
    return [
        [value - PRIME if value > PRIME // 2 else value for value in row[width:]] for row in rows
    ]


def setting(rng):
    """Returns a small random federation, its colluders, and the settings that clients enforce."""
    count = int(rng.integers(4, 9))
    policy = CommitteePolicy(0.55, float(rng.choice([0.0, 0.15, 0.3])), 3, count)
    corrupt = policy.corrupt(count)
    clients = tuple(range(1, count + 1))
    colluders = rng.choice(clients, corrupt, replace=False).tolist()
    return clients, colluders, policy, Limits(20, int(rng.integers(2, 4)))
