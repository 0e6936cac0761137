"""Clients at several sites with coins apart: against enumeration over coins times quadrature."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from lanes import every_case, mostly_slow
from scipy.special import ive
from scipy.stats import binom, norm

from accounting.accountants import epsilon, supports
from accounting.bounds.pld import _losses
from accounting.bounds.rdp import _curve
from accounting.bounds.several_sites import _Pair, at_several_sites, losses, split
from accounting.calibration import noise_multiplier
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event, summable
from accounting.guarantee import guarantee
from accounting.noises import DiscreteGaussians, Gaussian, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites, noise_of, release_from_json

EPSILONS = np.array([-3.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0])


def spent(release, rounds, accountant="pld", delta=1e-5, slack=0.0):
    return epsilon({Event(release, "poisson", slack=slack): rounds}, delta, accountant)


def hockey_stick(first, second, at, cell=1.0):
    """The integral of max(first - e^at second, 0) over cells of densities."""
    return float(np.maximum(first - math.exp(at) * second, 0).sum()) * cell


def of_coins(rate, rows, density):
    """The mixture over all coins of densities shifted by the rows that they draw."""
    total = 0.0
    for coins in itertools.product((0, 1), repeat=len(rows)):
        weight = math.prod(rate if coin else 1 - rate for coin in coins)
        total = total + weight * density(np.dot(coins, rows))
    return total


@every_case("sites", [2, 3])
@every_case("rate, z", [(0.1, 1.0), (0.3, 0.6), (0.7, 2.5), (1.0, 1.5), (1e-5, 1.0)])
def test_the_pair_on_the_line_is_what_coins_and_quadrature_give(sites, rate, z):
    x = np.linspace(-12 * z, sites + 12 * z, 400_001)
    with_it = of_coins(rate, np.ones((sites, 1)), lambda shift: norm.pdf(x, shift, z))
    without, cell = norm.pdf(x, 0, z), x[1] - x[0]
    pair = _Pair(SeveralSites(rate, sites, Gaussian(z)))
    for sides, delta in (((with_it, without), pair.removed), ((without, with_it), pair.added)):
        true = np.array([hockey_stick(*sides, at, cell) for at in EPSILONS])
        assert delta(EPSILONS) == pytest.approx(true, rel=1e-5, abs=1e-14)


@pytest.mark.parametrize("sites", [2, 3])
def test_no_directions_of_rows_exceed_it(sites):
    """Rows in the plane, of norm 1 or less, at random and crosswise; in line they reach it."""
    rate, z = 0.3, 0.8
    axis = np.linspace(-8.0, 8.0, 321)
    cell = (axis[1] - axis[0]) ** 2

    def density(shift):
        return np.outer(norm.pdf(axis, shift[0], z), norm.pdf(axis, shift[1], z))

    draws = np.random.default_rng(sites)
    angles = draws.uniform(0, 2 * math.pi, (6, sites))
    lengths = np.concatenate([np.ones((4, sites)), draws.uniform(0, 1, (2, sites))])
    turned = lengths[..., None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    in_line = np.tile([0.6, 0.8], (sites, 1))
    pair = _Pair(SeveralSites(rate, sites, Gaussian(z)))
    claims = pair.removed(EPSILONS), pair.added(EPSILONS)
    without = density((0.0, 0.0))
    for rows in [*turned, in_line, in_line * [[1], [-1], [1]][:sites]]:
        with_it = of_coins(rate, rows, density)
        for claim, sides in zip(claims, ((with_it, without), (without, with_it)), strict=True):
            true = np.array([hockey_stick(*sides, at, cell) for at in EPSILONS])
            assert np.all(true <= claim * (1 + 1e-4) + 1e-12)
            if rows is in_line:
                assert true == pytest.approx(claim, rel=2e-3, abs=1e-12)


@pytest.mark.parametrize(
    "sites, rate, z", mostly_slow([(1, 0.3, 0.3), (2, 0.1, 1.0), (5, 0.02, 3.0)], (2, 0.1, 1.0))
)
def test_its_distribution_is_the_librarys_but_never_below_the_truth(sites, rate, z):
    grid, at = 0.01, EPSILONS[3:]
    release = SeveralSites(rate, sites, Gaussian(z))
    ours = _losses(release, grid)
    shifts = np.arange(sites + 1)
    theirs = library.from_mixture_gaussian_mechanism(
        z, shifts, binom.pmf(shifts, sites, rate), value_discretization_interval=grid
    )
    pair = _Pair(release)
    sides = ((ours._pmf_remove, pair.removed), (ours._pmf_add, pair.added))
    for side, exact in sides:
        delta = np.array([side.get_delta_for_epsilon(float(each)) for each in at])
        assert np.all(exact(at) <= delta * (1 + 1e-13) + 1e-16)
        assert delta == pytest.approx(exact(at), rel=1e-2, abs=1e-12)
    both = [ours.get_delta_for_epsilon(float(each)) for each in at]
    known = [theirs.get_delta_for_epsilon(float(each)) for each in at]
    assert both == pytest.approx(known, rel=1e-6, abs=1e-10)


@every_case("rate, z", [(0.02, 1.0), (0.5, 0.4), (1.0, 2.0)])
def test_at_one_site_it_is_the_librarys_sampled_gaussian(rate, z):
    ours = losses(SeveralSites(rate, 1, Gaussian(z)), 1e-3).self_compose(20)
    theirs = library.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=1e-3
    ).self_compose(20)
    for delta in (1e-2, 1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-6)


def test_trap_weight_one_at_each_of_two_sites_charged_as_one():
    """7.0 claimed, 16.2 true."""
    assert spent(PoissonSampled(0.1, Gaussian(1.0)), 100) == pytest.approx(7.05, abs=0.01)
    assert spent(SeveralSites(0.1, 2, Gaussian(1.0)), 100) == pytest.approx(16.23, abs=0.01)


@pytest.mark.parametrize("name", ["rdp", "pld"])
def test_one_site_is_plain_sampling(name):
    single, plain = SeveralSites(0.1, 1, Gaussian(1.3)), PoissonSampled(0.1, Gaussian(1.3))
    assert spent(single, 70, name) == spent(plain, 70, name)
    assert summable({Event(single, "poisson"): 7}) == {Event(plain, "poisson"): 7}
    for noise in (Gaussian(1.3), Skellam(50.0, 2.0, 3.0), DiscreteGaussians(2.0, 5, 1.0, 1.0, 4)):
        assert at_several_sites(0.1, 1, noise) == PoissonSampled(0.1, noise)


@pytest.mark.parametrize("name", ["rdp", "pld"])
def test_edges_of_the_rate(name):
    assert spent(SeveralSites(0.0, 3, Gaussian(1.0)), 10, name) == pytest.approx(0.0, abs=1e-6)
    always, plain = SeveralSites(1.0, 3, Gaussian(6.0)), Gaussian(2.0)
    assert spent(plain, 10, name) <= spent(always, 10, name) <= spent(plain, 10, name) * 1.001


@every_case("sites", [2, 5])
@every_case("rate, z", [(0.05, 1.0), (0.4, 4.0)])
def test_epsilon_lies_between_its_bounds(sites, rate, z):
    """One row's alone, and all rows by one coin, at equal noise; the split is above the pair."""
    release = SeveralSites(rate, sites, Gaussian(z))
    exact = spent(release, 50)
    assert spent(PoissonSampled(rate, Gaussian(z)), 50) < exact
    assert exact < spent(PoissonSampled(rate, Gaussian(z / sites)), 50)
    assert exact < spent(SeveralSites(rate, sites + 1, Gaussian(z)), 50)
    assert (
        exact
        <= spent(release, 50, "rdp")
        == pytest.approx(spent(Repeated(sites, split(release)), 50, "rdp"), rel=1e-9)
    )
    assert exact <= spent(Repeated(sites, split(release)), 50) * 1.001
    assert guarantee({Event(release, "poisson"): 50}, 1e-5).accountant == "tightest"


def test_its_renyi_divergence_covers_the_true_one_both_ways():
    rate, z, sites = 0.2, 1.5, 3
    release = SeveralSites(rate, sites, Gaussian(z))
    orders, curve = _curve(release)
    most = np.asarray(orders) * sites / (2 * split(release).of.noise_multiplier ** 2)
    assert (curve <= most + 1e-9).all()  # full participation: where the series does not converge
    x = np.linspace(-25.0, 40.0, 20_001)
    with_it = of_coins(rate, np.ones((sites, 1)), lambda shift: norm.pdf(x, shift, z))
    without, cell = norm.pdf(x, 0, z), x[1] - x[0]
    finite = [(order, bound) for order, bound, full in zip(orders, curve, most, strict=True)
              if bound < full - 1e-9]  # fmt: skip
    assert len(finite) > 50
    for order, bound in finite:
        if order <= 6:
            true = max(
                math.log((first * (first / np.maximum(second, 1e-99)) ** (order - 1)).sum() * cell)
                for first, second in ((with_it, without), (without, with_it))
            ) / (order - 1)
            assert true <= bound
            assert order > 3 or bound < 2 * true


def test_it_survives_its_ledger_line_and_knows_its_relation():
    release = SeveralSites(np.float64(0.1), 3, Gaussian(1.0))
    assert type(release.rate) is float
    assert noise_of(release) == Gaussian(1.0)
    for relation in (ADD_REMOVE, ZERO_OUT, REPLACE_ONE):
        event = Event(release, "poisson", relation)
        assert Event.from_json(event.to_json()) == event
        for name in ("rdp", "pld"):
            assert supports(event, name) == (relation == ADD_REMOVE)
    assert summable({Event(release, "poisson"): 4}) == {Event(release, "poisson"): 4}
    for sites in (0, 1025, 2.5):
        with pytest.raises(Unaccountable, match="sites of a client"):
            SeveralSites(0.1, sites, Gaussian(1.0))
    with pytest.raises(Unaccountable, match="not known to this version"):
        release_from_json({**release.to_json(), "of": Skellam(1.0, 1.0, 1.0).to_json()})


@every_case("rate", [1e-9, 0.5])
@every_case("name", ["rdp", "pld"])
def test_extreme_noise_neither_crashes_nor_is_free(rate, name):
    def at(z, sites=2):
        return spent(SeveralSites(rate, sites, Gaussian(z)), 10**4, name, 1e-6)

    assert at(1e6) < 1e-2
    assert at(0.05) > 0
    assert at(1e-3) == at(0.05, 64) == math.inf


def test_noise_is_calibrated_to_it():
    z = noise_multiplier(
        lambda z: Event(SeveralSites(0.1, 2, Gaussian(z)), "poisson"), 50, 2.0, 1e-5
    )
    assert 1.999 < spent(SeveralSites(0.1, 2, Gaussian(z)), 50) <= 2.0


# --- Skellam, by the split -------------------------------------------------------------------


def skellam(variance, shift):
    """Densities of Skellam noise around `shift` on the plane, at -60, ..., 60 each."""
    first, second = (ive(np.abs(np.arange(-60, 61) - each), variance) for each in shift)
    return np.outer(first, second)


def test_skellams_rows_in_line_are_not_the_worst_and_the_split_covers_all():
    """Rows of norm 5 at two sites, q = 0.2, variance 2: delta at epsilon = 10."""
    without = skellam(2.0, (0, 0))
    noise = Skellam(2.0, 5.0, 7.0)
    charge = at_several_sites(0.2, 2, noise)
    deltas = []
    for rows in ([(5, 0), (5, 0)], [(3, 4), (4, 3)]):
        with_it = of_coins(0.2, np.array(rows), lambda shift: skellam(2.0, shift))
        deltas.append(hockey_stick(with_it, without, 10.0))
        assert spent(charge, 1, "rdp", deltas[-1]) >= 10.0
    assert deltas == pytest.approx([0.0274, 0.0353], abs=5e-5)


@every_case("rows", [[(1, 1), (1, 1)], [(2, 0), (0, 2)], [(2, 0), (-2, 0)]])
def test_the_split_covers_skellam_noise_at_two_sites(rows):
    rate, variance = 0.2, 20.0
    charge = at_several_sites(rate, 2, Skellam(variance, 2.0, 2.0))
    with_it = of_coins(rate, np.array(rows), lambda shift: skellam(variance, shift))
    without = skellam(variance, (0, 0))
    for at in (0.1, 0.3):
        true = max(hockey_stick(with_it, without, at), hockey_stick(without, with_it, at))
        assert spent(charge, 1, "rdp", true) >= at


def test_what_is_split_is_accounted_and_recorded_like_its_parts():
    noise = Skellam(4e6, 500.0, 5000.0, exchanges=3)
    charge = at_several_sites(0.1, 4, noise)
    part = PoissonSampled(0.1, Skellam(1e6, 500.0, 5000.0, exchanges=3))
    assert charge == Repeated(4, part)
    assert noise_of(charge) == part.of
    event = Event(charge, "poisson", slack=1e-9)
    assert Event.from_json(event.to_json()) == event
    assert [supports(event, name) for name in ("rdp", "pld")] == [True, False]
    assert not supports(Event(charge, "poisson", ZERO_OUT), "rdp")
    assert spent(charge, 20, "rdp") == spent(part, 80, "rdp")
    assert spent(charge, 20) is None
    assert spent(charge, 20, "rdp") < spent(
        PoissonSampled(0.1, Skellam(4e6, 2e3, 2e4, 3)), 20, "rdp"
    )


def test_slack_of_what_is_repeated_is_shared_out_not_multiplied():
    event = Event(at_several_sites(0.1, 4, Skellam(4e6, 500.0, 5000.0)), "poisson", slack=1e-8)
    singly = summable({event: 5})
    assert sum(each.slack * count for each, count in singly.items()) == pytest.approx(5e-8)
    assert epsilon(singly, 1e-5, "rdp") == pytest.approx(epsilon({event: 5}, 1e-5, "rdp"), rel=1e-6)


def test_a_fine_grid_makes_the_split_that_of_gaussian_noise():
    z, unit = 2.0, 1e5
    charge = at_several_sites(0.1, 3, Skellam((z * unit) ** 2, unit, 30 * unit))
    gaussian = spent(SeveralSites(0.1, 3, Gaussian(z)), 40, "rdp")
    assert 0.999 * gaussian <= spent(charge, 40, "rdp") <= 1.02 * gaussian


def test_discrete_gaussians_do_not_divide():
    with pytest.raises(Unaccountable, match="cannot be divided"):
        at_several_sites(0.1, 2, DiscreteGaussians(2.0, 5, 1.0, 1.0, 4))
