"""Whatever a server says: a sum of enough honest survivors who agreed on it, or nothing."""

import numpy as np
import pytest
from liar import Setting, World, idealise

from privfed.privacy.shares import Layers
from privfed.secure import masking_client
from privfed.secure.graph import Graph, Policy
from privfed.secure.limits import Limits
from privfed.secure.masking_client import MaskingClient
from privfed.secure.messages import Roster
from privfed.secure.primitives import SEAL
from privfed.secure.shamir import LENGTH
from privfed.secure.summation import Aborted


class Broken(AssertionError):
    """A promise that was not kept."""


def judge(world):
    """Every sum that was opened: each exact, of enough rows, and with the noise that is due."""
    setting, opened = world.setting, world.opened()
    for each in opened:
        exact = sum(one.noised() for one in each.of)
        assert np.array_equal(each.total, exact.astype(np.uint16)), "the judge has miscounted"
        if len({one.agreed for one in each.of}) > 1:
            raise Broken("a sum over two rosters")
        clients, honest = len(each.of[0].roster.clients), len(each.of)
        if honest < setting.least(clients):
            raise Broken(f"a sum of {honest} of {clients}")
        if setting.layers:
            corrupt = setting.policy.corrupt(clients)
            left = sum(setting.layers.kept(clients, kept).variance for kept in each.kept)
            due = setting.layers.variance * honest / (honest + corrupt)
            if left < due * (1 - 1e-9):
                raise Broken(f"noise of variance {left:g} of {due:g}")
    return opened


# --- attacks ---


def attack(world, rosters, chaos=0.0):
    """Tell clients of `rosters`, each with who agrees to it and the survivors that it names.

    Where some of the survivors never agreed to it, or not in this session, clients are sent what
    these dealt under another roster, or random bytes. With the probability `chaos` any message is
    withheld or spoiled.
    """
    rng, setting = world.rng, world.setting

    def spoiled():
        return rng.random() < chaos

    honest = [who for who in setting.clients if who not in setting.colluders]
    former, now = {one.me: one for one in world.honest}, {who: world.invite(who) for who in honest}
    invited = {who: former[who] if who in former and spoiled() else now[who] for who in honest}
    parties = []
    for clients, agree, survivors in rosters:
        try:
            roster = world.roster(clients, invited)
        except Aborted:  # of so many clients nobody takes one
            continue
        for who in agree & now.keys():
            if now[who].roster is None:
                world.share(now[who], roster)
        parties.append(([one for one in now.values() if one.roster is roster], survivors))
    here = {one.me for one in world.honest if one.roster} | world.colluders.keys()
    for party, _ in parties:
        for one in party:
            asked = [who for who in one.roster.clients if who != one.me and who in here]
            others = [who for who in asked if not spoiled()]
            if others and not spoiled():
                dealers = {other: dealer(world, one, other) for other in others}
                sealed = {other: text(world, one, other, dealers[other]) for other in others}
                if spoiled():
                    sealed[others[0]] = sealed[others[-1]]
                world.deliver(one, sealed, dealers)
    for party, survivors in parties:
        for one in party:
            mine = [names for names in survivors if one.me in names]
            if mine and not spoiled():
                world.survive(one, mine[int(rng.integers(len(mine)))])
    voters = [one for one in world.honest if one.vote]
    for one in [one for one in now.values() if one.vote]:
        alike = [
            who for who in voters if (who.agreed, who.survivors) == (one.agreed, one.survivors)
        ]
        votes = {who.me: who.vote for who in alike if not spoiled()}
        for who in world.colluders.keys() & one.survivors:
            votes[who] = world.corrupt_vote(who, one)
        if spoiled():
            stranger = voters[int(rng.integers(len(voters)))]
            votes[stranger.me] = stranger.vote
        world.unmask(one, [votes[who] for who in sorted(votes)])
    return world


def dealer(world, one, name):
    """Whose shares the server has to send under a `name`: of the same roster, else of any."""
    those = [who for who in world.honest if who.me == name and one.me in who.sealed]
    alike = [who for who in those if who.agreed == one.agreed]
    return next(iter(alike or those[::-1]), None)


def text(world, one, name, dealer):
    if name in world.colluders:
        return world.corrupt_text(name, one)
    return dealer.sealed[one.me] if dealer else world.rng.bytes(SEAL + 16 + LENGTH * 2)


KINDS = ["ghosts"] * 4 + ["nested"] * 2 + ["seed", "seed", "any", "none"]


def drawn(rng):
    """A small setting, and rosters that overlap, with who agrees and whom they name."""
    while True:
        count, part = int(rng.integers(4, 9)), float(rng.choice([0.0, 0.1, 0.2, 0.25]))
        policy = Policy(float(rng.choice([0.6, 0.65, 0.75])), part, "lying", size=count)
        try:
            threshold, corrupt = policy.graph(count).threshold, policy.corrupt(count)
            break
        except Aborted:
            continue
    hostile, small = set(range(corrupt)), set(range(count))
    layered = rng.random() < 0.3
    tolerance = float(rng.choice([0.26, 0.4])) if layered else 1.0
    minimum = 0 if layered else int(rng.integers(threshold, count + 1))
    agree = set(range(corrupt, int(rng.integers(threshold, count + 1))))
    absent = small - agree - hostile  # who agree to another roster, if to any
    kind, more, others = rng.choice(KINDS), set(), []
    if kind in ("ghosts", "nested"):
        start = absent | hostile if kind == "ghosts" else small
        more = enough(policy, Limits(99, minimum, tolerance=tolerance), start, corrupt)
        others = [(start | more, absent | more, [more | hostile])]
    elif kind == "seed":
        others = [(small, absent, named(rng, small, absent | hostile, agree))]
    elif kind == "any":
        more = set(range(100, 100 + int(rng.integers(0, 4))))
        picks = {who for who in small | more if rng.random() < 0.8} | absent | hostile
        others = [(picks, picks - agree, named(rng, picks, picks - agree, agree))]
    rosters = [(small, agree, named(rng, small, agree | hostile, absent)), *others]
    limits = Limits(len(small | more), minimum, tolerance=tolerance)
    layers = Layers(30.0, tolerance) if layered else None
    people = tuple(sorted(small | more))
    return Setting(people, frozenset(hostile), policy, limits, layers), rosters


def named(rng, clients, here, absent):
    """Sets of survivors to tell: everybody, who is there, these and some, or and one who is not."""
    some = {who for who in clients if rng.random() < 0.8}
    sets = [set(clients), set(here), some | here, here | set(sorted(absent)[:1])]
    return [sets[which] for which in rng.permutation(4)[: 1 + (rng.random() < 0.3)]]


def enough(policy, limits, start, corrupt):
    """As many more clients as open a roster without those whom it starts with."""
    for count in range(2, 13):
        clients = len(start) + count
        try:
            graph = policy.graph(clients)
        except Aborted:
            continue
        if count + corrupt >= max(graph.threshold, graph.survivors, limits.least(clients)):
            break
    return set(range(100, 100 + count))


def session(seed, client=MaskingClient):
    """A drawn attack; some invitations are replayed."""
    rng = np.random.default_rng(seed)
    setting, rosters = drawn(rng)
    chaos = float(rng.choice([0.0, 0.0, 0.0, 0.0, 0.03, 0.15]))
    world = World(setting, rng, client)
    for _ in range(1 + (rng.random() < 0.1)):
        attack(world, rosters, chaos)
    return world


def judged(seeds, client=MaskingClient):
    """How many sums each session opened."""
    return [len(judge(session(seed, client))) for seed in seeds]


@pytest.fixture
def ideal(monkeypatch):
    idealise(monkeypatch)


def test_a_server_that_lies_in_every_message_opens_sums_of_enough_who_agree_or_none(ideal):
    """And no refusal hides it: in many of these sessions something is opened."""
    assert sum(map(bool, judged(range(400)))) > 120


def test_so_it_is_with_the_real_primitives():
    assert sum(map(bool, judged(range(30)))) > 5


@pytest.mark.slow
def test_a_server_lies_in_twenty_thousand_sessions(ideal):
    assert sum(map(bool, judged(range(1000, 21_000)))) > 5000


# --- the attack that counting names allowed, and others that a weaker client does not withstand ---


class Names(MaskingClient):
    """Counts whom the server names."""

    def _counted(self, clients):
        return len(clients)


class NamesOfLayers(MaskingClient):
    """Takes layers of noise off by the number of names."""

    def _unmask(self, votes):
        self._counted = len
        return super()._unmask(votes)


def unbound(monkeypatch):
    """Shares are sealed for a receiver, and not for a roster."""
    for name in ("channel_key", "between"):
        whole = getattr(masking_client, name)
        monkeypatch.setattr(masking_client, name, lambda _, *rest, whole=whole: whole(b"", *rest))


def without_a_roster(monkeypatch):
    """All that is bound to the roster is bound to the invitation instead."""
    monkeypatch.setattr(Roster, "agreed", lambda roster: roster.context)


def halved(monkeypatch):
    """A threshold with which two sets of survivors can both be opened."""

    def graph(policy, clients):
        return Graph(clients, clients - 1, max(2, clients // 2), max(2, clients // 2))

    monkeypatch.setattr(Policy, "graph", graph)


@pytest.mark.parametrize(
    "client, weaken",
    [
        (Names, None),
        (NamesOfLayers, None),
        (MaskingClient, unbound),
        (MaskingClient, without_a_roster),
        (MaskingClient, halved),
    ],
)
def test_the_judge_finds_what_a_weaker_client_gives_away(ideal, monkeypatch, client, weaken):
    if weaken:
        weaken(monkeypatch)
    with pytest.raises(Broken):
        judged(range(400), client)


def six_of_ten(client, layers=None):
    """Ten clients of whom at least eight are to be summed.

    Six of them are told that 6 and 7 survived, who agreed to another roster, under which others
    help to take the masks of 6 and 7 off.
    """
    limits = Limits(10, 8)
    policy = Policy(0.6, 0.0, "lying", size=10)
    setting = Setting(tuple(range(18)), frozenset(), policy, limits, layers)
    few, others = set(range(6)), set(range(10, 18))
    rosters = [
        (set(range(10)), few, [few | {6, 7}]),
        (others | {6, 7}, others | {6, 7}, [others]),
    ]
    return attack(World(setting, np.random.default_rng(0), client), rosters)


def test_survivors_of_another_roster_do_not_make_up_the_number_that_clients_insist_on():
    opened = six_of_ten(MaskingClient).opened()
    assert [len(each.of) for each in opened] == [8]
    assert {one.me for one in opened[0].of} == set(range(10, 18))


def test_counted_by_name_they_would_open_the_sum_of_six():
    few = min(six_of_ten(Names).opened(), key=lambda each: len(each.of))
    assert len(few.of) == 6
    assert np.array_equal(few.total, sum(one.row for one in few.of).astype(np.uint16))
