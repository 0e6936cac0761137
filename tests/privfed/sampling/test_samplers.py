"""Samplers draw what their witness says, and refuse populations that their proof is not about."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from fixed_draws import assert_rate
from lanes import every_case, mostly_slow
from scipy import stats
from small import same_run, small, trained

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from privfed.client.objective import Cohorts
from privfed.core.errors import Refused
from privfed.core.streams import Streams, bernoulli
from privfed.plan.plan import plan
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.run.train import resume
from privfed.sampling.availability import Always, Daily, Groups
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import BySize, CappedPoisson, Cyclic, FixedSize, Full, Poisson

STREAMS = Streams(3, simulated=True)
SIZES = np.ones(40, dtype=np.int64)
ROUNDS = 4000


def counts(sampler, rounds=ROUNDS, streams=STREAMS, clients=40):
    """How often each client was drawn, and every cohort's size."""
    often, sizes = np.zeros(clients), []
    for round in range(1, rounds + 1):
        cohort = sampler.sample(round, clients, Population.of(SIZES[:clients]), streams)
        assert (np.diff(cohort.clients) > 0).all()
        often[cohort.clients] += 1
        sizes.append(len(cohort.clients))
    return often, np.array(sizes)


def assert_inclusion(often, rate, rounds=ROUNDS):
    """Each client's share is `rate`: chi-square over all of them, and no wrong rate passes."""

    def p(at):
        return stats.chi2.sf(((often - rounds * at) ** 2 / (rounds * at * (1 - at))).sum(), 40)

    assert p(rate) > 1e-6
    assert p(rate * 0.9) < 1e-6 or p(rate * 1.1) < 1e-6


def test_poisson_includes_each_client_at_its_rate():
    often, sizes = counts(Poisson(size=10))
    assert_inclusion(often, 0.25)
    assert sizes.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.1)


def test_fixed_size_draws_uniform_sets_of_one_size():
    often, sizes = counts(FixedSize(size=10))
    assert (sizes == 10).all()
    assert_inclusion(often, 0.25)
    pairs = np.zeros((40, 40))
    for round in range(1, ROUNDS + 1):
        drawn = FixedSize(size=10).sample(round, 40, Population.of(SIZES), STREAMS).clients
        pairs[np.ix_(drawn, drawn)] += 1
    together = pairs[np.triu_indices(40, 1)]
    assert together.mean() == pytest.approx(ROUNDS * 10 * 9 / (40 * 39))
    assert together.std() < 4 * np.sqrt(together.mean())


def test_truncation_cuts_uniformly_and_leaves_smaller_cohorts_alone():
    often, sizes = counts(CappedPoisson(size=10, cap=11))
    whole = counts(Poisson(size=10))[1]
    assert (sizes == np.minimum(whole, 11)).all()
    assert (sizes == 11).sum() > ROUNDS / 4
    assert_inclusion(often, sizes.mean() / 40)


def test_cyclic_keeps_each_clients_slot_and_its_separation():
    sampler = Cyclic(separation=8).of(40)
    assert sampler.size == 5
    for streams in (STREAMS, Streams(0, key=bytes(range(32)))):
        often, sizes = counts(sampler, 80, streams)
        assert (often == 10).all()
        assert sizes.sum() == 400
        last = np.full(40, -100)
        for round in range(1, 81):
            now = sampler.sample(round, 40, Population.of(SIZES), streams).clients
            assert (round - last[now] >= 8).all()
            last[now] = round
    keys = [Streams(0, key=bytes([n] * 32)) for n in range(250)]
    slots = [len(sampler.sample(1, 40, Population.of(SIZES), one).clients) for one in keys]
    assert np.var(slots) == pytest.approx(40 / 8 * 7 / 8, rel=0.35)  # independent slots
    with pytest.raises(ValueError, match="secret key"):
        sampler.sample(1, 40, Population.of(SIZES), Streams(0))


def test_a_slot_is_the_clients_own_whatever_the_order():
    """The rows of a file may come in another order after a resume, or somebody may have gone."""
    streams, sampler = Streams(0, key=bytes(32)), Cyclic(separation=4).of(8)
    names = np.array([11, 3, 500, 42, 9, 77, 1, 10**12])
    shuffled = np.array([77, 42, 10**12, 3, 1, 9, 6, 11])  # 500 left, 6 came
    for round in range(1, 9):
        first = sampler.sample(round, 8, Population(np.ones(8), names), streams).clients
        later = sampler.sample(round, 8, Population(np.ones(8), shuffled), streams).clients
        assert {*names[first]} - {500} == {*shuffled[later]} - {6}


def test_everybody_takes_part_in_full():
    cohort = Full().of(40).sample(1, 40, Population.of(SIZES), Streams(0))
    assert cohort.clients.tolist() == list(range(40))
    assert cohort.divisor == 40.0


NOISE = CentralGaussian(noise_multiplier=3.0)


@every_case(
    "sampler, relation, release",
    [
        (Poisson(size=10), ADD_REMOVE, PoissonSampled(0.25, Gaussian(3.0))),
        (CappedPoisson(size=10), ADD_REMOVE, TruncatedPoisson(0.25, 15, 40, Gaussian(3.0))),
        (FixedSize(size=10), REPLACE_ONE, WithoutReplacement(10, 40, Gaussian(1.5))),
        (Full(), ZERO_OUT, Gaussian(3.0)),
        (Cyclic(separation=4), ZERO_OUT, Separated(4, Gaussian(3.0))),
    ],
)
def test_each_sampler_makes_its_own_event(sampler, relation, release):
    witness = sampler.of(40).witness(1, 40)
    event = NOISE.event(witness, 1)
    assert (event.relation, event.release) == (relation, release)
    assert event.sampler == witness.sampler
    halved = NOISE.event(witness, 4).release
    assert halved == type(release)(**{**vars(release), **_half(release)})
    local = LocalGaussian(noise_multiplier=3.0).event(witness, 1)
    assert local.relation == REPLACE_ONE
    wanted = Separated(4, Gaussian(1.5)) if isinstance(sampler, Cyclic) else Gaussian(1.5)
    assert local.release == wanted
    sent = pickle.loads(pickle.dumps(witness))  # as other processes of a run are told of it
    assert (sent, sent.release) == (witness, witness.release)


def _half(release):
    if isinstance(release, Gaussian):
        return {"noise_multiplier": release.noise_multiplier / 2}
    return {"of": Gaussian(release.of.noise_multiplier / 2)}


def test_sampling_by_size_has_no_event():
    with pytest.raises(Refused, match="no proof"):
        NOISE.event(BySize(size=10).witness(1, 40), 1)


@every_case("sampler", [FixedSize(size=3), Full(), Cyclic(separation=2)])
def test_a_public_number_of_clients_has_to_be_the_number(sampler):
    sampler.fits(40, 40)
    for population in (39, 41):
        with pytest.raises(Refused, match=f"there are {population} clients"):
            sampler.fits(population, 40)


def test_a_bound_on_the_clients_has_to_bound_them():
    CappedPoisson(size=3).fits(39, 40)
    Poisson(size=3).fits(41, 40)
    with pytest.raises(Refused, match="an upper bound"):
        CappedPoisson(size=3).fits(41, 40)


@every_case(
    "overrides, reason",
    [
        (["cohort.sampler=full", "cohort.size=3"], "takes all"),
        (["cohort.sampler=cyclic", "cohort.separation=7"], "divides the clients"),
        (["cohort.sampler=cyclic", "cohort.separation=2", "cohort.size=4"], "divides the clients"),
        (["cohort.sampler=truncated_poisson", "cohort.cap=1"], "most cohorts would be truncated"),
        (["cohort.sampler=fixed_size", "cohort.size=13"], "at most all clients"),
        (["cohort.sampler=fixed_size", "privacy.accountant=pld"], "no proof for without_replace"),
        (["cohort.sampler=truncated_poisson", "privacy.accountant=rdp"], "no proof for truncated"),
        (["privacy.mechanism=banded"], "separation of only 1 rounds between"),
        (
            ["privacy.mechanism=banded", "privacy.bands=4", "cohort.sampler=cyclic"],
            "cohort.separation = 4 or more",
        ),
        (
            [
                *("cohort.sampler=fixed_size", "client.objective=scaffold"),
                "data.setting=cross_silo",
            ],
            "no privacy amplification",
        ),
        (["aggregation.rule=median"], "local_gaussian"),
    ],
)
def test_what_has_no_proof_is_refused_when_configured(overrides, reason):
    size = [] if any("full" in one or "cyclic" in one for one in overrides) else ["cohort.size=3"]
    if any("cyclic" in one for one in overrides):
        size += ["cohort.size=0"] if "cohort.size=4" not in overrides else []
        size += ["cohort.separation=3"] if "privacy.bands=4" in overrides else []
    wanted = [one for one in overrides if one.startswith("cohort.sampler")]
    rest = [one for one in overrides if one not in wanted]
    with pytest.raises(Refused, match=reason):
        plan(small(*wanted, *size, *rest))


def test_availability_only_takes_away_and_by_public_coins():
    who = np.arange(5000)
    assert Always().present(1, who, STREAMS).all()
    for part in (Daily(), Groups(groups=4, turn=2)):
        first = part.present(5, who, STREAMS)
        assert 0 < first.sum() < 5000
        assert np.array_equal(first[[7, 3]], part.present(5, who[[7, 3]], STREAMS))
        assert np.array_equal(first, part.present(5, who, Streams(3)))  # public, not secret
    share = [Daily(day=24, least=0.2, spread=0.0).present(r, who, STREAMS).mean() for r in (24, 36)]
    assert share[0] == 1.0
    assert share[1] == pytest.approx(0.2, abs=0.03)
    turns = [Groups(groups=4, turn=2).present(r, who, STREAMS) for r in range(8)]
    assert np.array_equal(turns[0], turns[1])
    assert (sum(t.astype(int) for t in turns) == 2).all()


@pytest.mark.parametrize(
    "sampler",
    mostly_slow(["poisson", "truncated_poisson", "fixed_size", "full"], "poisson", "full"),
)
def test_a_run_charges_the_same_whoever_is_at_hand(tmp_path, sampler):
    """Absent clients contribute zero; the event and the divisor stay."""
    size = "0" if sampler == "full" else "8"
    words = (f"cohort.sampler={sampler}", f"cohort.size={size}", "run.simulation_metrics=true")
    words += ("run.checkpoint_every=2", "run.randomness=seeded")
    always = trained(tmp_path / "a", *words)
    turns = trained(tmp_path / "b", *words, "cohort.availability=groups", "cohort.groups=3")
    assert turns.guarantee == always.guarantee
    assert turns.plan.event == always.plan.event
    seen = [
        [json.loads(line)["simulation_only"]["cohort"] for line in path.read_text().splitlines()]
        for path in (tmp_path / "a/metrics.jsonl", tmp_path / "b/metrics.jsonl")
    ]
    assert sum(seen[1]) < 0.7 * sum(seen[0])


@pytest.mark.parametrize(
    "words, reason",
    [
        (("privacy.adaptive_clip=true",), "counts as half a client within the clip"),
        (
            ("client.objective=scaffold", "data.setting=cross_silo"),
            "assumes that every sampled client takes part",
        ),
    ],
)
def test_what_counts_on_everybody_refuses_absence(words, reason):
    with pytest.raises(Refused, match=reason):
        plan(small(*words, "cohort.availability=daily"))


def test_how_many_have_joined_follows_the_sampler():
    """What SCAFFOLD divides by: once around, everybody has been there exactly once."""
    poisson, cyclic = Cohorts(40, 10.0), Cohorts(40, 10.0, period=4)
    assert [cyclic.joined(rounds) for rounds in (1, 3, 4, 9)] == [10, 30, 40, 40]
    assert poisson.joined(1) == 10
    assert poisson.joined(4) == pytest.approx(40 * (1 - 0.75**4))


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_clients_that_return_do_so_in_their_slot(tmp_path, randomness):
    """States and the slots' key lie side by side under private/, and a resume finds both."""
    words = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0")
    words += ("client.objective=scaffold", "data.setting=cross_silo")
    words += (f"run.randomness={randomness}",)
    trained(tmp_path / "run", *words, "run.rounds=4")
    outcome = resume(tmp_path / "run", lambda stored: stored.with_run(rounds=7))
    assert outcome.updates == 7
    assert outcome.charges == 7
    if randomness == "seeded":
        trained(tmp_path / "whole", *words)
        same_run(tmp_path / "whole", tmp_path / "run")
    names = {path.name for path in (tmp_path / "run/private").iterdir()}
    assert {"settled.f32", "of.txt"} <= names
    assert ("key" in names) == (randomness == "secret")


def test_sites_draw_their_own_clients_whoever_is_elsewhere():
    """By each client's own number: a site alone draws whom it draws among all sites."""
    numbers = np.array([7, 3, 12, 5, 99, 4])
    everybody = Population(np.ones(6, np.int64), numbers, np.array([0, 1, 0, 1, 1, 0]))
    sampler, streams = Poisson(size=3), Streams(8, simulated=True)
    for round in range(1, 30):
        drawn = numbers[sampler.sample(round, 6, everybody, streams).clients]
        apart = []
        for site in (0, 1):
            here = numbers[everybody.sites == site]
            population = Population(np.ones(3, np.int64), here, np.full(3, site))
            apart += here[sampler.sample(round, 6, population, streams).clients].tolist()
        assert sorted(drawn.tolist()) == sorted(apart)


def entering(present, at_sites):
    """The rate at which clients enter, of as many `present`, where eight are declared."""
    population = Population.of(np.ones(present, np.int64))
    if at_sites:
        population = replace(population, sites=np.arange(present) % 2)

    def entered():
        drawn = Poisson(size=2).sample(1, 8, population, Streams(3, key=bytes(32))).clients
        return np.isin(np.arange(present), drawn)

    return entered


@every_case("at_sites", [False, True])
@every_case("present", [3, 8, 11])
def test_clients_enter_at_the_declared_rate_whoever_is_present(present, at_sites):
    """To the last of 2^64 words: 2 of 8 declared, whether fewer or more of them are there."""
    assert_rate(entering(present, at_sites), 0.25)


def rate_of_the_present(monkeypatch):
    real = Poisson.sample
    monkeypatch.setattr(
        Poisson,
        "sample",
        lambda self, number, clients, population, streams: real(
            self, number, len(population), population, streams
        ),
    )


def five_percent_too_often(monkeypatch):
    monkeypatch.setattr("privfed.sampling.samplers.bernoulli", lambda w, q: bernoulli(w, 1.05 * q))
    monkeypatch.setattr(
        "privfed.core.streams.Keys.bernoulli", lambda keys, q, n: bernoulli(keys.bits(n), 1.05 * q)
    )


@every_case("fault", [rate_of_the_present, five_percent_too_often])
@every_case("at_sites", [False, True])
def test_another_rate_is_noticed(fault, at_sites, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        assert_rate(entering(3, at_sites), 0.25)
