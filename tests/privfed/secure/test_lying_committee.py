"""Whatever a server says to a committee: for each roster one sum of enough honest, or nothing."""

from collections import Counter

import numpy as np
import pytest
from committee_liar import World, setting

from privfed.secure.committee import client as committee_client
from privfed.secure.committee import policy as committee_policy
from privfed.secure.committee.client import CommitteeClient, Turns
from privfed.secure.committee.messages import MemberInbox
from privfed.secure.committee.terms import RoundTerms


class Broken(AssertionError):
    """A promise that was not kept."""


def judge(world):
    """Every sum that was opened: each exact, of enough rows, and one for a roster."""
    opened = world.opened()
    rosters, summed = Counter(), Counter()
    for parties, total in opened:
        exact = sum(party.row for party in parties)
        assert np.array_equal(total, exact.astype(np.uint16)), "the judge has miscounted"
        agreed = {party.agreed for party in parties}
        clients = len(next(iter(parties)).roster)
        committee = world.policy.committee(clients)
        least = max(world.limits.least(clients), committee.survivors, committee.corrupt + 2)
        if len(agreed) > 1 or len(parties) < least - committee.corrupt:
            raise Broken(f"a sum of {len(parties)} of {clients}")
        rosters.update(agreed)
        summed.update(party.me for party in parties)
    if max([*rosters.values(), *summed.values()], default=0) > 1:
        raise Broken("two sums of one roster, or with one row")
    return opened


def attack(rng, kind=CommitteeClient, turns=Turns, again=False):
    """Up to two rosters, and for each two sets of survivors of which members are shown one.

    Or, `again`, first the one and then the other; or every member is shown another set.
    """
    clients, colluders, policy, limits = setting(rng)
    world = World(rng, clients, colluders, policy, limits, kind, turns)
    rosters = [set(clients)]
    if rng.random() < 0.4:
        small = rng.choice(world.honest, len(world.honest) - 1, replace=False).tolist()
        rosters.append({*small, *world.colluders})
        rng.shuffle(rosters)
    plans = {}
    for roster in rosters:
        world.call(roster)
        agreed = world.terms.call(tuple(sorted(roster))).context
        here = {party.me for party in world.parties if party.agreed == agreed}
        plans[agreed] = [shown(rng, roster, here | world.colluders & roster) for _ in range(2)]
    world.collude()
    inside = [party for party in world.parties if party.me in party.members]
    scattered, dishonest = rng.random() < 0.3, rng.random() < 0.3
    for turn in range(1 + again):
        for member in inside:
            options = plans[member.agreed]
            survivors = options[turn if again else int(rng.random() < 0.5)]
            world.show(member, scatter(world, member) if scattered else survivors)
        for member in inside:
            if member.survivors:
                world.open(member, dishonest)
    return world


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
    least = world.terms.least(world.policy.committee(len(member.roster)))
    order = sorted(set(member.roster) - world.colluders)
    core = order[: least - len(world.colluders) - 1]
    others = order[len(core) :]
    extra = others[member.members.index(member.me) % len(others)]
    return {*world.colluders & set(member.roster), *core, extra}


def test_a_lying_server_opens_one_sum_of_a_roster_or_nothing():
    opened = 0
    for seed in range(80):
        opened += len(judge(attack(np.random.default_rng(seed))))
    assert opened > 15


def test_a_member_who_is_shown_two_sets_votes_for_one():
    for seed in range(40):
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


class Forgetful(Turns):
    """It sends for every call of an exchange."""

    def take(self, round, exchange):
        pass


def caught(**keys):
    """Whether the judge sees a broken promise within some hundred attacks."""
    for seed in range(400):
        try:
            judge(attack(np.random.default_rng(seed), **keys))
        except Broken:
            return True
    return False


@pytest.mark.parametrize(
    "keys",
    [{"kind": Unchecked}, {"kind": Uncounted}, {"kind": Unsteady, "again": True}],
    ids=["votes unchecked", "survivors uncounted", "votes twice"],
)
def test_members_who_check_less_are_caught(keys):
    assert caught(**keys)


def test_a_client_who_sends_twice_is_caught():
    assert caught(turns=Forgetful)


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
