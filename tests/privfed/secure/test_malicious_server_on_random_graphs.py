"""On a random graph too: a sum of enough honest survivors who agreed on it, or nothing."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from lanes import every_case
from malicious_server import Broken, Setting, World, idealise, judge
from sets_of_clients import closed_parts, cut_off

from privfed.secure.limits import Limits
from privfed.secure.masked import circle
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.graph import Graph, RandomGraph
from privfed.secure.masked.messages.roster import Attestation


class Circle(RandomGraph):
    """The neighbours that a server's seed puts on a circle."""

    def edge_key(self, seed, agreed):
        return seed

    def neighbours(self, edge_key, clients, me):
        return circle.neighbours(edge_key, clients, self.degree, me)


class Local(RandomGraph):
    """Votes are of those who hold a client's shares, as many as give a secret back."""

    voters, votes = Graph.voters, Graph.votes


KINDS = {"random": RandomGraph, "circle": Circle, "local": Local}


@dataclass(frozen=True)
class Drawn:
    """A graph of a few clients, as it comes: whether it is a good one is looked at, set by set."""

    colluders: int
    degree: int
    threshold: int
    votes: int
    isolated: int
    kind: str = "random"

    def counted_of(self, clients):
        return clients

    def corrupt(self, clients):
        return self.colluders

    def graph(self, clients):
        shape = (clients, self.degree, self.threshold, self.votes)
        return KINDS[self.kind](*shape, isolated=self.isolated)


@dataclass
class Plan:
    """Who is sent whose shares, where it is not all, and which survivors each client is told."""

    survivors: dict[int, frozenset[int]]
    inboxes: dict[int, frozenset[int]] = field(default_factory=dict)


def good(setting, roster):
    """Whether the graph of the roster is one of those for which the theorem is proved."""
    policy, near = setting.policy, np.zeros((1, *2 * (len(roster.clients),)), dtype=bool)
    for who in roster.clients:
        near[0, who, list(setting.near(roster, who))] = True
    honest = len(roster.clients) - policy.colluders
    votes = policy.votes - policy.colluders
    surrounded = (near[0, :honest, honest:].sum(1) >= policy.threshold).any()
    apart = cut_off(near, honest, votes)[0, policy.isolated :].any()
    return not (surrounded or apart or closed_parts(near, honest, votes, policy.threshold).any())


def cut(rng, near, honest, policy):
    """Some neighbours are said to be gone around a few, who mask with whom the server likes."""
    few = {int(rng.choice(honest))}
    for _ in range(int(rng.integers(0, 4))):
        edge = sorted(set().union(*(near[who] for who in few)) & set(honest) - few)
        few |= {int(rng.choice(edge))} if edge else set()
    around = set().union(*(near[who] for who in few)) - few
    gone = {who for who in around if who in honest and rng.random() < 0.9}
    inboxes = dict.fromkeys(few, frozenset(near)) if rng.random() < 0.5 else {}
    return Plan(dict.fromkeys(honest, frozenset(near) - gone), inboxes)


def starved(rng, near, honest, policy):
    """One masks with as few as it takes, who are then said to be gone; its others do not know."""
    one, colluders = int(rng.choice(honest)), set(near) - set(honest)
    others = [who for who in near[one] if who in honest]
    rng.shuffle(others)
    gone = set(others[: max(0, policy.threshold - len(colluders & set(near[one])))])
    survivors = dict.fromkeys(honest, frozenset(near) - gone)
    if rng.random() < 0.5:
        survivors[one] = frozenset()
    return Plan(survivors, {one: frozenset(gone | colluders)})


def split(rng, near, honest, policy):
    """Some are told that a client survived, and some that it did not."""
    one, everybody = int(rng.choice(honest)), frozenset(near)
    survivors = {who: everybody - ({one} if rng.random() < 0.5 else set()) for who in honest}
    return Plan(survivors | {one: everybody})


def chaos(rng, near, honest, policy):
    """Anything, of two sets of survivors."""
    sets = [frozenset(who for who in near if rng.random() < 0.85) for _ in range(2)]
    inboxes = {who: frozenset(u for u in near if rng.random() < 0.8) for who in honest}
    survivors = {who: sets[int(rng.random() < 0.3)] for who in honest}
    return Plan(survivors, inboxes if rng.random() < 0.5 else {})


def meet(world, roster, invited, plan):
    """One session under a roster, as planned."""
    setting = world.setting
    for one in invited.values():
        world.share(one, roster)
    invited = {who: one for who, one in invited.items() if one.roster}
    for one in invited.values():
        senders = plan.inboxes.get(one.me, frozenset(roster.clients))
        here = senders & (invited.keys() | setting.colluders)
        names = [who for who in setting.near(roster, one.me) if who in here]
        dealers = {who: invited[who] for who in names if who in invited}
        sealed = {
            who: dealers[who].sealed[one.me] if who in dealers else world.corrupt_text(who, one)
            for who in names
        }
        world.deliver(one, sealed, dealers)
    for one in invited.values():
        if one.me in plan.survivors.get(one.me, ()):
            world.survive(one, plan.survivors[one.me])
    graph = setting.policy.graph(len(roster.clients))
    voters = [one for one in invited.values() if one.vote]
    for one in voters:
        alike = {other.me: other for other in voters if other.survivors == one.survivors}
        counted = graph.voters(setting.near(roster, one.me), one.survivors)
        votes = [other.vote for who, other in alike.items() if who in counted]
        world.unmask(one, [*votes, *world.votes_of(sorted(setting.colluders & counted), one)])


SCRIPTS = (cut, starved, split, chaos)


def session(seed, client=MaskingClient, scripts=SCRIPTS, kind="random", any_graph=False):
    """An attack on a few clients; None where their graph is none of the good ones."""
    rng = np.random.default_rng(seed)
    count, corrupt = int(rng.integers(7, 11)), int(rng.integers(0, 3))
    agreeing = (count + corrupt) // 2 + 1
    votes = int(rng.integers(agreeing, min(agreeing + 2, count) + 1))
    threshold = int(rng.integers(corrupt + 1 - any_graph * (corrupt > 0), corrupt + 4))
    policy = Drawn(corrupt, int(rng.integers(4, count)), threshold, votes, 1, kind)
    byzantine = frozenset(range(count - corrupt, count))
    setting = Setting(tuple(range(count)), byzantine, policy, Limits(count))
    world, honest = World(setting, rng, client), list(range(count - corrupt))
    everybody = frozenset(range(count))
    for plan in (Plan(dict.fromkeys(honest, frozenset())), None)[seed % 2 :]:
        invited = {who: world.invite(who) for who in honest}  # an invitation is replayed
        roster = world.roster(everybody, invited)
        near = {who: setting.near(roster, who) for who in everybody}
        if not plan and not (any_graph or good(setting, roster)):
            return None
        script = scripts[int(rng.integers(len(scripts)))]
        meet(world, roster, invited, plan or script(rng, near, honest, policy))
    return world


def judged(seeds, **how):
    """How many sums each session opened: at most one of each roster."""
    opened = []
    for seed in seeds:
        if world := session(seed, **how):
            sums = judge(world)
            if len({each.of[0].agreed for each in sums}) < len(sums):
                raise Broken("two sums of one roster")
            opened.append(len(sums))
    return opened


@pytest.fixture(autouse=True)
def ideal(monkeypatch):
    idealise(monkeypatch)


@pytest.mark.parametrize(
    ("sessions", "most"), [(40, (15, 2)), pytest.param(160, (60, 10), marks=pytest.mark.slow)]
)
def test_a_server_that_lies_opens_one_sum_of_enough_or_none(sessions, most):
    opened = judged(range(sessions))
    assert len(opened) > most[0]
    assert sum(opened) > most[1]


@pytest.mark.slow
def test_a_server_lies_in_twenty_thousand_sessions():
    assert sum(judged(range(1000, 21_000))) > 1500


class Unattested(MaskingClient):
    """Asks nobody whom it masked with."""

    def _require_attested(self, attested, near):
        pass


def unbound(monkeypatch):
    """What is attested is of no roster."""
    whole = Attestation.text
    monkeypatch.setattr(Attestation, "text", staticmethod(lambda _, *rest: whole(b"", *rest)))


@every_case(
    "how, weaken",
    [
        ({"client": Unattested, "scripts": (starved,)}, None),
        ({"scripts": (starved,)}, unbound),
        ({"kind": "local", "scripts": (split,)}, None),
        ({"any_graph": True, "scripts": (cut,)}, None),
    ],
    ids=["masks are not attested", "of no roster", "votes of holders", "any threshold and graph"],
)
def test_without_one_of_its_conditions_the_server_opens_more(monkeypatch, how, weaken):
    if weaken:
        weaken(monkeypatch)
    with pytest.raises(Broken):
        judged(range(600), **how)


def test_on_a_circle_the_same_survivors_for_all_are_two_sums():
    """Twelve in a ring, each next to four; four of them gone leave arcs of three and of five."""
    policy = Drawn(0, 4, 2, 8, 1, "circle")
    setting = Setting(tuple(range(12)), frozenset(), policy, Limits(12))
    world = World(setting, np.random.default_rng(0))
    invited = {who: world.invite(who) for who in range(12)}
    roster = world.roster(range(12), invited)
    ordered, _ = circle._circle(roster.seed, roster.clients)
    staying = frozenset({*ordered[2:5], *ordered[7:]})
    meet(world, roster, invited, Plan(dict.fromkeys(staying, staying)))
    assert sorted(len(each.of) for each in world.opened()) == [3, 5]
    assert not good(setting, roster)
