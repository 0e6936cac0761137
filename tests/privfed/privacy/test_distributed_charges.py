"""What distributed noise is charged, and the faults that must be caught."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from distributed_noise import (
    DISTRIBUTED,
    KINDS,
    LAYERED,
    SETTING,
    calibrated,
    events,
    variance_of,
    with_variance,
)
from lanes import every_case
from scipy import stats
from small import small

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, ZERO_OUT
from accounting.noises import Gaussian, Skellam
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, noise_of
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.privacy.codec import Codec
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.noise.shares import SMOOTHED, Layers
from privfed.privacy.setting import ClientShares
from privfed.run.prepare import plan_with_length
from privfed.sampling.allocation import Allocation
from privfed.sampling.samplers import CappedPoisson, Cyclic, FixedSize, Full, Poisson
from privfed.secure.committee.protocol import CommitteeSums
from privfed.secure.homomorphic.protocol import Bfv
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted


def test_the_server_is_never_amplified_and_readers_only_where_the_total_is_fixed():
    z = 1.0
    layers = SkellamNoise(noise_multiplier=z, sizing="layers").resolved(SETTING)
    minimum = SkellamNoise(noise_multiplier=z).resolved(SETTING)
    discrete = DiscreteGaussianNoise(noise_multiplier=z).resolved(SETTING)
    for mechanism in (layers, minimum, discrete):
        for sampler in (Poisson(size=20), Full(), FixedSize(size=20)):
            server = events(mechanism, sampler)["server"]
            assert server.relation == ZERO_OUT
            assert isinstance(server.release, Skellam | Gaussian)
    gated = replace(SETTING, against="readers")
    exact = SkellamNoise(noise_multiplier=z, sizing="layers").resolved(gated)
    assert isinstance(events(exact, Poisson(size=20))["readers"].release, PoissonSampled)
    assert events(exact, Poisson(size=20))["readers"].relation == ADD_REMOVE
    for mechanism in (layers, minimum, discrete):  # coarse layers tell how many dropped out
        readers = events(mechanism, Poisson(size=20))["readers"]
        assert isinstance(readers.release, Skellam | Gaussian)
        assert readers.relation == ZERO_OUT
    cyclic = events(minimum, Cyclic(separation=12))["server"]
    assert isinstance(cyclic.release, Separated)
    with pytest.raises(Refused, match="no proof with Skellam"):
        events(minimum, CappedPoisson(size=20))
    capped = events(discrete, CappedPoisson(size=20))
    assert {party: event.relation for party, event in capped.items()} == {
        "server": ZERO_OUT,
        "readers": ZERO_OUT,
    }


@pytest.mark.parametrize(
    "sampler",
    [
        Poisson(size=20),
        CappedPoisson(size=20),
        FixedSize(size=20),
        Full(),
        Cyclic(separation=12),
        Allocation(slots=12),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_exact_gaussian_layers_are_central_noise_to_readers(sampler):
    """With every sampler that has an event for central noise, and that noise's event."""
    setting = replace(SETTING, against="readers", noise=ClientShares(16, 16, 0.75))
    keys = {"noise_multiplier": 1.3, "sizing": "layers"}
    mechanism = DiscreteGaussianNoise(**keys).resolved(setting)
    for exchanges in (1, 4):
        found, grid = events(mechanism, sampler, exchanges=exchanges), mechanism.grid()
        central = CentralGaussian(noise_multiplier=1.0)
        event = central.event(sampler.of(240).witness(0, 240), exchanges)
        readers = found["readers"]
        z = noise_of(readers.release).noise_multiplier / noise_of(event.release).noise_multiplier
        assert with_noise(readers.release) == with_noise(event.release)
        assert readers.relation == event.relation
        steps = 1.3 * mechanism.clip / grid.step
        assert z**2 == pytest.approx((steps / grid.l2) ** 2 * (1 - 4.5 / (steps**2 / 24)))
        assert found["server"].relation == ZERO_OUT
        server = noise_of(found["server"].release)
        assert variance_of(server, grid, exchanges) == pytest.approx(0.75 * (z * grid.l2) ** 2)
        assert isinstance(found["server"].release, Separated | Gaussian), "amplified"
    coarse = DiscreteGaussianNoise(**keys).resolved(replace(setting, against="server"))
    assert events(coarse, sampler)["readers"].relation == ZERO_OUT
    hostile = replace(setting, noise=ClientShares(16, 16, 0.75, 0.875))
    less = DiscreteGaussianNoise(**keys).resolved(hostile)
    assert isinstance(events(less, sampler)["readers"].release, Separated | Gaussian)


def with_noise(release):
    """The release, with a noise multiplier of 1."""
    return Gaussian(1.0) if isinstance(release, Gaussian) else replace(release, of=Gaussian(1.0))


def guaranteed(mechanism):
    """The least variance, in steps, that survivors' shares add up to."""
    setting, share = mechanism._planned_setting(), mechanism.share()
    if isinstance(share, Layers):
        clients = range(setting.clients.counted, setting.cohort.largest + 1)
        every = ((n, gone) for n in clients for gone in range(share.most_dropouts(n) + 1))
        layers_kept = ((n, share.keeping(n, gone, range(gone, n)).values()) for n, gone in every)
        return min(
            sum(share.remaining(n, count).variance for count in each) for n, each in layers_kept
        )
    return setting.clients.minimum * share.variance


def honest_charge(mechanism):
    """The check that every charge has to pass: the noise that is really added, and unknown."""
    setting, grid = mechanism._planned_setting(), mechanism.grid()
    bound = Codec(mechanism.clip, grid.step, grid.length, setting.bits).bound
    found = events(mechanism, Full(), exchanges=3)
    for whom, part in (("server", setting.clients.honest), ("readers", setting.clients.added)):
        release = found[whom].release
        assert isinstance(release, Skellam | Gaussian), f"amplified against the {whom}"
        charged = variance_of(release, replace(grid, l2=bound), exchanges=3)
        assert charged <= part * guaranteed(mechanism) * (1 + 1e-9), f"too much noise: {whom}"
        assert charged >= 0.9 * part * guaranteed(mechanism), "noise is given away"
        if isinstance(release, Skellam):
            assert release.l2 >= bound, "the norm of real rows"
            assert release.l1 >= release.l2 * (1 - 1e-9)
            assert release.exchanges == 3, "passes over one cohort count once"


class AllSurvive:
    """Planted: the noise of more than the guaranteed survivors is counted."""

    def _release(self, counted, exchanges):
        more = self._planned_setting().cohort.expected / 16
        return with_variance(super()._release(counted, exchanges), more)


class EverybodyIsHonest:
    """Planted: the noise of colluders and of hostile clients is counted."""

    def _release(self, counted, exchanges):
        return super()._release(1.0, exchanges)


class ByzantineAddNoise:
    """Planted: against readers, the noise of hostile clients is counted."""

    def events(self, witness, exchanges):
        found = super().events(witness, exchanges)
        whole = replace(found["readers"], release=self._release(1.0, exchanges))
        return {**found, "readers": whole}


class RealClip:
    """Planted: the sensitivity of real rows, not of encoded ones."""

    def _release(self, counted, exchanges):
        release, real = super()._release(counted, exchanges), self.clip / self.grid().step
        if isinstance(release, Gaussian):
            return with_variance(release, (self.grid().l2 / real) ** 2)
        return replace(release, l2=real)


class OnePass:
    """Planted: of a round's exchanges one is charged."""

    def _release(self, counted, exchanges):
        return super()._release(counted, 1)


class SharesBelowThreeSteps:
    """Planted: shares of any size are charged as a Gaussian."""

    def _least_shares(self):
        return 1e9, 1e9


class Amplified:
    """Planted: amplification is claimed against the server."""

    def events(self, witness, exchanges):
        found = super().events(witness, exchanges)
        sampled = PoissonSampled(witness.rate, found["server"].release)
        return {**found, "server": replace(found["server"], release=sampled, relation=ADD_REMOVE)}


@every_case("kind, keys", KINDS.values(), ids=KINDS.keys())
def test_the_real_mechanism_passes_and_planted_faults_are_caught(kind, keys):
    setting = replace(SETTING, bits=12, noise=ClientShares(16, 16, 0.75, 0.875))
    honest_charge(kind(noise_multiplier=1.5, **keys).resolved(setting))
    for fault, said in (
        (AllSurvive, "too much noise: server"),
        (EverybodyIsHonest, "too much noise: server"),
        (ByzantineAddNoise, "too much noise: readers"),
        (RealClip, "the norm of real rows"),
        (OnePass, "count once"),
        (Amplified, "amplified against the server"),
    ):
        if kind is DiscreteGaussianNoise and fault in (RealClip, OnePass):
            said = "too much noise: server"
        broken = type(fault.__name__, (fault, kind), {})(noise_multiplier=1.5, **keys)
        with pytest.raises(AssertionError, match=said):
            honest_charge(broken.resolved(setting))


def is_proved_from_three_steps_on(kind, sizing):
    """The smallest bits with a proof have shares and layers of three steps, and few more do.

    Returns the mechanism at the most bits that are too few.
    """
    refused = None
    for bits in range(8, 24):
        setting = replace(SETTING, bits=bits, noise=ClientShares(16, 16, 0.75))
        mechanism = kind(noise_multiplier=1.5, sizing=sizing).resolved(setting)
        parts = [mechanism.share()]
        if sizing == "layers":
            layers, every = parts[0], range(1, setting.cohort.largest + 1)
            parts = [layers.layer(n, i + 1) for n in every for i in range(layers.count(n))]
            parts += map(layers.base, every)
        least = min(part.variance for part in parts)
        proved = isinstance(mechanism._release(0.75, 1), Gaussian)
        assert least >= 9 or not proved, "shares of less than three steps"
        assert proved or least <= 16 * 9, "many bits are too few"
        refused = refused if proved else mechanism
    return refused


@pytest.mark.parametrize("sizing, what", [("minimum", "share"), ("layers", "layer")])
def test_gaussian_shares_below_three_steps_are_refused_by_name(sizing, what):
    refused = is_proved_from_three_steps_on(DiscreteGaussianNoise, sizing)
    with pytest.raises(Refused, match=rf"a party's {what} .* raise secure.bits.*skellam"):
        refused.noise_on_update(20)
    fault = type("Fault", (SharesBelowThreeSteps, DiscreteGaussianNoise), {})
    with pytest.raises(AssertionError, match="less than three steps"):
        is_proved_from_three_steps_on(fault, sizing)


@pytest.mark.parametrize("bits", [10, 12, 20])
def test_a_part_of_the_charge_covers_that_part_of_the_shares(bits):
    """A later run may assume more colluders: its part of the charged variance is then counted."""
    setting = replace(SETTING, bits=bits, noise=ClientShares(16, 16))
    mechanism = DiscreteGaussianNoise(noise_multiplier=2.0).resolved(setting)
    share, charged = mechanism.share().variance, mechanism._release(1.0, 1)
    assert share >= 9
    for honest in range(1, 17):
        variance = variance_of(with_variance(charged, honest / 16), mechanism.grid())
        assert variance <= honest * share - SMOOTHED


@every_case("kind, keys", KINDS.values(), ids=KINDS.keys())
def test_exchanges_over_one_cohort_cost_as_much_as_each_by_itself(kind, keys):
    mechanism = kind(noise_multiplier=2.0, **keys).resolved(SETTING)
    together = {events(mechanism, Full(), exchanges=3)["server"]: 1}
    apart = {events(mechanism, Full())["server"]: 3}
    assert epsilon(together, 1e-5, "rdp") == pytest.approx(epsilon(apart, 1e-5, "rdp"), rel=1e-9)
    readers = events(mechanism, Poisson(size=20), exchanges=3)["readers"].release
    once = events(mechanism, Poisson(size=20))["readers"].release
    three, one = (
        variance_of(each.of if isinstance(each, PoissonSampled) else each, mechanism.grid())
        / getattr(each, "exchanges", 1)
        for each in (readers, once)
    )
    assert three == pytest.approx(one / 3)


def accepted(part, limits):
    """Of all sums that are not aborted: how many survive, how many of these may collude, and among
    how many the whole of the noise is at least, where it comes in layers."""
    if isinstance(part, Bfv):
        corrupt = max(1, math.floor(part.colluders * limits.size))
        every = range(limits.minimum, limits.capacity + 1)
        return [(survivors, corrupt, 0) for survivors in every]
    policy, found = part.policy(limits.size), []
    committee = isinstance(part, CommitteeSums)
    for clients in range(1, limits.capacity + 1):
        try:
            shape = policy.committee(clients) if committee else policy.graph(clients)
        except Aborted:
            continue
        least = max(shape.survivors, limits.least(clients))
        corrupt = policy.corrupt(clients)
        sharing = clients - limits.missing(clients)
        found += [(survivors, corrupt, sharing) for survivors in range(least, clients + 1)]
    return found


@every_case("byzantine", [0, 4])
@every_case("threshold", [0.5, 0.6, 0.9])
@every_case("tolerance", [0.05, 0.2, 0.5])
@every_case("protocol", ["masks", "masks in layers", "committee", "bfv"])
def test_honest_noise_is_never_less_than_is_charged(threshold, tolerance, protocol, byzantine):
    """By all cohorts and survivors that a protocol accepts, with as many colluders as may be."""
    size, colluders, layered = 40, 0.08, protocol == "masks in layers"
    minimum = 0 if layered else math.ceil((1 - tolerance) * size)
    limits = Limits(
        80,
        minimum,
        tolerance=tolerance if layered else 1.0,
        size=size,
        byzantine=byzantine,
        layered=layered,
    )
    masks = MaskedSums(threshold=threshold, colluders=colluders)
    some = CommitteeSums(threshold=max(threshold, 0.55), colluders=colluders)
    part = {"bfv": Bfv(colluders=colluders), "committee": some}.get(protocol, masks)
    sums = accepted(part, limits)
    assert part.fewest(limits) == min(survivors for survivors, *_ in sums)
    pairs = [((sharing, k), sharing) if layered else ((m, k), minimum) for m, k, sharing in sums]
    honest = min(1.0, *((left - corrupt - byzantine) / of for (left, corrupt), of in pairs))
    added = min(1.0, *((left - byzantine) / of for (left, _), of in pairs))
    assert honest - 0.25 <= part.honest(limits) <= honest + 1e-9
    assert added - 0.25 <= part.added(limits) <= added + 1e-9
    assert part.honest(limits) < 1.0 - byzantine / 80
    assert (part.added(limits) == 1.0) == (byzantine == 0)


def test_of_layers_colluders_know_as_much_as_if_all_were_missing_that_may():
    """Also where the threshold lets none be missing: of 60 clients 3 collude, and know 3 / 30."""
    limits = Limits(80, tolerance=0.5, size=41, layered=True)
    assert MaskedSums(threshold=1.0, colluders=0.05).colluding(limits) >= 3 / 30


def test_hostile_clients_are_taken_off_the_fewest_survivors_of_layers():
    """Of 80 who share keys 64 stay: 16 hostile ones are a quarter of these, and 8 collude."""
    planned = plan(small(*LAYERED, "aggregation.byzantine=16"), length=50)
    whole = plan(small(*LAYERED, "secure.colluders=0.0"), length=50)
    assert planned.mechanism.honest == pytest.approx(1 - 16 / 64 - 8 / 64)
    full = whole.event.release.variance
    assert planned.event.release.variance == pytest.approx(full * 0.625, rel=1e-9)


def test_readers_are_not_protected_by_noise_that_hostile_clients_leave_out():
    """Nor by a secret draw, of which those are told."""
    keys = (*DISTRIBUTED, "data.clients=40", "privacy.against=readers", "secure.colluders=0.1")
    whole, less = (
        plan(small(*keys, f"aggregation.byzantine={count}"), length=50).event.release.variance
        for count in (0, 8)
    )
    assert less == pytest.approx(whole * (1 - 8 / 32), rel=1e-9)
    readers = (*LAYERED, "privacy.against=readers")
    nobody, some = (
        plan(small(*readers, f"aggregation.byzantine={count}"), length=50).event for count in (0, 1)
    )
    assert isinstance(nobody.release, PoissonSampled)
    assert (nobody.relation, some.relation) == (ADD_REMOVE, ZERO_OUT)
    assert some.release.variance == pytest.approx(nobody.release.of.variance * 63 / 64, rel=1e-9)
    asked = (
        "--byzantine",
        "5",
        "--against",
        "readers",
        "--sizing",
        "layers",
        "--population",
        "200",
    )
    flags = ("--mechanism", "skellam", "--cohort", "20", "--rounds", "5", "--bits", "20")
    calibration = calibrated(*flags, *asked, "--dimension", "100", "--noise-multiplier", "2")
    assert json.loads(calibration.stdout)["relation"] == ZERO_OUT


def test_why_noise_that_tells_the_count_is_not_amplified():
    """Of one client more or less: as much noise on both sides is a post-processing, but if a part
    of it depends on the count, many coordinates tell that, whatever anybody contributes."""

    def order_two(variance, other, shift=0):
        """Renyi divergence, by brute force, of one coordinate."""
        at = np.arange(-120, 121)
        first, second = (
            stats.skellam.pmf(at - by, v / 2, v / 2) for v, by in ((variance, shift), (other, 0))
        )
        return math.log(float((first**2 / second).sum()))

    counted, more = 100 * (1 - 4 / 16), 100 * (1 - 4 / 20)
    assert order_two(more, more, shift=3) < order_two(counted, counted, shift=3)
    one_more = 100 * (1 - 4 / 21)
    assert 2**16 * order_two(one_more, more) > 10 * order_two(counted, counted, shift=3)


def test_a_key_holder_knows_its_own_share():
    keys = (*DISTRIBUTED, "secure.protocol=bfv", "secure.simulate=arithmetic", "data.clients=40")
    told = {
        share: plan(small(*keys, f"secure.colluders={share}"), length=50)
        for share in (0.0, 0.01, 0.2)
    }
    assert [round(32 * found.mechanism.honest) for found in told.values()] == [31, 31, 24]
    for share, found in told.items():
        lost = found.event.release.variance / found.other.release.variance
        assert lost == pytest.approx(1 - max(1, 40 * share // 1) / 32, rel=1e-9)
        assert found.guarantee.epsilon > found.other_party(7).epsilon


def test_colluders_and_missing_clients_are_paid_for_in_noise():
    """The calibrated noise per client grows with either."""

    def share(**keys):
        found = plan_with_length(
            small(*DISTRIBUTED, "privacy.epsilon=2.0", *(f"{k}={v}" for k, v in keys.items()))
        )
        return found.mechanism.grid().share * found.mechanism.grid().step

    bare = share(**{"secure.colluders": 0.0, "privacy.tolerance": 0.0})
    missing = share(**{"secure.colluders": 0.0, "privacy.tolerance": 0.5})
    colluding = share(**{"secure.colluders": 0.3, "privacy.tolerance": 0.0})
    assert missing / bare == pytest.approx(math.sqrt(2), rel=1e-2)
    assert colluding / bare == pytest.approx(math.sqrt(2), rel=1e-2)


def test_the_budget_gates_whom_it_names():
    keys = ("data.clients=400", "cohort.size=160", "privacy.epsilon=2.0", "secure.threshold=0.5")
    layered = ("privacy.mechanism=skellam", "secure.protocol=masks", "privacy.sizing=layers")
    by = {
        whom: plan_with_length(small(*keys, *layered, f"privacy.against={whom}"))
        for whom in ("server", "readers")
    }
    for whom, found in by.items():
        assert found.guarantee.epsilon == pytest.approx(2.0, abs=0.01)
        assert found.guarantee.against == whom
    assert by["server"].noise_multiplier > 1.5 * by["readers"].noise_multiplier
    assert by["readers"].event.slack >= by["readers"].cost.aborts > 0
    other = by["server"].other
    assert isinstance(other.release, Skellam), "coarse layers: nothing is amplified"
