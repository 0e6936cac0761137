"""Whatever a server says: a sum of enough honest survivors who agreed on it, or nothing."""

import bisect
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from lanes import every_case
from malicious_server import Broken, Setting, World, idealise, judge

from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import SiteNoise
from privfed.secure.limits import Limits
from privfed.secure.masked import client as masking_client
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.messages.roster import Roster
from privfed.secure.masked.policy import Policy, SitePolicy, least_threshold
from privfed.secure.masked.shamir import LENGTH
from privfed.secure.primitives import SEAL
from privfed.secure.summation import Aborted

# --- attacks ---


@dataclass(frozen=True)
class Moves:
    """What a server does beside telling clients other rosters and survivors."""

    chaos: float = 0.0
    """With this probability any message is withheld or spoiled."""
    inboxes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Whose shares a client is sent, where it is not everybody's."""
    votes: str = "alike"
    """For the same survivors; "all", whatever they signed; "often"; or with some of "strangers"."""
    played: frozenset[int] = frozenset()
    """Honest clients for whom the server makes up keys."""
    spoil: str = ""
    """What it changes of a roster."""
    gone: bool = False
    """Whether it makes up how many are gone."""


PLAIN = Moves()
COARSE = 0.5
"""What coarse layers may waste, so that of few clients several share one."""


def attack(world, rosters, moves=PLAIN):
    """Tell clients of `rosters`, each with who agrees to it and the survivors that it names.

    These are sets, of which a client is told one that names it, or the set of each client. Where
    some of the survivors never agreed to it, or not in this session, clients are sent what these
    dealt under another roster, or random bytes.
    """
    rng, setting = world.rng, world.setting

    def spoiled():
        return rng.random() < moves.chaos

    honest = [who for who in setting.clients if who not in setting.colluders]
    former, now = {one.me: one for one in world.honest}, {who: world.invite(who) for who in honest}
    invited = {who: former[who] if who in former and spoiled() else now[who] for who in honest}
    for who in sorted(moves.played):
        world.play(who)
    parties = []
    for clients, agree, survivors in rosters:
        try:
            roster = world.roster(clients, invited)
        except Aborted:  # of so many clients nobody takes one
            continue
        roster = SPOILS[moves.spoil](roster, world, former)
        for who in agree & now.keys():
            if now[who].roster is None:
                world.share(now[who], roster)
        parties.append(([one for one in now.values() if one.roster is roster], survivors))
    here = {one.me for one in world.honest if one.roster} | world.played.keys()
    for party, _ in parties:
        for one in party:
            senders = here & moves.inboxes.get(one.me, here)
            asked = [who for who in setting.near(one.roster, one.me) if who in senders]
            others = [who for who in asked if not spoiled()]
            if not spoiled():
                dealers = {other: dealer(world, one, other) for other in others}
                sealed = {other: text(world, one, other, dealers[other]) for other in others}
                if others and spoiled():
                    sealed[others[0]] = sealed[others[-1]]
                world.deliver(one, sealed, dealers)
    for party, survivors in parties:
        for one in party:
            if isinstance(survivors, dict):
                mine = [survivors[one.me]] if one.me in survivors else []
            else:
                mine = [names for names in survivors if one.me in names]
            if mine and not spoiled():
                world.survive(one, mine[int(rng.integers(len(mine)))])
    voters = [one for one in world.honest if one.vote]
    for one in [one for one in now.values() if one.vote]:
        votes = {who.me: who.vote for who in voters if counts(who, one, moves) and not spoiled()}
        for who in world.colluders.keys() & one.survivors:
            votes[who] = world.corrupt_vote(who, one)
        if spoiled():
            stranger = voters[int(rng.integers(len(voters)))]
            votes[stranger.me] = stranger.vote
        strangers = setting.strangers if moves.votes == "strangers" else ()
        cast = [*(votes[who] for who in sorted(votes)), *world.votes_of(strangers, one)]
        gone = int(rng.integers(len(one.secrets))) if moves.gone else 0
        world.unmask(one, cast * (8 if moves.votes == "often" else 1), gone)
    return world


def counts(voter, one, moves):
    """Whether `one` is sent the vote."""
    if voter.agreed != one.agreed:
        return False
    return voter.survivors == one.survivors or (moves.votes == "all" and voter.me in one.survivors)


def dealer(world, one, name):
    """Whose shares the server has to send under a `name`: of the same roster, else of any."""
    those = [who for who in world.honest if who.me == name and one.me in who.sealed]
    alike = [who for who in those if who.agreed == one.agreed]
    return next(iter(alike or those[::-1]), None)


def text(world, one, name, dealer):
    if name in world.played:
        return world.corrupt_text(name, one)
    return (
        dealer.sealed[one.me]
        if dealer
        else tuple(map(world.rng.bytes, (SEAL + 16 + LENGTH * 2, 32)))
    )


def weak(roster, world, former):
    """So low a threshold that who works with the server, or any client, tells all secrets."""
    return replace(roster, threshold=max(1, world.setting.policy.corrupt(len(roster.clients))))


def foreign(roster, world, former):
    """A nonce of another session, or of nobody, for one of its clients."""
    at = int(world.rng.integers(len(roster.nonces)))
    who = roster.clients[at]
    nonce = former[who].keys.nonce if who in former else world.rng.bytes(32)
    return replace(roster, nonces=(*roster.nonces[:at], nonce, *roster.nonces[at + 1 :]))


def stale(roster, world, former):
    """The keys of another session for some of its clients, or for all."""
    part = world.rng.choice([0.3, 1.0])
    drawn = {who for who in former if world.rng.random() < part}
    return replace(
        roster,
        keys=tuple(former[one.sender].keys if one.sender in drawn else one for one in roster.keys),
    )


def alike(roster, world, former):
    """One public key under two names."""
    one, *others = roster.keys
    corrupt = [keys for keys in others if keys.sender in world.colluders][:1]
    for keys in corrupt:
        signed = world.signed(replace(keys, mask=one.mask))
        others = [signed if each.sender == keys.sender else each for each in others]
    return replace(roster, keys=(one, *others))


SPOILS = {
    "": lambda roster, world, former: roster,
    **{spoil.__name__: spoil for spoil in (weak, foreign, stale, alike)},
}
KINDS = ["ghosts"] * 4 + ["nested"] * 2 + ["seed", "seed", "any", "none"]
SCRIPTS = ["closed"] * 6 + ["split"] * 6 + ["few"] * 4 + ["made up"] * 2 + [*SPOILS][1:]


def drawn(rng):
    """A small setting, and rosters that overlap, with who agrees and whom they name."""
    count, policy = cohort(rng)
    threshold, corrupt = policy.graph(count).threshold, policy.corrupt(count)
    byzantine, small = set(range(corrupt)), set(range(count))
    layered = rng.random() < 0.3
    tolerance = float(rng.choice([0.26, 0.4])) if layered else 1.0
    minimum = 0 if layered else int(rng.integers(threshold, count + 1))
    agree = set(range(corrupt, int(rng.integers(threshold, count + 1))))
    absent = small - agree - byzantine  # who agree to another roster, if to any
    kind, more, others = rng.choice(KINDS), set(), []
    if kind in ("ghosts", "nested"):
        start = absent | byzantine if kind == "ghosts" else small
        more = enough(policy, Limits(99, minimum, tolerance=tolerance), start, corrupt)
        others = [(start | more, absent | more, [more | byzantine])]
    elif kind == "seed":
        others = [(small, absent, named(rng, small, absent | byzantine, agree))]
    elif kind == "any":
        more = set(range(100, 100 + int(rng.integers(0, 4))))
        picks = {who for who in small | more if rng.random() < 0.8} | absent | byzantine
        others = [(picks, picks - agree, named(rng, picks, picks - agree, agree))]
    rosters = [(small, agree, named(rng, small, agree | byzantine, absent)), *others]
    limits = Limits(len(small | more), minimum, tolerance=tolerance)
    layers = Layers(30.0, tolerance, 0, COARSE * (len(small) % 2)) if layered else None
    population = tuple(sorted(small | more))
    return Setting(population, frozenset(byzantine), policy, limits, layers), rosters


def cohort(rng, sizes=range(4, 9), shares=(0.6, 0.65, 0.75), parts=(0.0, 0.1, 0.2, 0.25)):
    """How many clients, and a policy that takes so many; some expect more."""
    while True:
        count, part = int(rng.choice(sizes)), float(rng.choice(parts))
        share, more = float(rng.choice(shares)), int(rng.choice([0, 0, 0, 2, 4]))
        policy = Policy(share, part, "malicious", size=count + more, admitted=2 if more else 0)
        try:
            policy.graph(count)
            return count, policy
        except Aborted:
            continue


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


def scripted(rng, scripts):
    """A setting, one roster that all agree to, and a plan to open a sum of fewer than is due."""
    count, policy = cohort(rng, (4, 5, 5, 8, 8, 8, 10), (0.6, 0.6, 0.6, 0.75), (0.0, 0.0, 0.1, 0.2))
    graph, corrupt = policy.graph(count), policy.corrupt(count)
    part = float(rng.choice([0.26, 0.4]))
    layers = Layers(30.0, part, 0, COARSE * (count % 2)) if rng.random() < 0.3 else None
    tolerance = layers.tolerance if layers and rng.random() < 0.5 else 1.0
    minimum = int(rng.choice([0, 0, min(graph.threshold + 1, count), rng.integers(2, count + 1)]))
    limits = Limits(count, 0 if layers else minimum, tolerance=tolerance)
    byzantine, strangers = frozenset(range(corrupt)), tuple(range(200, 210))
    setting = Setting(tuple(range(count)), byzantine, policy, limits, layers, strangers)
    due = max(limits.least(count), graph.threshold, graph.survivors)
    if layers:
        due = max(due, count - layers.most_dropouts(count))
    others = (corrupt + rng.permutation(count - corrupt)).tolist()
    everybody = [*byzantine, *others]
    script, survivors, moves = rng.choice(scripts), [set(everybody)], PLAIN
    if script == "closed":
        survivors, moves = closed(rng, others, byzantine, due)
    elif script == "split":
        survivors = split(rng, byzantine, others, due)
        moves = Moves(votes=str(rng.choice(["all", "alike", "often", "strangers"])))
    elif script == "few":
        few = set(everybody[: int(rng.integers(graph.threshold, max(due, graph.threshold + 1)))])
        survivors = [few | {*strangers[: int(rng.choice([0, max(0, due - len(few))]))]}]
    elif script == "made up":
        most = max(1, len(others) - (graph.threshold - corrupt))
        moves = Moves(played=frozenset(others[: int(rng.integers(1, most + 1))]))
    else:
        moves = Moves(spoil=str(script))
    return setting, [(set(everybody), set(others) - moves.played, survivors)], moves


def closed(rng, others, byzantine, due):
    """Some mask with each other and with who is then said to be gone, but with nobody else."""
    count, corrupt = len(others) + len(byzantine), len(byzantine)
    gone = int(rng.integers(0, count - due + 1))
    size = int(rng.integers(1, 3) if rng.random() < 0.4 else max(1, due - gone - corrupt))
    left, group, rest = others[:gone], others[gone : gone + size], others[gone + size :]
    alone = frozenset({*group, *left, *byzantine} if rng.random() < 0.7 else group)
    inboxes = dict.fromkeys(group, alone)
    if rng.random() < 0.3:
        inboxes |= dict.fromkeys(rest, frozenset({*rest, *left, *byzantine}))
    survivors = {*byzantine, *group, *rest}
    return dict.fromkeys(others, survivors), Moves(inboxes=inboxes)


def split(rng, byzantine, others, due):
    """To each client as many survivors as are due: some of them to all, the others in turns."""
    size = max(1, due - len(byzantine) - int(rng.choice([1, 1, 1, 2])))
    core, rest, survivors, turn = others[:size], others[size:], {}, 0
    for who in others:
        survivors[who] = {*byzantine, *core, who}
        while rest and len(survivors[who]) < due:
            survivors[who].add(rest[turn % len(rest)])
            turn += 1
    return survivors


def session(seed, client=MaskingClient, scripts=()):
    """A drawn attack, or one of these; some invitations are replayed."""
    rng = np.random.default_rng(seed)
    if scripts or rng.random() < 0.6:
        setting, rosters, moves = scripted(rng, scripts or SCRIPTS)
    else:
        setting, rosters = drawn(rng)
        moves = Moves(float(rng.choice([0.0, 0.0, 0.0, 0.0, 0.03, 0.15])))
    moves = replace(moves, gone=bool(setting.layers and seed % 2))
    world = World(setting, rng, client)
    for _ in range(1 + (rng.random() < (0.5 if moves.spoil else 0.1))):
        attack(world, rosters, moves)
    return world


def judged(seeds, client=MaskingClient, scripts=()):
    """How many sums each session opened."""
    return [len(judge(session(seed, client, scripts))) for seed in seeds]


@pytest.fixture
def ideal(monkeypatch):
    idealise(monkeypatch)


@pytest.mark.parametrize(
    ("sessions", "opened"), [(60, 16), pytest.param(300, 80, marks=pytest.mark.slow)]
)
def test_a_server_that_lies_in_every_message_opens_sums_of_enough_who_agree_or_none(
    ideal, sessions, opened
):
    """And no refusal hides it: in many of these sessions something is opened."""
    assert sum(map(bool, judged(range(sessions)))) > opened


def test_so_it_is_with_the_real_primitives():
    assert sum(map(bool, judged(range(20)))) > 3


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


class Believing(MaskingClient):
    """Takes layers of noise off by what the server says."""

    def _unmask(self, votes):
        self._counted = lambda clients: self._expected_parties
        return super()._unmask(votes)


class Obedient(MaskingClient):
    """Takes the threshold that the server offers."""

    def _checked_graph(self, roster):
        return Graph(len(roster.clients), roster.degree, roster.threshold)


def unbound(monkeypatch):
    """Shares are sealed for a receiver, and not for a roster."""
    for name in ("channel_key", "between", "share_hashes"):
        right = getattr(masking_client, name)
        monkeypatch.setattr(masking_client, name, lambda _, *rest, right=right: right(b"", *rest))


def without_a_roster(monkeypatch):
    """All that is bound to the roster is bound to the invitation instead."""
    monkeypatch.setattr(Roster, "agreed", lambda roster: roster.context)


def a_layer_too_many(monkeypatch):
    """Of a layer that several numbers of missing clients share, all of it is taken off."""

    def layers_kept(layers, clients, gone):
        return bisect.bisect_right(layers.boundaries(clients), gone) - 1

    monkeypatch.setattr(Layers, "layers_kept", layers_kept)
    monkeypatch.setattr(Layers, "fewer", lambda layers, clients, gone: 0)


def a_client_too_many(monkeypatch):
    """A layer is taken off one survivor more than are too many."""
    fewer = Layers.fewer

    def more(layers, clients, gone):
        return fewer(layers, clients, gone) + (gone not in layers.boundaries(clients))

    monkeypatch.setattr(Layers, "fewer", more)


def halved(monkeypatch):
    """A threshold with which two sets of survivors can both be opened."""

    def graph(policy, clients):
        return Graph(clients, clients - 1, max(2, clients // 2), max(2, clients // 2))

    monkeypatch.setattr(Policy, "graph", graph)


CHECKS = {
    "how many sent it shares": (
        "closed",
        'self._require_enough(self._places.keys(), "senders of shares")',
    ),
    "how many survived": ("few", 'self._require_enough(clients, "survivors")'),
    "t and who has to stay": (
        "closed",
        "len(holders) < self._graph.threshold or counted < self._graph.survivors",
    ),
    "the limits": ("few", "self._limits.least(total)"),
    "the noise": ("few", "total - self._noise.layers.most_dropouts(total)"),
    "that survivors are of the roster": (
        "few",
        "list(clients) != sorted(set(clients)) or not set(clients) <= self._places.keys()",
    ),
    "how many voted": (
        "split",
        "len(voters) < self._graph.votes(self._limits.least(self._expected_parties))",
    ),
    "that nobody voted twice": ("split", "len(set(voters)) != len(voters)"),
    "that voters survived": ("split", "not set(voters) <= self._voters"),
    "what they voted for": (
        "split",
        'not vote.cast_by(self._directory.get(vote.sender, b""), text)',
    ),
    "who signed the keys": (
        "made up",
        'not keys.signed_by(self._directory.get(keys.sender, b""))',
    ),
}
"""In the source of a client, and by which script the server makes use of it.

What is left out is backed by the others: that a client survived itself (who did not has no vote),
that survivors sent it shares (they are counted), nonces (who has another opens no shares), that
keys differ (all that is derived from them is bound to two names), and the capacity.
"""


def without(check, by="False"):
    """A client for which it is never false, or a number zero."""
    source, names = inspect.getsource(MaskingClient), dict(vars(masking_client))
    assert source.count(check) == 1
    exec(source.replace(check, by), names)
    return names["MaskingClient"]


@every_case("script, check", CHECKS.values(), ids=CHECKS.keys())
def test_the_judge_finds_what_a_client_gives_away_without_one_of_its_checks(ideal, script, check):
    with pytest.raises(Broken):
        judged(range(300), without(check), [script])


def test_the_judge_finds_who_is_proved_to_lie_as_it_does_not_look_at_hashes(ideal):
    with pytest.raises(Broken, match="an honest client"):
        judged(range(300), without("self._hashes(sender, self.me, held) == hashes[sender]", "True"))


@pytest.mark.slow
@pytest.mark.parametrize("check", [check for _, check in CHECKS.values()], ids=CHECKS.keys())
def test_it_finds_them_among_all_others(ideal, check):
    with pytest.raises(Broken):
        judged(range(2000), without(check))


@pytest.mark.parametrize(
    "client, weaken, scripts",
    [
        (Names, None, ()),
        (NamesOfLayers, None, ()),
        (Believing, None, ()),
        (Obedient, None, ["weak"]),
        (MaskingClient, unbound, ()),
        (MaskingClient, without_a_roster, ()),
        (MaskingClient, halved, ()),
        (MaskingClient, a_layer_too_many, ()),
        (MaskingClient, a_client_too_many, ()),
    ],
)
def test_the_judge_finds_what_a_weaker_client_gives_away(
    ideal, monkeypatch, client, weaken, scripts
):
    if weaken:
        weaken(monkeypatch)
    with pytest.raises(Broken):
        judged(range(400), client, scripts)


def six_of_ten(client, layers=None):
    """Ten clients of whom at least eight are to be summed.

    Six of them are told that 6 and 7 survived, who agreed to another roster, under which others
    help to take the masks of 6 and 7 off.
    """
    limits = Limits(10, 8)
    policy = Policy(0.6, 0.0, "malicious", size=10)
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


# --- sites, of whom all numbers are pinned ---


def of_sites(rng, threshold=least_threshold):
    """A few sites, colluders among them, of whom the server tells rosters as it likes."""
    n, k = ((4, 1), (5, 1), (5, 2), (7, 2))[int(rng.integers(4))]
    needed = threshold(n, k, "malicious")
    sites = SiteNoise(n, int(rng.integers(max(needed, k + 1), n + 1)), k)
    policy = SitePolicy(n, sites.minimum, needed, k, "malicious")
    limits = Limits(n, sites.minimum, size=n, sites=n, colluders=k)
    layers = sites.layers(30.0, "skellam") if rng.random() < 0.5 else None
    byzantine, everybody = frozenset(range(k)), set(range(n))
    setting = Setting(tuple(range(n)), byzantine, policy, limits, layers)
    others = (k + rng.permutation(n - k)).tolist()
    small = {*byzantine, *others[: sites.minimum - k]}
    script = rng.choice(["closed", "split", "few", "small", "both", "chaos"])
    rosters, moves = [(everybody, set(others), [everybody])], PLAIN
    if script == "closed":
        survivors, moves = closed(rng, others, byzantine, sites.minimum)
        rosters = [(everybody, set(others), survivors)]
    elif script == "split":
        survivors = split(rng, byzantine, others, sites.minimum)
        moves = Moves(votes=str(rng.choice(["all", "alike", "often"])))
        rosters = [(everybody, set(others), survivors)]
    elif script == "few":
        few = {*byzantine, *others[: int(rng.integers(1, len(others) + 1))]}
        rosters = [(everybody, set(others), [few])]
    elif script == "small":  # also one below the minimum
        fewer = small - set(others[:1]) if rng.random() < 0.5 else small
        rosters = [(fewer, fewer - byzantine, [fewer])]
    elif script == "both":
        rosters = [(small, small - byzantine, [small]), (everybody, everybody - small, [everybody])]
    else:
        moves = Moves(chaos=float(rng.choice([0.03, 0.15])))
    return setting, rosters, moves


def lied_to(seed, **weaker):
    rng = np.random.default_rng(seed)
    setting, rosters, moves = of_sites(rng, **weaker)
    return attack(World(setting, rng), rosters, moves)


def test_a_server_that_lies_to_sites_opens_sums_of_as_many_as_are_pinned_or_none(ideal):
    """Whatever roster it sends, of however many sites: their thresholds and layers are pinned."""
    opened = [judge(lied_to(seed)) for seed in range(300)]
    assert sum(map(bool, opened)) > 80
    first = [each.of[0] for sums in opened for each in sums]
    missing = {one.client._policy.sites - len(one.roster.clients) for one in first}
    assert missing >= {0, 1}, "of smaller rosters too"


def test_sites_with_a_threshold_for_honest_servers_give_a_lying_one_away(ideal):
    def curious(sites, colluders, threat):
        return least_threshold(sites, colluders, "curious")

    with pytest.raises(Broken):
        _ = [judge(lied_to(seed, threshold=curious)) for seed in range(600)]


def test_sites_refuse_a_roster_below_the_minimum_and_any_other_threshold():
    policy = SitePolicy(5, 4, 4, 1, "malicious")
    setting = Setting(tuple(range(5)), frozenset(), policy, Limits(5, 4, sites=5, colluders=1))
    for clients, threshold, due in ((5, 4, True), (4, 4, True), (4, 3, False), (3, 4, False)):
        world = World(setting, np.random.default_rng(0))
        invited = {who: world.invite(who) for who in range(clients)}
        keys = tuple(one.keys for one in invited.values())
        nonces, seed = tuple(one.nonce for one in keys), bytes(32)
        shape = (clients - 1, threshold, seed)
        roster = Roster(world.context, tuple(invited), nonces, *shape, keys)
        world.share(invited[0], roster)
        assert (invited[0].roster is not None) == due
