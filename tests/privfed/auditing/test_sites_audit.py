"""The direct test of mechanisms whose parties are sites: what is shipped, and planted faults."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from lanes import FULL

from accounting.empirical import claimed_releases
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.scenarios import TakesAll, plan_of_mechanism, scenarios_of
from privfed.config.reading import load
from privfed.privacy.clipping import on_grid
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.round.algorithm import Algorithm
from privfed.round.updates import ClientUpdates
from privfed.secure.limits import Leaves
from privfed.secure.site_sums import SiteSums

BASE = (
    *("data.clients=20", "cohort.size=4", "data.sites=5", "run.rounds=3"),
    *("privacy.noise_multiplier=1.0", "privacy.clip=0.4"),
)
MASKS = ("secure.protocol=masks",)
SKELLAM = ("privacy.mechanism=skellam", *MASKS)
TWICE = ("data.sites_per_client=2",)
SHIPPED = {
    "skellam": SKELLAM,
    "layers": (*SKELLAM, "privacy.sizing=layers"),
    "discrete Gaussian": ("privacy.mechanism=discrete_gaussian", *MASKS),
    "central": MASKS,
    "local": ("privacy.mechanism=local_gaussian",),
}
ALSO_SHIPPED = {
    "two sites": (*SKELLAM, *TWICE),
    "everybody": (*SKELLAM, "cohort.sampler=full", "cohort.size=0"),
    "lying server": (*SKELLAM, "secure.threat=malicious", "secure.colluders=0.4"),
    "passes": (*SKELLAM, "aggregation.rule=geometric_median", "aggregation.passes=3"),
    "homomorphic": ("privacy.mechanism=skellam", "secure.protocol=bfv", "secure.minimum=3"),
    "adaptive": (*MASKS, "privacy.adaptive_clip=true", "privacy.count_noise=2.0"),
    "two sites, central": TWICE,
    "two sites, central, masks": (*MASKS, *TWICE),
    "two sites, local": ("privacy.mechanism=local_gaussian", *TWICE),
}


@pytest.fixture(autouse=True)
def few_points(request, monkeypatch):
    """Claims are held against few points of their profiles; in the slow lane, against many."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(claimed_releases, "_DELTAS", (1e-3, 0.1, 0.4))


def configured(*overrides):
    return scenarios_of(plan_of_mechanism(load(None, [*BASE, *overrides])))


def judged(algorithm, scenarios, releases=1000):
    return examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)


def kept(overrides, releases):
    audit = judged(*configured(*overrides), releases)
    assert not audit.refuted
    assert audit.p_value > 1e-3
    assert all(one.verdict.epsilon_lower <= one.epsilon for one in audit.tested)
    by_chance = 4 / (12 * 2 * releases) ** 0.5
    assert 1.0 - by_chance < audit.noise < 1.05 + by_chance, "as charged, and not much more"


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_keeps_its_claims(name):
    kept(SHIPPED[name], 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED | ALSO_SHIPPED)
def test_in_many_releases_what_is_shipped_keeps_its_claims(name):
    kept((SHIPPED | ALSO_SHIPPED)[name], 1500)


class LocalWithoutClip(LocalGaussian):
    def bound(self, rows, layout, keys, state):
        return BoundedRows(on_grid(BoundedRows(rows, self.clip), 2.0**-30).rows, self.clip)


class CentralWithoutClip(CentralGaussian):
    """Clips the sum of all rows where each is to be clipped; encoding takes what has no norm."""

    def encoding(self, state):
        return replace(super().encoding(state), bound=80 * self.clip)

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows.clamp(-70 * self.clip, 70 * self.clip), 80 * self.clip)

    def release(self, total, divisor, keys, state):
        return super().release(replace(total, bound=self.clip), divisor, keys, state)


@dataclass(frozen=True)
class CountsOneSite(Algorithm):
    """Charges a client as if it were at one site."""

    def witness(self, round):
        return self.sampler.witness(round, self.clients)


def with_mechanism(algorithm, kind):
    mechanism = kind(**algorithm.mechanism.model_dump())
    if "_sites" in algorithm.mechanism.__private_attributes__:
        mechanism._sites = algorithm.mechanism._sites
    return replace(algorithm, mechanism=mechanism)


def sized_for(algorithm, **changes):
    """With noise that is made up by other sites than those which are counted on."""
    setting = algorithm.mechanism._setting
    sites = replace(setting.sites, **changes)
    return replace(algorithm, mechanism=algorithm.mechanism.resolved(replace(setting, noise=sites)))


LOCAL = ("privacy.mechanism=local_gaussian",)


@FULL
@pytest.mark.parametrize("protection", [SKELLAM, pytest.param(LOCAL, marks=pytest.mark.slow)])
def test_coins_that_the_server_knows_are_refuted(protection, full):
    """Whoever knows that the target was drawn sees what everybody's taking part shows."""
    algorithm, scenarios = configured(*protection)
    known = replace(algorithm, sampler=TakesAll(algorithm.sampler, algorithm.sampler.size))
    assert not judged(algorithm, scenarios[1:2], 400 if full else 100).refuted
    assert judged(known, scenarios[1:2], 400).refuted


def test_a_weight_of_one_at_each_of_three_sites_is_refuted():
    """A client of three coins is drawn more often than one says, which little noise shows."""
    little = ("cohort.size=10", "privacy.noise_multiplier=0.2", "run.rounds=1")
    algorithm, scenarios = configured(*SKELLAM, *little)
    wrong = CountsOneSite(**(vars(algorithm) | {"sites_per_client": 3}))
    assert judged(wrong, scenarios[1:2], 300).refuted
    honest, scenarios = configured(*SKELLAM, *TWICE)
    assert not judged(honest, scenarios[1:2], 100).refuted


@pytest.mark.parametrize("wrong", [{"minimum": 5}, {"colluders": 0}])
def test_noise_that_counts_on_sites_that_drop_or_collude_is_refuted(wrong):
    algorithm, scenarios = configured(*SKELLAM)
    assert algorithm.summation.honest == scenarios[0].sites == 3
    assert not judged(algorithm, scenarios[:1], 100).refuted
    assert judged(sized_for(algorithm, **wrong), scenarios[:1], 100).refuted


def test_layers_that_count_on_colluders_are_refuted():
    algorithm, scenarios = configured(*SKELLAM, "privacy.sizing=layers")
    assert not judged(algorithm, scenarios[:1], 100).refuted
    assert judged(sized_for(algorithm, colluders=0), scenarios[:1], 100).refuted


def test_a_site_that_adds_no_noise_with_nobody_drawn_is_refuted(monkeypatch):
    def total(sums):
        nobody = {site for site, row in sums._sums.items() if not row.any()}
        share = sums._share
        for site in sums._session.senders.tolist():
            keys = sums._session.streams.at("noise/site/0", sums._session.round, np.array([site]))
            row = sums._sums[site]
            if site not in nobody:
                row = row + share.draw(next(keys.each()), len(row))
            sums._channel.send(site, row)
        return sums._channel.total()

    algorithm, scenarios = configured(*SKELLAM)
    monkeypatch.setattr(SiteSums, "total", total)
    assert judged(algorithm, scenarios[3:], 160).refuted


def test_a_site_that_drops_out_where_a_client_was_drawn_is_refuted(monkeypatch):
    honest = ClientUpdates.present

    def present(updates, number):
        cohort, leaves = honest(updates, number)
        if 0 in cohort.clients:
            leaves[0] = Leaves.BEFORE_MASKING
        return cohort, leaves

    algorithm, scenarios = configured(*SKELLAM, "cohort.size=10", "privacy.noise_multiplier=4.0")
    monkeypatch.setattr(ClientUpdates, "present", present)
    assert judged(algorithm, scenarios[:1], 200).refuted


@pytest.mark.parametrize(
    ("kind", "protection"),
    [(LocalWithoutClip, ("privacy.mechanism=local_gaussian",)), (CentralWithoutClip, MASKS)],
)
def test_a_site_that_does_not_clip_is_refuted(kind, protection):
    much = ("cohort.size=10", "privacy.noise_multiplier=4.0")
    algorithm, scenarios = configured(*protection, *much)
    assert judged(with_mechanism(algorithm, kind), scenarios[:1], 250).refuted
