"""Whatever a server says to a committee: for each roster one sum of enough honest, or nothing."""

from collections import Counter

import numpy as np
import pytest
from lanes import every_case
from malicious_committee_server import World, left_kernel, setting

from privfed.secure.committee import client as committee_client
from privfed.secure.committee import policy as committee_policy
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.messages import MemberInbox
from privfed.secure.committee.terms import RoundTerms


class Broken(AssertionError):
    """A promise that was not kept."""


def judge(world):
    """All that is known of rows: sums, each exact, of enough rows, and one for a roster."""
    opened = list(world.opened())
    rosters, summed = Counter(), Counter()
    for factors, total in opened:
        exact = sum(factor * party.row for party, factor in factors.items())
        assert np.array_equal(total % 65536, exact % 65536), "the judge has miscounted"
        agreed = {party.agreed for party in factors}
        clients = len(next(iter(factors)).roster)
        committee = world.policy.committee(clients)
        least = max(world.limits.least(clients), committee.survivors, committee.corrupt + 2)
        if {*factors.values()} != {1} or len(agreed) > 1:
            raise Broken("something else than a sum of one roster")
        if len(factors) < least - committee.corrupt:
            raise Broken(f"a sum of {len(factors)} of {clients}")
        rosters.update(agreed)
        summed.update((party.me, party.terms.round, party.terms.exchange) for party in factors)
    if max([*rosters.values(), *summed.values()], default=0) > 1:
        raise Broken("two sums of one roster, or with one row")
    return opened


EXCHANGES = ((1, 0), (1, 1)), ((1, 0), (2, 0)), ((1, 0),)


def attack(rng, kind=CommitteeClient, ring=Keyring, again=False):
    """Up to two rosters an exchange, for each two sets of survivors: members are shown one.

    Or, `again`, first the one and then the other; or every member is shown another set. The second
    exchange begins when the first is over, or before anything of it is opened.
    """
    world = World(rng, *setting(rng), kind, ring)
    exchanges = EXCHANGES[int(rng.choice(3, p=[0.4, 0.4, 0.2]))]
    interleaved, ways = rng.random() < 0.3, (rng.random(4) < (0.3, 0.3, 0.2, 0.2)).tolist()
    plans = {}
    for at, exchange in enumerate(exchanges):
        plans |= called(world, world.begin(*exchange), rng)
        if not interleaved or at == len(exchanges) - 1:
            opening(world, plans, again, *ways)
    return world


def called(world, terms, rng):
    """Call clients to the rosters of an exchange; two sets of survivors by the hash of each."""
    clients = sorted(world.rings)
    rosters = [set(clients)]
    if rng.random() < 0.4:
        small = rng.choice(world.honest, len(world.honest) - 1, replace=False).tolist()
        rosters.append({*small, *world.colluders})
        rng.shuffle(rosters)
    half = set(rng.choice(clients, len(clients) // 2, replace=False).tolist())
    if len(rosters) > 1 and rng.random() < 0.5:  # who is called to the second alone
        world.call(terms, rosters[1], half)
    plans = {}
    for roster in rosters:
        world.call(terms, roster, roster)
        agreed = terms.call(tuple(sorted(roster))).context
        here = {party.me for party in world.parties if party.agreed == agreed}
        plans[agreed] = [shown(rng, roster, here | world.colluders & roster) for _ in range(2)]
    return plans


def opening(world, plans, again, scattered, dishonest, mixed, crossed):
    """Show all who are members survivors, and then votes; `mixed` with texts of other rosters."""
    world.collude()
    inside = [each for each in world.parties if each.me in each.members and not each.votes]
    for turn in range(1 + again):
        for member in inside:
            options = plans[member.agreed]
            survivors = options[turn if again else int(world.rng.random() < 0.5)]
            world.show(member, scatter(world, member) if scattered else survivors, mixed)
        for member in inside:
            if member.survivors:
                world.open(member, dishonest, crossed)


def shown(rng, roster, here):
    """Who is named: all who sent, without some, or with some who did not; or a few."""
    draw = rng.random()
    if draw < 0.4:
        return here
    if draw < 0.8:
        out = rng.choice(sorted(here), min(len(here), int(rng.integers(1, 3))), replace=False)
        return here - set(out.tolist())
    return roster if draw < 0.9 else set(sorted(here)[:2])


def scatter(world, member):
    """As few as a member votes for: some that all are shown, and others that change about."""
    least = member.terms.least(world.policy.committee(len(member.roster)))
    order = sorted(set(member.roster) - world.colluders)
    core = order[: least - len(world.colluders) - 1]
    others = order[len(core) :]
    extra = others[member.members.index(member.me) % len(others)]
    return {*world.colluders & set(member.roster), *core, extra}


@pytest.mark.parametrize(
    ("sessions", "most"), [(20, (8, 1)), pytest.param(100, (40, 5), marks=pytest.mark.slow)]
)
def test_a_lying_server_opens_one_sum_of_a_roster_or_nothing(sessions, most):
    opened, later = 0, 0
    for seed in range(sessions):
        sums = judge(attack(np.random.default_rng(seed)))
        opened += len(sums)
        later += len(sums) > 1
    assert opened > most[0]
    assert later > most[1]


@pytest.mark.parametrize("sessions", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_a_member_who_is_shown_two_sets_votes_for_one(sessions):
    for seed in range(sessions):
        judge(attack(np.random.default_rng(seed), again=True))


class Unchecked(CommitteeClient):
    """It takes any votes."""

    def _check_votes(self, votes):
        pass


class Lenient(RoundTerms):
    """It asks for no number of survivors."""

    def least(self, committee):
        return 0


class Uncounted(CommitteeClient):
    """It votes for any number of survivors."""

    def _vote(self, inbox):
        self._terms = Lenient(**vars(self._terms))
        return super()._vote(inbox)


class Unsteady(CommitteeClient):
    """It votes, and opens, whenever it is asked."""

    def handle(self, message):
        if isinstance(message, MemberInbox):
            self._step = 1
        return super().handle(message)

    def _contribute(self, call):
        sent = super()._contribute(call)
        self._openers = Remembered(self._openers)
        return sent


class Remembered(dict):
    def clear(self):
        pass


class Forgetful(Keyring):
    """It has the secrets of an exchange for every call."""

    def take(self, round, exchange):
        at, chains = self.next, self._chains
        taken = super().take(round, exchange)
        self.next, self._chains = at, chains
        return taken


class Still(Keyring):
    """It has the same secrets in all exchanges."""

    def take(self, round, exchange):
        chains = self._chains
        super().take(round, exchange)
        self._chains = chains
        return {other: chain.secret for other, chain in chains.items()}


def caught(**keys):
    """Whether the judge sees a broken promise within some hundred attacks."""
    for seed in range(400):
        try:
            judge(attack(np.random.default_rng(seed), **keys))
        except Broken:
            return True
    return False


@every_case(
    "keys",
    [{"kind": Unchecked}, {"kind": Uncounted}, {"kind": Unsteady, "again": True}],
    ids=["votes unchecked", "survivors uncounted", "duplicate votes"],
)
def test_members_who_check_less_are_caught(keys):
    assert caught(**keys)


def test_a_client_who_sends_twice_is_caught():
    assert caught(ring=Forgetful)


def test_members_who_open_all_pairs_are_caught(monkeypatch):
    def everything(clients, survivors, client):
        others = [other for other in clients if other != client]
        return {client: 0} | {other: at for at, other in enumerate(others, start=1)}

    monkeypatch.setattr(committee_client, "opened_numbers", everything)
    assert caught()


def test_a_quorum_that_counts_no_colluders_is_caught(monkeypatch):
    monkeypatch.setattr(
        committee_policy, "_quorum", lambda members, corrupt: max(members // 2 + 1, corrupt + 1)
    )
    assert caught()


def test_pairs_that_mask_alike_in_two_exchanges_are_caught(monkeypatch):
    """Who is gone from the one has its pairs opened, and they lie on its row of the other."""
    unbound = committee_client.pair_seed
    monkeypatch.setattr(
        committee_client, "pair_seed", lambda _, secret, *pair: unbound(b"", secret, *pair)
    )
    judged = [judge(attack(np.random.default_rng(seed))) for seed in range(20)]
    assert any(judged), "rings alone keep exchanges apart"
    assert caught(ring=Still)


@every_case(
    ("matrix", "kernel"),
    [
        ([[1, 0], [-1, 0], [0, 1]], [[1, 1, 0]]),
        ([[1, 1], [1, -1]], []),
        ([[1], [1], [0]], [[1, -1, 0], [0, 0, 1]]),
        ([[1, 1], [-1, 0], [0, -1]], [[1, 1, 1]]),
    ],
    ids=["a pair", "nothing", "a difference and a row", "a chain"],
)
def test_what_adds_up_without_masks(matrix, kernel):
    assert left_kernel(matrix) == kernel
