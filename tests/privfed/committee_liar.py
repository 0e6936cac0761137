"""A server that lies to the clients and members of a committee's sums, and what it learns.

The clients are real. The server sees all that they send, calls each to several rosters, shows each
member other survivors and votes, and has clients who work with it: these vote and open all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privfed.privacy.codec import Codec
from privfed.secure.committee import client as committee_client
from privfed.secure.committee.channel import client_pair, key_book
from privfed.secure.committee.client import CommitteeClient, Turns
from privfed.secure.committee.dealing import member_numbers, member_share, secret_commitment
from privfed.secure.committee.keys import Keyring, mask_key, pair_seed, sealing_key, shares_context
from privfed.secure.committee.messages import SEALED, Ballots, MemberInbox, MemberVote, vote_text
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.primitives import KEY, Expander, unseal
from privfed.secure.summation import Aborted

CODEC = Codec(1.0, 1.0, length=2, bits=16)


@dataclass(eq=False)
class Party:
    """An honest client that agreed to a call, and what it sent."""

    client: CommitteeClient
    row: np.ndarray
    roster: tuple[int, ...]
    letter: object
    members: tuple[int, ...]
    threshold: int
    shares: dict[int, dict[int, int]] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    votes: list[MemberVote] = field(default_factory=list)

    @property
    def me(self):
        return self.client.me

    @property
    def agreed(self):
        return self.letter.context

    def number(self, other):
        """Under which number the seed of its pair with `other` was dealt."""
        others = [who for who in self.roster if who != self.me]
        return 0 if other == self.me else 1 + others.index(other)


class World:
    """One exchange of a round, of clients who may be called to several rosters."""

    def __init__(self, rng, clients, colluders, policy, limits, kind=CommitteeClient, turns=Turns):
        self.rng, self.colluders = rng, frozenset(colluders)
        self.policy, self.limits, self.kind = policy, limits, kind
        self.honest = [who for who in clients if who not in self.colluders]
        self.terms = RoundTerms(1, 0, b"m" * 32, CODEC, policy, limits, key_book(tuple(clients)))
        self.rows = {who: rng.integers(-50, 50, CODEC.length) for who in self.honest}
        self.turns = {who: turns() for who in self.honest}
        self.parties = []
        self.rings = {who: Keyring(client_pair(who), self.terms.book) for who in clients}
        for who in self.colluders:
            self.rings[who].go_on(1)

    def call(self, roster):
        """Call the honest of a roster; who answers takes part."""
        call = self.terms.call(tuple(sorted(roster)))
        for who in call.clients:
            if who in self.colluders or self.rng.random() < 0.1:
                continue
            row = self.rows[who]
            client = self.kind(
                who, client_identity(who), self.rings[who], self.terms, row.copy, self.turns[who]
            )
            try:
                letter = client.handle(call)
            except Aborted:
                continue
            committee, members = self.terms.committee(call.clients)
            self.parties.append(
                Party(client, row, call.clients, letter, members, committee.threshold)
            )

    def show(self, member, survivors):
        """Tell a member who survived: with what these sent it, or anything else."""
        texts = []
        for who in sorted(survivors):
            letter = self._letter(who, member)
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

    def _letter(self, who, member):
        those = [party for party in self.parties if party.me == who]
        alike = [party for party in those if party.agreed == member.agreed]
        return next((party.letter for party in [*alike, *those]), None)

    def open(self, member, dishonest):
        """Give a member votes for its survivors, and, if `dishonest`, others' too."""
        votes = {}
        for party in self.parties:
            for survivors, vote in party.votes:
                alike = party.agreed == member.agreed
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
        for who, text in opening.shares:
            dealer = next(
                (each for each in self.parties if (each.me, each.agreed) == (who, member.agreed)),
                None,
            )
            if dealer is None:
                continue
            numbers = committee_client.opened_numbers(dealer.roster, member.survivors, who)
            for at, number in enumerate(numbers.values()):
                part = text[at * KEY : (at + 1) * KEY]
                self._learn(dealer, number, member.me, int.from_bytes(part, "little"))

    def _learn(self, dealer, number, member, drawn):
        place = 1 + dealer.members.index(member)
        shape = (dealer.threshold, len(dealer.members))
        share = member_share(drawn, dealer.letter.dealt.corrections, number, place, shape)
        dealer.shares.setdefault(number, {})[place] = share

    def collude(self):
        """What members who work with the server were dealt."""
        for party in self.parties:
            for who in self.colluders & set(party.members):
                way = (party.me, who)
                key = sealing_key(party.agreed, self.rings[who].secret(party.me), *way)
                sealed = party.letter.sealed[party.members.index(who)]
                dealt = unseal(key, sealed, shares_context(party.agreed, *way))
                for number, drawn in enumerate(member_numbers(dealt, len(party.roster))):
                    self._learn(party, number, who, drawn)

    def _seed(self, party, number):
        shares = party.shares.get(number, {})
        if len(shares) < party.threshold:
            return None
        seed = reconstruct(shares, party.threshold)
        expected = party.letter.dealt.secrets[16 * number : 16 * number + 16]
        assert secret_commitment(party.agreed, party.me, number, seed) == expected
        return seed

    def opened(self):
        """Groups of honest rows whose sum has no mask that the server does not know."""
        ends, bare = {}, {}
        for party in self.parties:
            total, hidden = self._masks(party)
            bare[party] = total
            for key in hidden:
                ends.setdefault(key, []).append(party)
        group = {party: {party} for party in self.parties}
        for tied in ends.values():
            joined = set().union(*(group[party] for party in tied))
            for party in joined:
                group[party] = joined
        single = {tied[0] for tied in ends.values() if len(tied) == 1}
        groups = {id(each): each for each in group.values()}.values()
        return [(each, sum(bare[party] for party in each)) for each in groups if not each & single]

    def _masks(self, party):
        expander = Expander(CODEC.length, CODEC.bits)
        total, hidden = np.frombuffer(party.letter.words, "<u2").copy(), []
        for other in party.roster:
            seed = self._known(party, other)
            if seed is None:
                hidden.append((party.agreed, *sorted((party.me, other))))
            else:
                expander.apply(total, mask_key(party.agreed, seed), subtract=other <= party.me)
        return total, hidden

    def _known(self, party, other):
        if other in self.colluders:
            secret = self.rings[other].secret(party.me)
            return pair_seed(party.agreed, secret, party.me, other)
        seed = self._seed(party, party.number(other))
        if seed is None and other != party.me:
            for each in self.parties:
                if (each.me, each.agreed) == (other, party.agreed):
                    seed = seed or self._seed(each, each.number(party.me))
        return seed


def setting(rng):
    """A small federation, who works with the server, and what clients insist on."""
    count = int(rng.integers(4, 9))
    policy = CommitteePolicy(0.55, float(rng.choice([0.0, 0.15, 0.3])), 3, count)
    corrupt = policy.corrupt(count)
    clients = tuple(range(1, count + 1))
    colluders = rng.choice(clients, corrupt, replace=False).tolist()
    return clients, colluders, policy, Limits(20, int(rng.integers(2, 4)))
