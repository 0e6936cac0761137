"""Canaries under every relation, draw, sum and clip: honest runs pass, and broken ones do not."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from lanes import every_case
from scipy import stats
from small import small, trained

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event
from accounting.noises import Gaussian
from accounting.releases import SeveralSites, WithoutReplacement
from privfed.auditing.canaries.clients import Canaries, WithCanaries, share_within_clip
from privfed.auditing.canaries.evidence import evidence_rows
from privfed.auditing.canaries.inclusion import inclusion_signs, number_of_nothing
from privfed.auditing.canaries.log import CanaryLog, CanaryRecord
from privfed.auditing.canaries.scores import Scale, likelihood_ratios, without_common
from privfed.auditing.run_audit import audit
from privfed.auditing.scenarios import plan_of_mechanism
from privfed.client.exchange import Exchange
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.data.federation import client_number
from privfed.plan.rule import rules_by_sums
from privfed.plan.sum_limits import configured_limits
from privfed.privacy import clipping
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.mechanisms import central_gaussian, distributed_noise, local_gaussian
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.noise.shares import DiscreteGaussianShare, SkellamShare
from privfed.report.plan_privacy import canaries_row
from privfed.run.assemble import assemble
from privfed.run.forecast import forecast
from privfed.run.prepare import plan_with_length, prepare
from privfed.sampling.cohort import Cohort, Population, Witness
from privfed.sampling.samplers import FixedSize, Full, Poisson
from privfed.secure import plain_sum
from privfed.secure.aborts import probability
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.store.run_directory import RunDirectory

FULL = ("cohort.sampler=full", "cohort.size=0")
FIXED = ("cohort.sampler=fixed_size",)
CUT = ("cohort.sampler=truncated_poisson",)
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=4", "cohort.size=0")
MASKS = ("secure.protocol=masks", "secure.simulate=arithmetic")
SKELLAM = (*MASKS, "privacy.mechanism=skellam")
LAYERS = (*SKELLAM, "privacy.sizing=layers")
LOCAL = ("privacy.mechanism=local_gaussian",)
ADAPTIVE = ("privacy.adaptive_clip=true", "privacy.count_noise=40")
SITES = ("data.sites=5",)
TWO = (*SITES, "data.sites_per_client=2")

KINDS = {
    "poisson": (ADD_REMOVE, ()),
    "fixed size": (REPLACE_ONE, FIXED),
    "cut": (ADD_REMOVE, CUT),
    "adaptive": (ADD_REMOVE, ADAPTIVE),
    "adaptive, everybody": (ZERO_OUT, (*ADAPTIVE, *FULL)),
    "adaptive, fixed size": (REPLACE_ONE, (*ADAPTIVE, *FIXED)),
    "adaptive, masks, everybody": (ZERO_OUT, (*ADAPTIVE, *FULL, *MASKS)),
    "centers, everybody": (ZERO_OUT, ("aggregation.rule=centered_clipping", *FULL)),
    "medians, skellam": (ZERO_OUT, ("aggregation.rule=geometric_median", *SKELLAM, *FULL)),
    "local": (REPLACE_ONE, LOCAL),
    "local, everybody": (REPLACE_ONE, (*LOCAL, *FULL)),
    "masks": (ADD_REMOVE, MASKS),
    "masks, everybody": (ZERO_OUT, (*MASKS, *FULL)),
    "masks, fixed size": (REPLACE_ONE, (*MASKS, *FIXED)),
    "masks, cut": (ADD_REMOVE, (*MASKS, *CUT)),
    "masks, slots": (
        ADD_REMOVE,
        (*MASKS, "cohort.sampler=allocation", "cohort.slots=4", "cohort.size=0"),
    ),
    "bfv": (ADD_REMOVE, ("secure.protocol=bfv", "secure.simulate=arithmetic")),
    "skellam": (ZERO_OUT, SKELLAM),
    "skellam, everybody": (ZERO_OUT, (*SKELLAM, *FULL)),
    "skellam, cyclic": (ZERO_OUT, (*SKELLAM, *CYCLIC)),
    "skellam, fixed size": (ZERO_OUT, (*SKELLAM, *FIXED)),
    "layers": (ZERO_OUT, (*LAYERS, *FULL)),
    "layers against readers": (ADD_REMOVE, (*LAYERS, "privacy.against=readers")),
    "discrete": (ZERO_OUT, (*MASKS, *FULL, "privacy.mechanism=discrete_gaussian")),
    "sites": (ADD_REMOVE, (*SITES, *SKELLAM)),
    "sites, layers": (ADD_REMOVE, (*SITES, *LAYERS)),
    "sites, everybody": (ZERO_OUT, (*SITES, *SKELLAM, *FULL)),
    "sites, central": (ADD_REMOVE, (*SITES, *MASKS)),
    "sites, local": (ADD_REMOVE, (*SITES, *LOCAL)),
    "two sites": (ADD_REMOVE, TWO),
    "two sites, masks": (ADD_REMOVE, (*TWO, *MASKS)),
    "two sites, skellam": (ADD_REMOVE, (*TWO, *SKELLAM)),
    "two sites, local": (ADD_REMOVE, (*TWO, *LOCAL)),
}
"""Runs by the relation that their claim is about."""
FEW = (
    "run.randomness=seeded",
    "data.clients=100",
    "cohort.size=40",
    "data.features=12",
    "privacy.noise_multiplier=4.0",
    "run.rounds=3",
    "run.evaluate_every=3",
)
CANARIES = ("audit.canaries=60",)
MANY = (
    *("data.features=60", "data.classes=10", "audit.canaries=100"),
    *("privacy.noise_multiplier=60.0", "privacy.delta=1e-4", "run.rounds=4"),
)


HEADS = {
    ADD_REMOVE: "in the population",
    ZERO_OUT: "others zero",
    REPLACE_ONE: "others the opposite",
}


ALIKE = {
    *("adaptive, everybody", "adaptive, fixed size", "medians, skellam", "local, everybody"),
    *("masks, fixed size", "masks, cut", "skellam, fixed size", "layers against readers"),
    *("sites, everybody", "sites, layers", "two sites, masks", "two sites, local"),
    *("adaptive, masks, everybody", "masks, everybody", "skellam, everybody", "sites"),
    *("sites, central", "sites, local"),
}
"""Kinds whose parts others have, too, in the default lane."""


def some_slow(kinds):
    """These kinds, of which those that are like others run in the slow lane."""
    return [pytest.param(k, marks=pytest.mark.slow) if k in ALIKE else k for k in kinds]


@pytest.mark.parametrize("kind", some_slow(KINDS))
def test_an_honest_run_is_not_refuted(kind, tmp_path):
    relation, keys = KINDS[kind]
    trained(tmp_path / "run", *FEW, *CANARIES, *keys)
    audited = audit(tmp_path / "run")
    assert not audited.problems
    assert audited.terms["relation"] == relation
    evidence = audited.canaries
    assert evidence.relation == relation
    assert HEADS[relation] in evidence_rows(evidence)["canaries"]
    few = replace(evidence, canaries=40), replace(evidence, canaries=400)
    assert ["dominated by chance" in evidence_rows(each)["estimate"] for each in few] == [
        True,
        False,
    ]
    assert evidence.p_value > 0.05
    assert evidence.epsilon_lower_bound <= evidence.epsilon_claimed
    assert evidence.epsilon_estimate_all_iterates < 10  # of 60 canaries it is of any size
    assert evidence.epsilon_estimate_final is not None


def without_noise(monkeypatch):
    """Neither server, sites nor clients add any."""
    for module in (central_gaussian, local_gaussian, plain_sum):
        monkeypatch.setattr(module, "gaussian_on_grid", lambda keys, std, n: np.zeros(n))
    for share in (SkellamShare, DiscreteGaussianShare):
        monkeypatch.setattr(share, "draw", lambda self, keys, n: np.zeros(n, dtype=np.int64))


def without_clip(monkeypatch):
    """A row of a thousand clips is called bounded."""

    def unclipped(rows, clip, *_):
        return clipping.BoundedRows(rows, clip)

    for module in (central_gaussian, distributed_noise, local_gaussian):
        monkeypatch.setattr(module, "clip_rows", unclipped)


BROKEN = [
    ("fixed size", without_noise),
    ("adaptive, everybody", without_noise),
    ("local, everybody", without_noise),
    ("masks, everybody", without_noise),
    ("skellam, everybody", without_noise),
    ("two sites", without_noise),
    ("cut", without_clip),
    ("local", without_clip),
    ("sites, local", without_clip),
]
ALSO_BROKEN = [
    ("masks, fixed size", without_noise),
    ("masks, slots", without_noise),
    ("skellam, cyclic", without_noise),
    ("sites, everybody", without_noise),
    ("fixed size", without_clip),
]
"""What some hundred canaries can see in four rounds: half of all rows, and no noise but theirs."""


@pytest.mark.parametrize(
    "kind, fault",
    [*BROKEN, *(pytest.param(*each, marks=pytest.mark.slow) for each in ALSO_BROKEN)],
    ids=[f"{kind}, {fault.__name__}" for kind, fault in BROKEN + ALSO_BROKEN],
)
def test_a_broken_run_is_refuted(kind, fault, tmp_path, monkeypatch):
    fault(monkeypatch)
    trained(tmp_path / "run", *FEW, *MANY, *KINDS[kind][1])
    evidence = audit(tmp_path / "run").canaries
    assert evidence.refuted
    assert evidence.epsilon_lower_bound > evidence.epsilon_claimed


SAME = [
    *("fixed size", "adaptive", "adaptive, everybody", "local", "local, everybody"),
    *("masks, everybody", "masks, fixed size", "sites, central", "sites, local"),
    *("two sites", "two sites, masks", "two sites, local"),
]


@every_case("kind", SAME)
def test_real_clients_are_charged_as_without(kind):
    keys = KINDS[kind][1]
    with_them, without = (
        plan_with_length(small(*FEW, *more, *keys)) for more in (CANARIES, ("audit.canaries=0",))
    )
    assert with_them.event == without.event
    assert with_them.guarantee.epsilon == without.guarantee.epsilon


@every_case("kind", [kind for kind in KINDS if kind not in (*SAME, "poisson")])
def test_where_canaries_cost_anything_it_is_charged(kind):
    """Noise, rate and divisor as without, and no less of epsilon."""
    keys, none = KINDS[kind][1], ("audit.canaries=0",)
    with_them, without = (plan_with_length(small(*FEW, *m, *keys)) for m in (CANARIES, none))
    assert with_them.noise_multiplier == without.noise_multiplier
    assert with_them.config.sampler == without.config.sampler
    assert with_them.cost.witness.rate == without.cost.witness.rate
    assert with_them.guarantee.epsilon >= without.guarantee.epsilon * (1 - 1e-9)


def test_a_cut_draw_is_charged_for_all_who_may_be_there():
    keys = KINDS["cut"][1]
    planned = plan_with_length(small(*FEW, *CANARIES, *keys))
    assert planned.event.release.clients == 160
    assert planned.event.release.rate == 0.4
    assert planned.algorithm().event(1) == planned.event


@every_case(
    "name",
    ["truncated_poisson", "privfed.sampling.samplers:CappedPoisson", "custom_parts:MyCapped"],
)
def test_in_every_spelling(name):
    planned = plan_with_length(small(*FEW, *CANARIES, f"cohort.sampler={name}"))
    assert planned.event.release.clients == 160


@every_case("kind", ["cut", "masks, cut", "layers"])
def test_a_mechanism_is_tested_without_canaries(kind):
    with_them, without = (
        plan_of_mechanism(small(*FEW, *more, *KINDS[kind][1]))
        for more in (CANARIES, ("audit.canaries=0",))
    )
    assert with_them.event == without.event
    assert with_them.cost.limits == without.cost.limits


@every_case("clients, cohort", [(101, 40), (160, 40), (200, 40), (100, 39), (100, 8)])
def test_a_smaller_share_of_a_draw_without_replacement_costs_less(clients, cohort):
    """By which m of N bounds m of N + K, and m - j of N."""
    for noise_multiplier in (0.4, 1.0, 7.0):
        declared, smaller = (
            Event(WithoutReplacement(m, n, Gaussian(noise_multiplier)), "fixed_size", REPLACE_ONE)
            for m, n in ((40, 100), (cohort, clients))
        )
        for rounds in (1, 50):
            bounds = (epsilon({event: rounds}, 1e-5, "rdp") for event in (smaller, declared))
            assert next(bounds) <= next(bounds)


@every_case("entered", [0, 4, 12])
def test_aborts_are_charged_for_whoever_may_have_entered(entered):
    """Of 11 to 24 clients each drawn by a coin of a third, sums of 2 to 8."""
    summation = MaskedSums(threshold=0.2).over(Limits(8, 2, arithmetic=True))
    charged = probability(summation, Poisson(size=4), 12, 1, 0.0, canaries=12)
    drawn = stats.binom(11 + entered, 1 / 3)
    true = sum(summation.abort_probability(n, 0.0) * drawn.pmf(n) for n in range(12 + entered))
    assert true <= charged
    assert probability(summation, Poisson(size=4), 12, 1, 0.0) < charged


def test_a_plan_charges_aborts_of_sums_that_canaries_fill():
    """Of 160, cohorts exceed 90 now and then, and of 100 clients alone next to never."""
    tight = (*MASKS, "secure.capacity=90")
    with_them, without = (
        plan_with_length(small(*FEW, *more, *tight)).event.slack
        for more in (CANARIES, ("audit.canaries=0",))
    )
    assert with_them >= stats.binom.sf(90, 160, 0.4) > 1e-6
    assert without < 1e-6


@pytest.mark.parametrize("parts", [1, 2])
def test_room_for_canaries_at_sites_is_no_room_for_more_clients(parts):
    """Sums of sites never abort, so that nobody else may be there."""
    keys = (*FEW, *CANARIES, *SITES, *MASKS, f"data.sites_per_client={parts}")
    declared, more = (prepare(small(*keys, f"data.clients={n}")) for n in (100, 101))
    assert declared.federation.clients == 100 * parts
    with pytest.raises(Refused, match=f"at most {100 * parts} rows"):
        assemble(declared.plan, more.federation, declared.network, declared.streams)


def test_sums_hold_everybody_who_may_be_there():
    everybody, sized = (small(*FEW, *CANARIES, *KINDS[k][1]) for k in ("masks", "masks, cut"))
    assert configured_limits(everybody).capacity == 160
    assert configured_limits(sized).capacity == 60
    assert configured_limits(small(*FEW, *CANARIES, *KINDS["two sites, masks"][1])).rows == 320
    assert configured_limits(everybody).size == 40  # by which noise is shared out


RELATIONS = [ADD_REMOVE, ZERO_OUT, REPLACE_ONE]
PEOPLE = Population(np.ones(5, dtype=np.int64), np.arange(5), np.arange(5) % 3)
ASKED = Exchange("train", {"params": torch.zeros(8)}, Layout((("delta", 8),)))


def drawn(relation, sites=3, parts=1, turned=None):
    """Six canaries, but for the coin that is `turned` the same."""
    canaries = Canaries.drawn(6, 8, Streams(1, simulated=True), relation, sites, parts)
    inclusion = canaries.inclusion.copy()
    if turned is not None:
        inclusion[turned] ^= True
    return replace(canaries, inclusion=inclusion)


def entries(canaries, within=None, exchange=ASKED):
    """Identity, site and row of each entry of the population that sends one."""
    population = canaries.among(PEOPLE)
    played = WithCanaries(Nobody(), canaries, 5, 0.4, within)
    cohort = Cohort(1, np.arange(5, len(population)), 4.0, None)
    (chunk,) = played.chunks(exchange, played.answering(cohort))
    return {
        int(population.identities[place]): (int(population.sites[place]), tuple(row.tolist()))
        for place, row in zip(chunk.ids, chunk.rows, strict=True)
    }


class Nobody:
    """An executor without clients."""

    def answering(self, cohort):
        return cohort

    def chunks(self, exchange, cohort):
        assert not len(cohort.clients)
        return iter(())


@every_case("within", [None, 0.5], ids=["fixed clip", "moving clip"])
@every_case("parts", [1, 2], ids=["one site", "two sites"])
@every_case("relation", RELATIONS)
def test_a_coin_decides_between_two_neighbours_and_nothing_else(relation, parts, within):
    canaries = drawn(relation, parts=parts)
    before = entries(canaries, within)
    for canary in range(6):
        after = entries(drawn(relation, parts=parts, turned=canary), within)
        changed = {
            who: (before.get(who), after.get(who))
            for who in before | after
            if before.get(who) != after.get(who)
        }
        assert len(changed) == parts
        for pair in changed.values():
            if relation == REPLACE_ONE:
                assert pair[0][0] == pair[1][0]
                assert pair[0][1] == tuple(-number for number in pair[1][1])
            elif relation == ADD_REMOVE or within:
                assert None in pair
            else:
                assert pair[0][0] == pair[1][0]
                assert sum(not any(row) for _, row in pair) == 1


@every_case("name", rules_by_sums())
def test_tails_add_zero_by_every_rule_of_sums(name):
    """Also where a row of zeros adds its way from the center, or is counted."""
    rule = find("rule", name, "rule")().within(0.4)
    center = torch.full((8,), 0.1) if rule.remembers else torch.zeros(8)
    canaries = drawn(ZERO_OUT)
    cohort = Cohort(1, np.arange(6), 4.0, None)
    played = WithCanaries(Nobody(), canaries, 0, 0.4, nothing=number_of_nothing(rule))
    (chunk,) = played.chunks(ASKED, cohort)
    sent = clipping.clip_rows(rule.terms(chunk.rows, center), 0.4).rows
    assert torch.equal(sent.any(1), torch.from_numpy(canaries.inclusion))


def test_a_canary_never_has_a_clients_own_number():
    """Whatever clients are called: else it would share the secret slot of one."""
    population = drawn(ZERO_OUT, parts=2).among(PEOPLE)
    assert (population.identities[5:] < 0).all()
    assert len(set(population.identities.tolist())) == 17
    assert client_number("canary 1") >= 0


@every_case("parts", [1, 2, 3])
def test_canaries_are_dealt_to_sites_in_turn(parts):
    canaries = drawn(ZERO_OUT, parts=parts)
    population = canaries.among(PEOPLE)
    sites = population.sites[5:].reshape(6, parts)
    assert all(len(set(row)) == parts for row in sites.tolist())
    assert np.bincount(sites.ravel()).tolist() == [2 * parts] * 3
    assert len(set(population.identities.tolist())) == 5 + 6 * parts


@every_case("clip", [0.01, 0.4, 1e6])
@every_case("within", [0.5, 0.9])
def test_a_share_of_canaries_is_within_the_clip_of_the_round(within, clip):
    state = {"clip": torch.tensor(clip, dtype=torch.float64)}
    canaries = Canaries.drawn(100, 8, Streams(1, simulated=True), REPLACE_ONE)
    played = WithCanaries(Nobody(), canaries, 0, 0.4, within)
    cohort = Cohort(1, np.arange(100), 4.0, None)
    (chunk,) = played.chunks(replace(ASKED, bounds=state), cohort)
    norms = chunk.rows.norm(dim=1)
    assert int((norms <= clip).sum()) == round(100 * within)
    assert float(norms.min()) > 0.99 * clip


@every_case("quantile", [0.3, 0.8])
@every_case("sampler", [Full(size=60), FixedSize(size=60)], ids=["beside", "in places"])
def test_the_clip_follows_the_quantile_that_it_followed(quantile, sampler):
    """Norms of 60 clients uniform on [0, 2]: the quantile g lies at 2 g. 60 canaries, in a cohort
    of a fixed size half of it in place of clients.
    """
    mechanism = CentralGaussian(
        adaptive_clip=True, clip_quantile=quantile, noise_multiplier=0.1, count_noise=1.0, clip=5.0
    )
    drawn = sampler.witness(1, 60)
    canaries = Canaries.drawn(60, 8, Streams(1, simulated=True), drawn.relation)
    played = WithCanaries(Nobody(), canaries, 0, 5.0, share_within_clip(mechanism, drawn))
    state, rng, clips = mechanism.init(), np.random.default_rng(3), []
    for _ in range(150):
        places = rng.permutation(120)[:60] if drawn.shares_places else np.arange(120)
        synthetic = played.answering(Cohort(1, places[places < 60], 60.0, None))
        (chunk,) = played.chunks(replace(ASKED, bounds=state), synthetic)
        real = torch.zeros(int((places >= 60).sum()), 8)
        real[:, 0] = torch.from_numpy(rng.uniform(0, 2, len(real)))
        bounded = mechanism.bound(torch.cat([real, chunk.rows]), None, None, state)
        total = BoundedSum(bounded.rows.double().sum(0), bounded.bound, 60)
        _, state = mechanism.release(total, 60.0, Keys(None), state)
        clips.append(float(state["clip"]))
    assert np.mean(clips[-50:]) == pytest.approx(2 * quantile, rel=0.15)


@every_case(
    "kind, words, louder",
    [
        ("poisson", "60, half of them enter, 12 in a cohort", 12 / (2 * 4**2 * 39)),
        ("masks, everybody", "60, half of them send zero, 30 in a cohort", None),
        ("local", "60, half of them send the opposite, 24 in a cohort", None),
        ("fixed size", "send the opposite, 15 in a cohort in the places of clients", 0.6),
    ],
)
def test_a_check_says_what_canaries_cost(kind, words, louder):
    """Rows of a clip, over 39 numbers with noise of 4 clips each; in places, with fewer rows."""
    setup = prepare(small(*FEW, *CANARIES, *KINDS[kind][1]))
    row = canaries_row(setup.plan, forecast(setup))["canaries"]
    assert words in row
    if louder is not None:
        percent = float(row.split(" update is ")[1].split("%")[0]) / 100
        assert percent == pytest.approx(louder, rel=0.06)
    assert canaries_row(prepare(small(*FEW)).plan, forecast(setup)) == {}


def test_masks_between_clients_and_canaries_come_off(tmp_path):
    """With the cryptography, and without: the same releases."""
    keys = ("data.clients=24", "audit.canaries=20", "cohort.size=8", "run.rounds=2")
    for name in ("messages", "arithmetic"):
        summed = ("secure.protocol=masks", f"secure.simulate={name}", "secure.threshold=0.5")
        trained(tmp_path / name, *FEW, *keys, *summed, "privacy.mechanism=skellam")
    observed = [
        CanaryLog(RunDirectory.open(tmp_path / name).canaries, 20).read()
        for name in ("messages", "arithmetic")
    ]
    np.testing.assert_array_equal(observed[0].products, observed[1].products)


@every_case(
    "witness, relation",
    [
        (Witness("fixed_size", 0.5, REPLACE_ONE, partial(WithoutReplacement, 4, 8)), REPLACE_ONE),
        (Witness("full", 1.0, ZERO_OUT, lambda of: of), REPLACE_ONE),
        (Witness("poisson", 0.1, ADD_REMOVE, partial(SeveralSites, 0.1, 3)), ADD_REMOVE),
    ],
    ids=["fixed size", "replaced", "sites"],
)
def test_scores_tell_neighbours_apart(witness, relation):
    """Better than the mean of a canary's products, of which half are of either neighbour."""
    rng, count, rounds = np.random.default_rng(3), 1000, 25
    inclusion = np.arange(count) < count // 2
    added = rng.binomial(3 if relation == ADD_REMOVE else 1, witness.rate, (rounds, count))
    x = added * inclusion_signs(inclusion, relation) + 2.0 * rng.normal(size=(rounds, count))
    record = CanaryRecord(
        inclusion, 2000, np.arange(1, rounds + 1), np.ones(rounds), x, None, ended=True
    )
    scale = Scale(1.0, 1, np.ones(1), 2.0, witness)
    ratios = likelihood_ratios(record, relation, scale)
    right, plain = (
        (each[inclusion][:, None] > each[~inclusion][None]).mean()
        for each in (ratios, without_common(x).mean(0))
    )
    assert right > 0.65
    assert right > plain - 0.005
