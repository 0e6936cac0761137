"""The direct test of a mechanism: it passes what is shipped, and catches each planted fault."""

from dataclasses import replace

import numpy as np
import pytest
from lanes import FULL, every_case, mostly_slow

from accounting.empirical import claimed_releases
from accounting.empirical.claimed_releases import claimed_points
from accounting.empirical.release_scores import linear_scores
from accounting.empirical.two_sample import judge
from accounting.events import ADD_REMOVE, Event
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, Repeated, noise_of
from privfed.analytics.describe import DescriptionRequest
from privfed.analytics.release import release_run
from privfed.auditing.mechanism_audit import audit_mechanism, examine, measured_noise
from privfed.auditing.scenarios import LENGTH, plan_of_mechanism, scenarios_of
from privfed.auditing.slot_evidence import SlotEvidence
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.world import World
from privfed.sampling.allocation import Allocation
from privfed.sampling.cohort import Cohort
from privfed.sampling.samplers import Poisson

BASE = ("data.clients=20", "cohort.size=10", "privacy.noise_multiplier=1.0", "privacy.clip=0.4")
MASKS = (
    "secure.protocol=masks",
    "cohort.sampler=full",
    "cohort.size=0",
    "data.clients=12",
    "run.rounds=3",
)
HALF = ("secure.threshold=0.5",)
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=4", "cohort.size=0")
SHIPPED = {
    "central": (),
    "adaptive": ("privacy.adaptive_clip=true", "privacy.count_noise=2.0"),
    "without replacement": ("cohort.sampler=fixed_size",),
    "truncated": ("cohort.sampler=truncated_poisson",),
    "passes": ("aggregation.rule=geometric_median", "aggregation.passes=3"),
    "several exchanges": ("client.objective=feddane",),
    "exchanges of a compression": ("compression.name=power_sgd",),
    "local": ("privacy.mechanism=local_gaussian",),
    "matrix": ("privacy.mechanism=banded", "privacy.bands=3", *CYCLIC),
    "buffers": ("privacy.mechanism=blt", *CYCLIC),
    "allocation": ("cohort.sampler=allocation", "cohort.slots=4", "cohort.size=0"),
    "bands in groups": (
        *("cohort.sampler=allocation", "cohort.slots=4", "cohort.size=0"),
        *("privacy.mechanism=banded", "privacy.bands=2"),
    ),
    "masks": MASKS,
    "skellam": ("privacy.mechanism=skellam", *MASKS),
    "layers": ("privacy.mechanism=skellam", "privacy.sizing=layers", *MASKS),
    "Gaussian shares": ("privacy.mechanism=discrete_gaussian", *MASKS),
    "Gaussian layers": ("privacy.mechanism=discrete_gaussian", "privacy.sizing=layers", *MASKS),
    "adaptive shares": (
        *("privacy.mechanism=discrete_gaussian", "privacy.adaptive_clip=true"),
        *("privacy.count_noise=2.0", *MASKS),
    ),
}


@pytest.fixture(autouse=True)
def few_points(request, monkeypatch):
    """Claims are held against few points of their profiles; in the slow lane, against many."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(claimed_releases, "_DELTAS", (1e-3, 0.1, 0.2, 0.4))


def configured(*overrides):
    return scenarios_of(plan_of_mechanism(load(None, [*BASE, *overrides])))


def judged(algorithm, scenarios, releases=1000):
    return examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)


ALIKE = (
    "passes",
    "several exchanges",
    "exchanges of a compression",
    "bands in groups",
    "layers",
    "Gaussian layers",
)
"""What has its mechanism and its sampler in common with others."""


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ALIKE])
def test_what_is_shipped_keeps_its_claims(name):
    algorithm, scenarios = configured(*SHIPPED[name])
    keeps_its_claims(judged(algorithm, scenarios[::2], 24))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_in_many_releases_what_is_shipped_keeps_its_claims(name):
    keeps_its_claims(judged(*configured(*SHIPPED[name]), 3000))


def keeps_its_claims(found):
    assert not found.refuted
    assert found.p_value > 1e-3
    assert all(one.verdict.epsilon_lower <= one.epsilon for one in found.tested)


class Noisy(CentralGaussian):
    """With `part` of the noise that it is charged for."""

    part: float = 1.0

    def release(self, total, divisor, keys, state):
        honest = super().release(total, divisor, keys, state)[0].double()
        exact = total.total / divisor
        return (exact + self.part * (honest - exact)).float(), state


class Unclipped(CentralGaussian):
    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows, self.clip)


class ClipsTheSum(CentralGaussian):
    """Rows enter weighted and unclipped; their sum is clipped, as if that bounded one client."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows, self.clip)

    def release(self, total, divisor, keys, state):
        clipped = clip_rows(total.total[None].float(), self.clip).rows[0].double()
        return super().release(replace(total, total=clipped), divisor, keys, state)


class WeighsClipped(CentralGaussian):
    """Rows are multiplied by two after they were clipped."""

    def bound(self, rows, layout, keys, state):
        bounded = super().bound(rows, layout, keys, state)
        return BoundedRows(2 * bounded.rows, bounded.bound)


class CountsPassesApart(CentralGaussian):
    """Passes over one cohort, charged as if each had drawn its own."""

    def event(self, witness, exchanges):
        once = PoissonSampled(witness.rate, noise_of(super().event(witness, 1).release))
        return Event(Repeated(exchanges, once), "poisson")


class FixedAsPoisson(Poisson):
    """Draws exactly `size`, and claims coins."""

    def sample(self, round, clients, population, streams):
        words = streams.at("cohort", round).bits(len(population))
        return Cohort(
            round,
            np.sort(np.argsort(words)[: self.size]),
            float(self.size),
            self.witness(round, clients),
        )


class SharesTheSeed(Poisson):
    """Draws the cohort from the words that the noise is made of."""

    def sample(self, round, clients, population, streams):
        inclusion = streams.at("noise/0", round).bernoulli(self.size / clients, len(population))
        return Cohort(
            round, np.flatnonzero(inclusion), float(self.size), self.witness(round, clients)
        )


def faulty(kind, **changes):
    algorithm, scenarios = configured()
    mechanism = kind(**{**algorithm.mechanism.model_dump(), **changes})
    return replace(algorithm, mechanism=mechanism), scenarios


@pytest.mark.parametrize(
    ("kind", "scenario", "releases"),
    [
        (Unclipped, 0, 300),
        pytest.param(Unclipped, 0, 600, marks=pytest.mark.slow),
        pytest.param(ClipsTheSum, 3, 1500, marks=pytest.mark.slow),
        (WeighsClipped, 1, 800),
    ],
)
def test_a_wrong_bound_is_refuted(kind, scenario, releases):
    algorithm, scenarios = faulty(kind)
    assert judged(algorithm, scenarios[scenario : scenario + 1], releases).refuted
    honest, _ = configured()
    assert not judged(honest, scenarios[scenario : scenario + 1], 200).refuted


@FULL
@pytest.mark.parametrize("part", [0.5, 0.8, 1.0])
def test_too_little_noise_is_refuted(part, full):
    algorithm, scenarios = faulty(Noisy, part=part)
    assert judged(algorithm, scenarios[:1], 300 if full else 150).refuted == (part < 1.0)


@FULL
@pytest.mark.parametrize(
    ("name", "part"),
    mostly_slow(
        [(name, part) for name in ("matrix", "buffers", "bands in groups") for part in (0.8, 1.0)],
        *(("matrix", 0.8), ("buffers", 0.8), ("bands in groups", 0.8), ("buffers", 1.0)),
    ),
)
def test_too_little_correlated_noise_is_refuted(name, part, full, monkeypatch):
    algorithm, scenarios = configured(*SHIPPED[name])
    kind = type(algorithm.mechanism)
    real = kind.std
    monkeypatch.setattr(kind, "std", lambda self: part * real(self))
    audited = judged(algorithm, scenarios[:1], 300 if full else 200)
    assert audited.refuted == (part < 1.0)
    assert audited.noise == pytest.approx(part, abs=0.05)


@pytest.mark.parametrize("mechanism", ["skellam", "discrete_gaussian"])
def test_noise_that_counts_on_clients_who_drop_out_is_refuted(mechanism):
    algorithm, scenarios = configured(
        f"privacy.mechanism={mechanism}", "privacy.tolerance=0.5", *MASKS, *HALF
    )
    known = algorithm.mechanism._setting
    assert scenarios[0].others + 1 == known.clients.minimum == 6
    assert not judged(algorithm, scenarios[:1], 80).refuted
    shares = algorithm.mechanism.resolved(replace(known, noise=replace(known.clients, minimum=12)))
    for_all = replace(algorithm, mechanism=shares)
    assert judged(for_all, scenarios[:1], 80).refuted


@pytest.mark.parametrize("fresh", mostly_slow([True, False], False))
def test_noise_that_rounds_share_is_refuted(fresh, monkeypatch):
    """In every release fresh, and in its second round that of its first."""
    if not fresh:
        monkeypatch.setattr(World, "noise", lambda world, *_: world.streams.at("noise/0", 1))
    algorithm, scenarios = configured()
    assert judged(algorithm, scenarios[2:3], 300).refuted == (not fresh)


@pytest.mark.parametrize(
    ("sampler", "releases"),
    [(FixedAsPoisson, 600), *mostly_slow([(FixedAsPoisson, 2500), (SharesTheSeed, 2500)])],
)
def test_a_wrong_sampler_is_refuted(sampler, releases):
    algorithm, scenarios = configured("cohort.size=6")
    wrong = replace(algorithm, sampler=sampler(size=6))
    assert judged(wrong, scenarios[1:2], releases).refuted


ALLOCATED = ("cohort.sampler=allocation", "cohort.slots=5", "cohort.size=0")


class FixedSlots(Allocation):
    """Each client has the slot of the first epoch in every one: slots are used again."""

    def sample(self, round, clients, population, streams):
        return super().sample((round - 1) % self.slots + 1, clients, population, streams)


class CutShuffle(Allocation):
    """A random order of all clients is cut into cohorts, as large as each other."""

    def sample(self, round, clients, population, streams):
        epoch, place = divmod(round - 1, self.slots)
        words = streams.at("slots/epoch", epoch).bits(len(population))
        present = np.sort(np.argsort(words)[place :: self.slots])
        witness = self.witness(round, clients)
        return Cohort(round, present, clients / self.slots, witness)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "scenario"), [(FixedSlots, 2), (CutShuffle, 3)])
def test_slots_that_are_not_fresh_or_not_independent_are_refuted(sampler, scenario):
    algorithm, scenarios = configured(*ALLOCATED, "privacy.noise_multiplier=0.5")
    assert scenarios[scenario].rounds == 20
    wrong = replace(algorithm, sampler=sampler(slots=5).of(20))
    assert judged(wrong, scenarios[scenario : scenario + 1], 1500).refuted
    assert not judged(algorithm, scenarios[scenario : scenario + 1], 1500).refuted


def played(slots_of_epochs, fewer_elsewhere, releases=20_000, rng=0, b=5, z=0.5):
    """Releases without the target and with it `[2, n, rounds]` along and across its direction."""
    rng = np.random.default_rng(rng)
    sides = []
    for member in (False, True):
        slots = slots_of_epochs(rng, releases)
        epochs = slots.shape[1]
        along, across = z * rng.normal(size=(2, releases, epochs, b))
        at = slots[:, :, None]
        if member:
            np.put_along_axis(along, at, np.take_along_axis(along, at, 2) + 1, 2)
        if fewer_elsewhere:
            np.put_along_axis(across, at, np.take_along_axis(across, at, 2) - 1, 2)
        sides.append([each.reshape(releases, -1) for each in (along, across)])
    return sides


@every_case(
    ("slots", "fewer", "refuted"),
    [
        (lambda rng, n: rng.integers(5, size=(n, 4)), False, False),
        (lambda rng, n: rng.integers(5, size=(n, 1)).repeat(4, axis=1), False, True),
        (lambda rng, n: rng.integers(5, size=(n, 2)).repeat(2, axis=1), False, True),
        (lambda rng, n: rng.integers(5, size=(n, 4)), True, True),
    ],
    ids=["fresh", "fixed", "used-twice", "cut-shuffle"],
)
def test_what_releases_say_of_slots_refutes_what_is_not_fresh_or_can_be_read(slots, fewer, refuted):
    drawn = RandomAllocation(5, 1, Gaussian(0.5))
    sides = played(slots, fewer)
    evidence = SlotEvidence(drawn, 0.5, np.ones(1))
    scores0, scores1 = linear_scores(*(evidence.of(*side) for side in sides))
    event = Event(drawn, "allocation", ADD_REMOVE)
    verdict = judge(scores0, scores1, 1e-4, 0.95, list(claimed_points(event, 20, 1e-4)))
    assert (verdict.p_value < 1e-6) == refuted
    assert refuted or verdict.p_value > 0.01


def test_evidence_of_bands_is_the_likelihood_ratio_of_noise_made_independent():
    """One epoch of two slots in each of two groups, by matrices."""
    rng, c, z = np.random.default_rng(3), np.array([1.0, 0.5]), 0.8
    drawn = RandomAllocation(4, 2, Gaussian(z))
    along = rng.normal(size=(5, 4))
    matrix = np.eye(4) + 0.5 * np.eye(4, k=-1)
    filtered = along @ matrix.T
    each = (filtered @ matrix - (matrix**2).sum(0) / 2) / z**2
    groups = [np.logaddexp(each[:, g], each[:, g + 2]) for g in (0, 1)]
    numbers = SlotEvidence(drawn, z, c).of(along, np.zeros((5, 4)))
    np.testing.assert_allclose(numbers[:, 0, 0], np.logaddexp(*groups))


@FULL
def test_passes_over_one_cohort_charged_apart_are_refuted(full):
    algorithm, scenarios = configured("aggregation.rule=geometric_median", "aggregation.passes=4")
    charged = CountsPassesApart(**algorithm.mechanism.model_dump())
    releases = 1000 if full else 100
    assert not judged(algorithm, scenarios[1:2], releases).refuted
    assert judged(replace(algorithm, mechanism=charged), scenarios[1:2], releases).refuted


def test_the_p_value_of_honest_noise_is_one():
    """Few releases, many times: no more of them are below a level than it says."""
    algorithm, _ = configured("privacy.noise_multiplier=2.0")
    rng = np.random.default_rng(0)
    found = np.array(
        [
            measured_noise(2.0 * rng.normal(size=(20, LENGTH)), algorithm, algorithm.event(1))
            for _ in range(4000)
        ]
    )
    assert found[:, 0].mean() == pytest.approx(1.0, abs=0.01)
    for level in (0.5, 0.1, 0.01):
        expected = 4000 * level
        assert abs((found[:, 1] < level).sum() - expected) < 5 * expected**0.5


@pytest.mark.parametrize("name", ["several exchanges", "exchanges of a compression"])
def test_what_is_tested_is_charged_as_the_run_is(name):
    config = load(None, [*BASE, *SHIPPED[name]])
    assert plan_of_mechanism(config).event == plan(config).event
    assert scenarios_of(plan_of_mechanism(config))[0].exchanges == 2


def test_what_claims_nothing_is_not_tested():
    with pytest.raises(Refused, match=r"claims no finite epsilon.*set privacy\.mechanism"):
        audit_mechanism(load(None, ["privacy.mechanism=none"]))


def test_in_secret_mode_every_release_draws_afresh():
    config = load(None, [*BASE, "audit.confidence=0.9"])
    audited, again = audit_mechanism(config, 40), audit_mechanism(config, 40)
    assert audited.confidence == 0.9
    assert audited.noise != again.noise
    assert not audited.refuted
    told = audited.to_json()
    assert [one["scene"] for one in told["scenes"]] == [one.scenario for one in audited.tested]
    assert set(told["scenes"][0]) >= {"epsilon", "delta", "epsilon_lower_bound", "p_value"}


@FULL
@pytest.mark.parametrize("name", ["central", "skellam"])
def test_a_description_keeps_its_claim(name, full, tmp_path):
    from description_setup import run_file

    overrides = SHIPPED[name] if name == "skellam" else ()
    asking = DescriptionRequest(2.0, None, ("age",))
    chosen = [each for each in overrides if not each.startswith(("data.clients", "run."))]
    config = release_run(run_file(tmp_path, clients=12), chosen, asking)
    algorithm, scenarios = scenarios_of(plan_of_mechanism(config))
    assert not judged(algorithm, scenarios, 60 if full else 24).refuted
    if name == "central":  # a planted fault: every client is counted twice
        twice = WeighsClipped(**algorithm.mechanism.model_dump())
        assert judged(replace(algorithm, mechanism=twice), scenarios[1:2], 800).refuted
