"""Sums over regions: exact over all regions that survive, and no level learns more than stated."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from masked_sums import STREAMS, codec, rows, sent, signed, tampering
from scipy import stats
from small import small, trained

from privfed.auditing.run_audit import audit
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.privacy.noise.shares import DiscreteGaussianShare
from privfed.secure.channel import Wire
from privfed.secure.encoded_accumulator import Arithmetic
from privfed.secure.identities import client_directory
from privfed.secure.limits import SENDS, Leaves, Limits, leaving
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.evidence import proves
from privfed.secure.masked.messages import wire
from privfed.secure.masked.messages.unmasking import Unmask
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.primitives import Expander
from privfed.secure.regional.channel import FIRST_COORDINATOR, RegionalChannel, split
from privfed.secure.regional.protocol import RegionalSums
from privfed.secure.summation import Aborted, Session

LIMITS = Limits(80, size=12)
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
NOISY = ("privacy.mechanism=discrete_gaussian", *EVERYBODY, "secure.threshold=0.75")


def session(clients, leaves=(), **keys):
    leaves = np.array(leaves, dtype=np.int64)
    return Session(1, 0, b"h" * 32, 3 + 5 * np.arange(clients), leaves, STREAMS, **keys)


def channel(part, of, limits=LIMITS, leave=None, region_wire=None, top_wire=None, encoder=None):
    """The channel of `part`, with wires that tests listen to or change messages on."""
    encoder, masks = encoder or codec(), part.masks

    def opened(limits, wire, each):
        return MaskedChannel(each, encoder, masks.within(limits), limits, wire=wire)

    return RegionalChannel(
        of,
        part.regions,
        part.least_regions,
        functools.partial(opened, part.region_limits(limits), region_wire),
        functools.partial(opened, part.top_limits(limits), top_wire),
        leave,
    )


def outcome(ready, of, encoder):
    """The sum of the regions that are included, and the number of survivors; None if it aborts."""
    try:
        opened = ready()
        sent(opened, of, rows(encoder, len(of.clients), seed=len(of.clients)))
        total, survivors = opened.total()
    except Aborted:
        return None
    return total.tolist(), survivors


def expected(part, of, leave, encoder, limits=LIMITS):
    """The same, from counts of those who leave alone."""
    sent_rows = rows(encoder, len(of.clients), seed=len(of.clients))
    total, survivors, included, staying = 0, 0, 0, 0
    for number in range(part.regions):
        leaves = of.leaves[number :: part.regions]
        region = part.region_limits(limits)
        try:
            graph = part.masks.within(region).graph(len(leaves))
        except Aborted:
            continue
        needed = max(graph.threshold, graph.survivors)
        sends = np.isin(leaves, SENDS)
        if (leaves == Leaves.NEVER).sum() < needed or sends.sum() < region.least(len(leaves)):
            continue
        included += leave[number] in SENDS
        staying += leave[number] == Leaves.NEVER
        if leave[number] in SENDS:
            total = total + sent_rows[number :: part.regions][sends].sum(0)
            survivors += int(sends.sum())
    least = part.least_regions
    return (total.tolist(), survivors) if min(included, staying) >= least else None


# --- sums ---


@given(
    st.integers(2, 4),
    st.integers(8, 20),
    st.sampled_from([0.5, 0.7, 1.0]),
    st.sampled_from(["curious", "malicious"]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_total_is_that_of_surviving_regions(regions, clients, threshold, threat, data):
    mostly = st.sampled_from([*[Leaves.NEVER] * 12, *Leaves])
    leaves = data.draw(st.lists(mostly, min_size=clients, max_size=clients))
    leave = np.array(data.draw(st.lists(mostly, min_size=regions, max_size=regions)), np.int64)
    part, encoder = RegionalSums(regions=regions, threshold=threshold, threat=threat), codec()
    of = session(clients, leaves)
    result = outcome(lambda: channel(part, of, leave=leave), of, encoder)
    assert result == expected(part, of, leave, encoder)


def test_arithmetic_leaves_out_the_same_regions():
    results = []
    for seed in range(40):
        leaves = leaving(0.25, Streams(seed, True).at("dropout/0", 1, np.arange(21)), 21)
        of, part = session(21, leaves), RegionalSums(regions=3, threshold=0.65)
        both = []
        for arithmetic in (False, True):
            summation = part.over(replace(LIMITS, arithmetic=arithmetic))

            def ready(summation=summation, of=of):
                return summation.channel(of, codec(), None)

            both.append(outcome(ready, of, codec()))
        assert both[0] == both[1]
        sending = int(np.isin(of.leaves, SENDS).sum())
        results.append("abort" if both[0] is None else "all" if both[0][1] == sending else "less")
    assert {"abort", "all", "less"} == {*results}


def test_a_region_below_its_threshold_is_left_out_and_too_few_regions_abort():
    part, encoder = RegionalSums(regions=4, threshold=0.7), codec()
    leaves = np.zeros(24, np.int64)
    leaves[1::4] = Leaves.BEFORE_MASKING  # all of region 1
    of = session(24, leaves)
    ready = channel(part, of)
    total = sent(ready, of, rows(encoder, 24))
    opened, survivors = ready.total()
    assert np.array_equal(opened, total)
    assert survivors == 18
    assert ready.faults == ["too few clients sent their row"]
    leaves[2::4] = Leaves.BEFORE_UNMASKING
    of = session(24, leaves)
    ready = channel(part, of)
    sent(ready, of, rows(encoder, 24))
    with pytest.raises(Aborted, match=r"too few regions have a sum \(in a region: too few"):
        ready.total()


def test_regions_have_equal_sizes_and_every_client_is_in_one():
    of = session(23)
    parts = [each.clients.tolist() for each in split(of, 4)]
    assert sorted(map(len, parts)) == [5, 6, 6, 6]
    assert sorted(who for each in parts for who in each) == of.clients.tolist()


# --- what each level sees ---


class Seeing(Wire):
    """Keeps the masked words of every sender."""

    def __init__(self):
        self.words = {}

    def carry(self, client, data, upward):
        message = wire.decode(data)
        if isinstance(message, wire.Masked):
            self.words.setdefault(client, []).append(np.frombuffer(message.words, "<u4"))
        return data


def views(part, clients, constant=7):
    """What a server sees of rows that are all `constant`, at each level, over many sessions."""
    below, above, encoder = Seeing(), Seeing(), codec(length=40)
    for _ in range(60):
        of = session(clients)
        ready = channel(part, of, region_wire=below, top_wire=above, encoder=encoder)
        sent(ready, of, np.full((clients, 40), constant))
        assert np.array_equal(ready.total()[0], np.full(40, constant * clients))
    return below.words, above.words


def look_uniform(words):
    high = np.concatenate([np.concatenate(each) for each in words.values()]) >> 28
    return stats.chisquare(np.bincount(high, minlength=16)).pvalue > 1e-6


def test_a_coordinator_sees_no_row_and_the_server_no_regions_sum():
    below, above = views(RegionalSums(regions=3), 9)
    assert {*below} == {*session(9).clients.tolist()}
    assert {*above} == {FIRST_COORDINATOR + number for number in range(3)}
    assert look_uniform(below)
    assert look_uniform(above)


def test_without_masks_at_the_top_the_server_would_see_them(monkeypatch):
    """The check above rejects a top level whose coordinators mask with nothing."""
    apply = Expander.apply

    class Unmasked(RegionalChannel):
        def total(self):
            monkeypatch.setattr(Expander, "apply", lambda *_, **__: None)
            try:
                return super().total()
            finally:
                monkeypatch.setattr(Expander, "apply", apply)

    above, encoder, part = Seeing(), codec(length=40), RegionalSums(regions=2)
    limits = replace(LIMITS, arithmetic=True)

    def opened(limits, each):
        lost = functools.partial(part.masks.abort_where_lost, each, limits)
        return Arithmetic(each, encoder, limits, None, lost)

    def top(each):
        limits = part.top_limits(LIMITS)
        return MaskedChannel(each, encoder, part.masks.within(limits), limits, wire=above)

    for _ in range(20):
        of = session(8)
        region = functools.partial(opened, part.region_limits(limits))
        ready = Unmasked(of, 2, 2, region, top)
        sent(ready, of, np.full((8, 40), 7))
        ready.total()
    assert not look_uniform(above.words)
    assert {int(word) for each in above.words.values() for word in each[0]} == {28}


def test_coordinators_have_other_keys_than_clients():
    names = [*range(50), *range(FIRST_COORDINATOR, FIRST_COORDINATOR + 50)]
    assert len({*client_directory(names).values()}) == 100


# --- Byzantine clients ---


def test_a_client_that_deviates_is_named_by_its_number_and_proved():
    culprits, part = [], RegionalSums(regions=2, threshold=0.6)
    of = session(14, accuse=culprits.append)

    def change(message):
        (who, value), *others = message.seeds
        return signed(message, seeds=((who, value + 1), *others))

    ready = channel(part, of, region_wire=tampering(Unmask, change))
    total = sent(ready, of, rows(codec(), 14))
    opened, survivors = ready.total()
    assert np.array_equal(opened, total)
    assert survivors == 14
    assert [(each.client, each.reason) for each in culprits] == [(8, "wrong share")]
    assert proves(culprits[0], client_directory(of.clients.tolist()))


# --- noise ---


def honest_noise(part, limits):
    """The least honest fraction of counted noise, over all totals that are opened: brute force.

    Of included regions, those of k coordinators do not count; in each, as many clients collude as
    may, and all Byzantine clients are in regions that count.
    """
    region, masks = part.region_limits(limits), part.masks
    policy = masks.within(region)
    left = []
    for clients in range(1, limits.capacity // part.regions + 1):
        try:
            shape = policy.graph(clients)
        except Aborted:
            continue
        least = max(shape.survivors, shape.threshold, region.least(clients))
        left += [m - policy.corrupt(clients) for m in range(least, clients + 1)]
    top = part.top_limits(limits)
    for_server = min(left) * (top.minimum - top.colluders) - limits.byzantine
    return for_server / limits.minimum, (min(left) - limits.byzantine) / limits.minimum


@every_case("byzantine", [0, 3])
@every_case("regions", [2, 5, 10])
@every_case("tolerance", [0.3, 0.5])
def test_honest_noise_is_never_less_than_is_charged(tolerance, regions, byzantine):
    limits = Limits(400, math.ceil((1 - tolerance) * 200), size=200, byzantine=byzantine)
    part = RegionalSums(regions=regions, threshold=0.8, colluders=0.08)
    part.refuse_limits(limits)
    for_server, for_coordinator = honest_noise(part, limits)
    assert part.fewest(limits) >= limits.minimum
    assert for_server - 0.3 <= part.honest(limits) <= for_server + 1e-9
    alone = part.model_copy(update={"coordinators": "curious"})
    assert for_coordinator - 0.3 <= alone.honest(limits) <= for_coordinator + 1e-9
    assert alone.honest(limits) <= part.honest(limits)


def test_counting_colluding_coordinators_noise_would_be_noticed(monkeypatch):
    limits = Limits(400, 120, size=200)
    part = RegionalSums(regions=5, threshold=0.8, colluders=0.08)
    monkeypatch.setattr(RegionalSums, "_counted_regions", part.least_regions)
    assert part.honest(limits) > honest_noise(part, limits)[0]


def test_without_a_minimum_per_region_too_little_noise_would_be_noticed(monkeypatch):
    limits = Limits(400, 120, size=200)
    part = RegionalSums(regions=5, threshold=0.8)
    region = RegionalSums.region_limits
    monkeypatch.setattr(
        RegionalSums, "region_limits", lambda self, limits: region(self, replace(limits, minimum=0))
    )
    assert part.fewest(limits) < limits.minimum


def least_total(part, limits, share, length):
    """A total of zeros with noise, of the fewest regions with the fewest survivors of each."""
    clients, leaves = 24, np.zeros(24, np.int64)
    stay = part.masks.fewest(part.region_limits(limits))
    for number in range(part.regions):
        gone = stay if number < part.least_regions else 0
        leaves[number :: part.regions][gone:] = Leaves.BEFORE_MASKING
    of = session(clients, leaves)
    summation = part.over(limits)
    encoding = Encoding(1.0, step=2.0**-10, noise=share)
    accumulator = summation.open(of, length, encoding)
    zeros = torch.zeros(1, length)
    for client in of.senders.tolist():
        accumulator.add(np.array([client]), BoundedRows(zeros, 1.0))
    return accumulator.close(), stay * part.least_regions


def has_variance(total, variance):
    """Whether the noise of `total` is not less than of `variance`, in squared steps."""
    values = total.total.numpy() / 2.0**-10
    return bool(stats.chi2.cdf((values**2).sum() / variance, len(values)) > 1e-6)


def test_the_fewest_survivors_add_the_noise_that_is_counted():
    part = RegionalSums(regions=4, threshold=0.75, colluders=0.0)
    limits = Limits(24, 15, arithmetic=True, size=24)
    for factor, enough in ((1.0, True), (0.8, False)):
        share = DiscreteGaussianShare(factor * 900.0)
        total, survivors = least_total(part, limits, share, 4000)
        assert survivors == total.survivors == 15
        assert has_variance(total, 15 * 900.0) is enough


# --- cost ---


def test_the_cost_of_a_client_depends_on_its_region_alone():
    of = codec(length=1000)
    costs = set()
    for regions in (2, 10, 100):
        part = RegionalSums(regions=regions)
        clients = 40 * regions
        costs.add((part.upload(of, clients), part.download(clients)))
    assert len(costs) == 1
    alone = MaskedSums()
    assert costs == {(alone.upload(of, 40), alone.download(40))}
    seconds = [RegionalSums(regions=n).operations(of, 40 * n).seconds / n for n in (10, 100)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.1)


class Counting(Wire):
    """Counts each client's bytes, in both directions."""

    def __init__(self):
        self.bytes = {}

    def carry(self, client, data, upward):
        self.bytes[client, upward] = self.bytes.get((client, upward), 0) + len(data)
        return data


def test_bytes_of_a_client_are_equal_however_many_regions_there_are():
    sizes = set()
    for regions in (2, 5, 8):
        part, count, of = RegionalSums(regions=regions), Counting(), session(8 * regions)
        ready = channel(part, of, replace(LIMITS, size=8 * regions), region_wire=count)
        sent(ready, of, rows(codec(), 8 * regions))
        ready.total()
        sizes |= {(upward, size) for (_, upward), size in count.bytes.items()}
    assert len(sizes) == 2


# --- aborts ---


def test_the_chances_of_aborts_and_of_partial_sums_are_bounded_and_not_by_much():
    part, limits = RegionalSums(regions=4, threshold=0.75), Limits(40, size=40, arithmetic=True)
    stopped, missing, turns = 0, 0, 600
    summation = part.over(limits)
    for seed in range(turns):
        leaves = leaving(0.2, Streams(seed, True).at("dropout/0", 1, np.arange(39)), 39)
        of = session(39, leaves)
        result = outcome(functools.partial(summation.channel, of, codec(), None), of, codec())
        stopped += result is None
        missing += result is None or result[1] < of.sending
    for count, bound in (
        (stopped, summation.abort_probability(39, 0.2)),
        (missing, summation.partial_probability(39, 0.2)),
    ):
        assert stats.binomtest(count, turns, min(1.0, bound), alternative="greater").pvalue > 1e-6
        assert 0 < count / turns < bound < 2.5 * count / turns
    assert summation.abort_probability(39, 0.0) == summation.partial_probability(39, 0.0) == 0.0
    assert summation.abort_probability(41, 0.0) == 1.0
    assert summation.abort_probability(7, 0.0) == 1.0
    assert MaskedSums().over(limits).partial_probability(39, 0.2) == 0.0


def test_a_partial_sum_is_charged_where_the_cohort_is_secret():
    """One client more may decide whether a region is in the total: also if no round aborts."""
    keys = ("secure.protocol=regions", "data.clients=400", "cohort.size=160", "secure.regions=4")
    planned = plan(small(*keys, "cohort.dropout=0.05", "secure.threshold=0.5"))
    assert planned.event.slack == planned.cost.partial > planned.cost.aborts > 0
    everybody = plan(small("secure.protocol=regions", *EVERYBODY, "cohort.dropout=0.1"))
    assert everybody.event.slack == 0.0
    assert everybody.cost.partial > 0


def test_one_client_more_may_decide_whether_a_region_is_left_out():
    """So a partial sum has to be charged: it differs in the row of another client, too."""
    part, sums = RegionalSums(regions=3, threshold=0.6), []
    everyone = 10 + 2 * np.arange(12)
    for clients in (everyone, np.sort([*everyone, 17])):
        leaves = np.where(np.isin(clients, [12, 22]), int(Leaves.BEFORE_MASKING), 0)
        of = replace(session(1), clients=clients, leaves=leaves)
        ready = part.over(replace(LIMITS, arithmetic=True)).channel(of, codec(length=40), None)
        for client in of.senders.tolist():
            ready.send(client, np.eye(40, dtype=np.int64)[client])
        sums.append(ready.total()[0])
    assert np.flatnonzero(sums[0]).tolist() == sorted({*everyone.tolist()} - {12, 22})
    assert np.flatnonzero(sums[0] != sums[1]).tolist() == [28]


def test_a_run_without_a_secret_cohort_goes_on_without_some_regions(tmp_path):
    keys = ("secure.protocol=regions", "data.clients=48", "secure.regions=8", "secure.colluders=0")
    keys = (*keys, *EVERYBODY, "cohort.dropout=0.25", "secure.threshold=0.6", "run.rounds=5")
    planned = plan(small(*keys))
    assert planned.cost.partial > 0.5 > planned.cost.aborts
    assert trained(tmp_path / "run", *keys).updates >= 3


# --- refusals and runs ---


@every_case(
    "keys, reason",
    [
        (("secure.regions=7", *EVERYBODY), "clients expected in a region is 1"),
        (("secure.regions=2", "secure.colluders=0.55", *EVERYBODY), "3 would have to survive"),
        (("secure.threshold=0.1", *EVERYBODY), "would suffice to unmask"),
        (("secure.threat=malicious", "secure.threshold=0.5", *EVERYBODY), "malicious server"),
        (
            ("privacy.mechanism=skellam", "privacy.sizing=layers", *EVERYBODY),
            "layers",
        ),
        (("secure.coordinators=curious", *EVERYBODY), "sees an exact sum of its region"),
    ],
)
def test_what_has_no_proof_is_refused_before_any_client_trains(tmp_path, keys, reason):
    with pytest.raises(Refused, match=reason):
        trained(tmp_path / "run", "secure.protocol=regions", *keys)
    assert not (tmp_path / "run").exists()


@every_case("keys", [EVERYBODY, (*NOISY, "secure.simulate=messages")])
def test_a_run_over_regions_ends_and_its_audit_agrees(tmp_path, keys):
    trained(tmp_path / "run", "secure.protocol=regions", "run.rounds=2", *keys)
    checked = audit(tmp_path / "run")
    assert checked.problems == ()
    assert checked.guarantee.epsilon < math.inf


def test_a_plan_states_whom_it_trusts_at_each_level():
    central = plan(small("secure.protocol=regions", *EVERYBODY))
    assert central.assumed.trusts == ("the coordinator of a client's region", "the server")
    noisy = plan(small("secure.protocol=regions", *NOISY), length=21)
    assert noisy.assumed.trusts == ()
    (relied_on,) = {*noisy.assumed.trusted_parties} - {
        "the server to follow the protocol",
        "coordinators to follow the protocol",
    }
    assert relied_on == "the coordinator of a client's region not to use the region's sum"
    alone = ("secure.coordinators=curious", "secure.threat=malicious", "secure.threshold=0.9")
    keys = ("secure.protocol=regions", *NOISY, *alone)
    assert plan(small(*keys), length=21).assumed.trusted_parties == ()
    text = RegionalSums(regions=10, threshold=0.8).promise(200, Limits(200, 150, size=200))
    assert text.startswith("at least 8 of 10 regions have to survive; in each, at least 19 of 20")
    assert "its coordinator learns the region's sum, but no row" in text
    assert text.endswith("against it 10.9% of the noise counts")
