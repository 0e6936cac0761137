"""Noise that sites make up: its scale, what is charged for it, and who has to add it."""

import math

import numpy as np
import pytest
import torch
from distributed_noise import variance_of
from helpers import assert_normal
from lanes import every_case
from sites import FIVE, KINDS, LENGTH, opened, setting
from small import small

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.noises import Gaussian, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites, noise_of
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.privacy.noise.shares import SMOOTHED
from privfed.privacy.setting import SiteNoise, whole_sites
from privfed.sampling.cohort import over_several_sites, sampled_at_sites
from privfed.sampling.samplers import CappedPoisson, Cyclic, FixedSize, Full, Poisson
from privfed.secure.limits import Leaves
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Session

ROUNDS = 300
GONE = (0, 0, Leaves.BEFORE_MASKING, 0, 0)


def witness(sampler, clients=80):
    return sampler.of(clients).witness(1, clients)


def totals(mechanism, leaves=(), rounds=ROUNDS, noise=FIVE):
    """The sums of nobody's rows `[rounds, length]`: the noise of sites, in clips."""
    sums = []
    for round in range(rounds):
        closed = opened(mechanism, round, leaves, noise=noise).close()
        sums.append(closed.total.numpy() / mechanism.clip)
    return np.stack(sums)


@every_case("kind", KINDS)
@every_case("leaves", [(), GONE])
def test_sites_add_their_shares_also_where_nobody_was_drawn(kind, leaves):
    """Of m survivors the total is z^2 m / 3 by minimum, z^2 m / (m - 1) in layers (§9.5)."""
    z, survivors = 1.5, 5 - (Leaves.BEFORE_MASKING in leaves)
    mechanism = KINDS[kind](z).resolved(setting())
    counted = survivors - 1 if "layers" in kind else 3
    drawn = totals(mechanism, leaves)
    assert_normal(drawn, z * math.sqrt(survivors / counted))
    with pytest.raises(AssertionError):
        assert_normal(drawn, z * math.sqrt(survivors / counted) * 1.1)
    with pytest.raises(AssertionError):
        assert_normal(drawn, z * math.sqrt(survivors / counted) / 1.1)


@every_case("kind", KINDS)
def test_what_is_charged_is_the_noise_of_honest_sites_alone(kind):
    """The noise of H on an encoded row: (z C / step)^2 in all, against one share for the others."""
    z = 1.5
    mechanism = KINDS[kind](z).resolved(setting())
    grid = mechanism.grid()
    events = mechanism.events(witness(Poisson(size=20)), 1)
    for party, part in {"sites": 1.0, "others": 1 / (4 if "layers" in kind else 3)}.items():
        event = events[party]
        assert event.relation == ADD_REMOVE
        assert isinstance(event.release, PoissonSampled)
        assert event.release.rate == 0.25
        noise = event.release.of
        added = part * (z * mechanism.clip / grid.step) ** 2
        least = 0.0 if isinstance(noise, Skellam) else SMOOTHED / mechanism._least_shares()[0]
        assert variance_of(noise, grid) == pytest.approx(added * (1 - least), rel=1e-9)
        if isinstance(noise, Skellam):
            assert (noise.l2, noise.l1) == (grid.l2, grid.l1)
    assert mechanism.event(witness(Poisson(size=20)), 1) == events["sites"]


def test_with_everybody_taking_part_nothing_is_amplified():
    mechanism = KINDS["minimum"](1.0).resolved(setting())
    event = mechanism.event(witness(Full()), 1)
    assert event.relation == ZERO_OUT
    assert isinstance(event.release, Skellam)


@every_case("sampler", [CappedPoisson(size=20), FixedSize(size=20), Cyclic(separation=4)])
def test_other_draws_inside_sites_have_no_proof(sampler):
    mechanism = KINDS["minimum"](1.0).resolved(setting())
    with pytest.raises(Refused, match="sites sample their own clients"):
        mechanism.event(witness(sampler), 1)


def test_the_samplers_total_variation_is_that_of_sites_and_not_of_clients():
    few = KINDS["minimum"](1.0).resolved(setting(size=20))
    many = KINDS["minimum"](1.0).resolved(setting(size=2000))
    layered = KINDS["layers"](1.0).resolved(setting())
    slack = few.event(witness(Poisson(size=20)), 1).slack
    assert slack == many.event(witness(Poisson(size=2000), 8000), 1).slack
    assert slack >= 5 * LENGTH * few.share().total_variation > 0
    assert layered.event(witness(Poisson(size=20)), 1).slack == pytest.approx(5 * slack)
    assert few.event(witness(Poisson(size=20)), 3).slack == pytest.approx(3 * slack)


def test_a_client_at_several_sites_is_charged_for_coins_apart():
    """§9.4: Gaussian noise by its dominating mixture, Skellam by a split."""
    apart = over_several_sites(witness(Poisson(size=20)), 3)
    assert apart.sampled(Gaussian(2.0)) == SeveralSites(0.25, 3, Gaussian(2.0))
    whole = Skellam(900.0, 5.0, 15.0)
    split = sampled_at_sites(apart, whole).release
    assert split == Repeated(3, PoissonSampled(0.25, Skellam(300.0, 5.0, 15.0)))
    mixture = sampled_at_sites(apart, Gaussian(2.0)).release
    assert mixture == SeveralSites(0.25, 3, Gaussian(2.0))
    # Noise that each site adds to its own sum is whole at each of them.
    each = sampled_at_sites(apart, Gaussian(2.0), alone=True).release
    assert each == Repeated(3, PoissonSampled(0.25, Gaussian(2.0)))
    with pytest.raises(Refused, match="several sites"):
        over_several_sites(witness(Full()), 2)
    assert over_several_sites(witness(Poisson(size=20)), 1).sampled(Gaussian(2.0)) == (
        PoissonSampled(0.25, Gaussian(2.0))
    )


def test_k_is_whole_sites_and_never_none():
    assert [whole_sites(part, 5) for part in (0.0, 0.1, 0.2, 0.21, 0.4)] == [1, 1, 1, 2, 2]
    assert whole_sites(0.1, 30) == 3
    assert whole_sites(2 / 30, 30) == 2


def test_layers_leave_the_others_their_whole_noise_whoever_is_missing():
    """Honest sites keep v at least, exactly v where all k colluders stay (§9.5)."""
    noise = SiteNoise(sites=7, minimum=5, colluders=2)
    layers = noise.layers(100.0, "discrete_gaussian")
    assert layers.count(7) == 2
    for gone in range(3):
        variance = layers.remaining(7, layers.layers_kept(7, gone)).variance
        parts = layers.base(7).variance + sum(
            layers.layer(7, number).variance for number in range(1, gone + 1)
        )
        assert variance == pytest.approx(parts)
        survivors = 7 - gone
        assert variance * (survivors - 2) == pytest.approx(100.0)
        assert variance * survivors == pytest.approx(
            100.0 * noise.added_by(survivors, layered=True)
        )


def local(z=1.5, clip=0.3, noise=FIVE):
    return LocalGaussian(clip=clip, noise_multiplier=z).resolved(setting(noise))


def site_sum(mechanism, rows, site_of, round=1, sites=1, simulated=True):
    session = Session(
        round,
        0,
        b"",
        np.arange(sites),
        streams=Streams(4, simulated=simulated),
        sites=np.array(site_of, dtype=np.int64),
    )
    accumulator = PlainSum().open(session, rows.shape[1], mechanism.encoding({}))
    accumulator.add(np.arange(len(rows)), mechanism.bound(rows, None, None, {}))
    return accumulator.close().total.numpy()


def test_noise_of_each_site_has_the_charged_scale_on_its_own_sum():
    mechanism = local()
    event = mechanism.event(witness(Poisson(size=20)), 1)
    assert event.release == PoissonSampled(0.25, Gaussian(1.5))
    assert event.relation == ADD_REMOVE
    rows = torch.zeros(3, 40)
    one = np.stack([site_sum(mechanism, rows, (0, 0, 0), round) for round in range(300)])
    assert_normal(one, noise_of(event.release).noise_multiplier * 0.3)
    three = [site_sum(mechanism, rows, (0, 1, 1), round, sites=3) for round in range(300)]
    assert_normal(np.stack(three), 1.5 * 0.3 * math.sqrt(3))
    with pytest.raises(AssertionError):
        assert_normal(np.stack(three), 1.5 * 0.3)


def test_a_client_moves_its_sites_sum_by_one_clip_at_most():
    mechanism = local()
    rows = torch.full((1, 50), 9.0)
    with_row, without = site_sum(mechanism, rows, (0,)), site_sum(mechanism, 0 * rows, (0,))
    moved = float(np.linalg.norm(with_row - without))
    assert 0.29 < moved <= 0.3
    unclipped = BoundedRows(rows, math.inf)
    session = Session(1, 0, b"", np.arange(1), sites=np.zeros(1, dtype=np.int64))
    accumulator = PlainSum().open(session, 50, mechanism.encoding({}))
    with pytest.raises(ValueError, match="the norm bound of rows is"):
        accumulator.add(np.arange(1), unclipped)


def test_noise_of_clients_stays_theirs_where_clients_are_the_parties():
    keys = ("privacy.mechanism=local_gaussian", "data.sites=3", "secure.parties=clients")
    assert plan(small(*keys)).event.relation == REPLACE_ONE
    at_sites = plan(small(*keys[:2]))
    assert at_sites.event.relation == ADD_REMOVE
    assert isinstance(at_sites.event.release, PoissonSampled)
