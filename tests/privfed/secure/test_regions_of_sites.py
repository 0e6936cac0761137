"""Regions whose parties are sites: the noise that counts, dropouts, refusals, and runs."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lanes import every_case
from masked_sums import STREAMS, codec
from scipy import stats
from small import model, small, trained

import privfed
from privfed.auditing.run_audit import audit
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.plan.sum_limits import configured_limits
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.distributed import SkellamNoise
from privfed.privacy.setting import CohortSize, Setting
from privfed.report.plan_sums import secure_rows
from privfed.run.forecast import forecast
from privfed.run.prepare import prepare
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.limits import SENDS, leaving
from privfed.secure.regional.channel import split
from privfed.secure.regional.protocol import RegionalSums
from privfed.secure.summation import Aborted, Session

TWO_OF_THREE = ("data.sites=6", "secure.protocol=regions", "secure.regions=2", "secure.minimum=4")
THREE_OF_FOUR = (
    "data.sites=12",
    "secure.protocol=regions",
    "secure.regions=3",
    "secure.minimum=6",
    "secure.threshold=0.5",
)
HALF = ("secure.minimum=9", "secure.colluders=0.4")
NOISY = ("privacy.mechanism=skellam", "data.clients=48", "cohort.size=16")


def configured(*keys):
    """The protocol and the limits of a run over regions of sites."""
    config = small(*NOISY, *keys)
    return config.protocol, configured_limits(config)


def session(limits, leaves=(), clients=0):
    return Session(
        1,
        0,
        b"h" * 32,
        np.arange(limits.sites),
        np.array(leaves, dtype=np.int64),
        STREAMS,
        sites=np.arange(clients) % limits.sites,
    )


def members(limits, part):
    return [each.clients.tolist() for each in split(session(limits), part.regions)]


# --- noise ---


def least_honest(part, limits):
    """The fewest honest sites in what the server subtracts nothing from: every possible total.

    Of every set of T or more regions, any f or more of each region's sites survive, the sums of k
    regions are known, and so is the noise of as many sites of each region as may collude.
    """
    region, top = part.region_limits(limits), part.top_limits(limits)
    sizes = []
    for included in range(top.minimum, part.regions + 1):
        survivors = range(region.minimum, region.sites + 1)
        for staying in itertools.product(survivors, repeat=included):
            unknown = sorted(count - region.colluders for count in staying)
            sizes.append(sum(unknown[: included - top.colluders]))
    return min(sizes), region.minimum - region.colluders


@every_case("keys", [TWO_OF_THREE, THREE_OF_FOUR, (*THREE_OF_FOUR, *HALF)])
def test_the_noise_that_counts_is_that_of_the_fewest_honest_sites(keys):
    part, limits = configured(*keys)
    for_server, for_coordinator = least_honest(part, limits)
    assert part.site_noise(limits).counted == for_server > 0
    alone = part.model_copy(update={"coordinators": "curious"})
    assert alone.site_noise(limits).counted == for_coordinator


def test_counting_colluding_coordinators_regions_would_be_noticed(monkeypatch):
    part, limits = configured(*THREE_OF_FOUR)
    monkeypatch.setattr(RegionalSums, "_counted_regions", part.least_regions)
    assert part.site_noise(limits).counted > least_honest(part, limits)[0]


def test_a_minimum_over_all_sites_instead_of_each_region_would_be_noticed(monkeypatch):
    part, limits = configured(*THREE_OF_FOUR)
    monkeypatch.setattr(RegionalSums, "site_noise", SecureProtocol.site_noise)
    assert part.site_noise(limits).counted > least_honest(part, limits)[0]


def honest_total(part, limits, factor, length=4000):
    """The noise of the fewest honest sites, and the variance (z C)^2 that the charge counts.

    Each site adds the share of a noise multiplier that is `factor` times that of the charge.
    """
    noise = part.site_noise(limits)
    counts = CohortSize(16, 48)
    setting = Setting(cohort=counts, noise=noise, bits=32, length=length, against="sites")
    mechanism = SkellamNoise(noise_multiplier=2.0, clip=1.0).resolved(setting)
    weak = mechanism.at(2.0 * factor)
    share = weak.encoding(weak.init()).noise
    honest = [each[: noise.minimum - noise.colluders] for each in members(limits, part)]
    remaining = np.array([site for each in honest[: noise.regions] for site in each])
    keys = STREAMS.at("noise/site/0", 1, remaining).each()
    return sum(share.draw(each, length) for each in keys), (2.0 / weak.grid().step) ** 2


@every_case("keys", [TWO_OF_THREE, THREE_OF_FOUR])
def test_honest_sites_add_the_variance_that_is_charged(keys):
    part, limits = configured(*keys)
    for factor, enough in ((1.0, True), (0.7, False)):
        rows, variance = honest_total(part, limits, factor)
        statistic = (rows.astype(float) ** 2).sum() / variance
        assert bool(stats.chi2.cdf(statistic, len(rows)) > 1e-6) is enough


def test_more_colluding_sites_lower_the_charge_as_in_their_region():
    planned = plan(small(*NOISY, *THREE_OF_FOUR), length=21)
    (noise,) = planned.assumed.noise
    assert (noise.size, noise.minimum, noise.colluders_tolerated) == (12, 3, 1)
    assert noise.part("sites", 1, 0) == pytest.approx(2 / 3)


# --- sums ---


def summed(part, limits, leaves):
    """The total of rows that name their site, and the number of surviving sites; None: aborted."""
    try:
        of = session(limits, leaves, clients=limits.sites)
        summation = part.over(limits)
        encoder = codec(length=limits.sites)
        channel = summation.channel(of, encoder, None)
        for site in of.senders.tolist():
            channel.send(site, np.eye(limits.sites, dtype=np.int64)[site])
        return channel.total()
    except Aborted:
        return None


def test_arithmetic_includes_the_regions_that_messages_include():
    part, limits = configured(*THREE_OF_FOUR, "secure.minimum=4")
    results = set()
    for seed in range(30):
        leaves = leaving(0.35, Streams(seed, True).at("dropout/0", 1, np.arange(12)), 12)
        both = [summed(part, replace(limits, arithmetic=each), leaves) for each in (False, True)]
        assert (both[0] is None) == (both[1] is None)
        if both[0] is None:
            results.add("abort")
            continue
        assert np.array_equal(both[0][0], both[1][0])
        assert both[0][1] == both[1][1] == int(both[0][0].sum())
        sends = np.isin(leaves, SENDS)
        regions = [np.isin(np.arange(12), each) for each in members(limits, part)]
        included = [bool(both[0][0][of & sends].any()) for of in regions]
        assert sum(included) >= part.least_regions
        for of, counts in zip(regions, included, strict=True):
            assert np.array_equal(both[0][0][of], sends[of] * counts)
        results.add("all" if all(included) else "less")
    assert results == {"abort", "all", "less"}


def test_the_probability_of_aborts_is_bounded_and_not_by_much():
    part, limits = configured(*THREE_OF_FOUR)
    limits = replace(limits, arithmetic=True)
    stopped, turns = 0, 500
    for seed in range(turns):
        leaves = leaving(0.2, Streams(seed, True).at("dropout/0", 1, np.arange(12)), 12)
        stopped += summed(part, limits, leaves) is None
    bound = part.over(limits).abort_probability(12, 0.2)
    assert stats.binomtest(stopped, turns, min(1.0, bound), alternative="greater").pvalue > 1e-6
    assert 0 < stopped / turns < bound < 4 * stopped / turns


def test_every_site_is_in_one_of_equal_regions_by_its_number_alone():
    part, limits = configured(*TWO_OF_THREE)
    assert members(limits, part) == [[0, 2, 4], [1, 3, 5]]


# --- refusals and runs ---


@every_case(
    "keys, reason",
    [
        ((*TWO_OF_THREE, "secure.regions=4"), "data.sites is 6, but the 4 regions have equal"),
        ((*TWO_OF_THREE, "data.sites_per_client=2"), "a coordinator opens the sum of a part"),
        ((*TWO_OF_THREE, "privacy.sizing=layers"), "layers"),
        ((*TWO_OF_THREE, "secure.minimum=2"), "expected a number from 4"),
        ((*THREE_OF_FOUR, "secure.minimum=10"), "2 of 3 regions, and these have 8 sites"),
        ((*TWO_OF_THREE, "secure.colluders=0.6"), "at least 6 surviving|data.sites is 6|regions"),
        ((*TWO_OF_THREE, "cohort.sampler=fixed_size"), "no proof if sites sample"),
    ],
)
def test_what_has_no_proof_is_refused_before_any_client_trains(tmp_path, keys, reason):
    with pytest.raises(Refused, match=reason):
        trained(tmp_path / "run", *NOISY, *keys)
    assert not (tmp_path / "run").exists()


def test_central_noise_over_regions_of_sites_is_that_over_sites(tmp_path):
    keys = ("data.sites=6", "data.clients=48", "cohort.size=16", "run.randomness=seeded")
    trained(tmp_path / "flat", *keys, "secure.protocol=masks")
    trained(tmp_path / "regions", *keys, "secure.protocol=regions")
    flat, regions = model(tmp_path / "flat"), model(tmp_path / "regions")
    assert all(torch.equal(flat[name], regions[name]) for name in flat)


@every_case("keys", [TWO_OF_THREE, (*THREE_OF_FOUR, "cohort.dropout=0.1")])
def test_a_run_over_regions_of_sites_ends_and_its_audit_agrees(tmp_path, keys):
    trained(tmp_path / "run", *NOISY, *keys, "run.rounds=2")
    checked = audit(tmp_path / "run")
    assert checked.problems == ()
    assert checked.guarantee.epsilon < math.inf
    assert checked.other.epsilon < math.inf


def test_a_plan_states_each_level_and_warns_of_a_single_sites_noise():
    prepared = prepare(small(*NOISY, *TWO_OF_THREE))
    planned, rows = prepared.plan, secure_rows(prepared.plan, forecast(prepared))
    assert rows["assumptions"].startswith(
        "at least 2 of 2 regions have to survive; in each, at least 2 of 3 sites have to survive, "
        "and 2 shares open a secret; its coordinator learns the region's sum, but no site's sum"
    )
    assert "the noise of 3, which may be Byzantine or collude" in rows["noise"]
    assert rows["partial sum"].endswith("in which the noise of at least 1 of its sites counts")
    assert rows["alone"].startswith("WARNING")
    wide = prepare(small(*NOISY, *THREE_OF_FOUR))
    assert "alone" not in secure_rows(wide.plan, forecast(wide))
    relied_on = "the coordinator of a client's region not to use the region's sum"
    assert relied_on in planned.assumed.trusted_parties
    assert planned.assumed.trusts == ("a client's own site",)


def test_rows_of_clients_are_bounded_one_by_one():
    """A region's sum is over sites' sums, and the proof is about each client's encoded row."""
    part, limits = configured(*TWO_OF_THREE)
    counts = CohortSize(16, 48)
    noise = part.site_noise(limits)
    setting = Setting(cohort=counts, noise=noise, bits=32, length=8, against="sites")
    mechanism = SkellamNoise(noise_multiplier=0.0, clip=1.0).resolved(setting)
    encoding = mechanism.encoding(mechanism.init())
    accumulator = part.over(limits).open(session(limits, clients=6), 8, encoding)
    rows = torch.eye(8)[:6]
    accumulator.add(np.arange(6), BoundedRows(rows, 1.0))
    total = accumulator.close()
    assert torch.allclose(total.total.float(), rows.sum(0), atol=1e-3)
    with pytest.raises(ValueError, match="norm bound"):
        part.over(limits).open(session(limits, clients=6), 8, encoding).add(
            np.arange(6), BoundedRows(rows, 2.0)
        )


def test_a_calibration_counts_the_same_sites_as_a_run():
    question = {"epsilon": 2.0, "rounds": 50, "population": 1000, "cohort": 100, "delta": 1e-5}
    sums = {"mechanism": "skellam", "sites": 6, "protocol": "regions", "bits": 32}
    answer = privfed.calibrate(**question, **sums, dimension=1000)
    stated = answer.to_json()
    assert (stated["minimum"], stated["colluders"], stated["counted"]) == (6, 1, 2)
    assert "the noise of 4 that may collude is not counted" in str(answer)
