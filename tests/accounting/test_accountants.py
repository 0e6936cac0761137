"""The adapter over dp-accounting: right numbers, and none of the library's traps."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lanes import every_case
from scipy import stats

from accounting.accountants import epsilon, supports
from accounting.bounds import pld
from accounting.bounds.loss_tails import LossTails
from accounting.bounds.sampled_gaussian import sampled_divergences
from accounting.errors import Unaccountable
from accounting.events import Event
from accounting.guarantee import guarantee, refuse_unaccountable
from accounting.noises import Gaussian, same_cohort
from accounting.over_rounds import AllocatedEpoch
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, Unprotected


def poisson(q: float, z: float) -> Event:
    return Event(PoissonSampled(q, Gaussian(z)), "poisson")


def plain(z: float) -> Event:
    return Event(Gaussian(z), "full")


@every_case("z", [0.7, 1.0, 3.0, 20.0])
@every_case("rounds", [1, 7, 400])
@every_case("delta", [1e-3, 1e-5, 1e-9])
def test_gaussian_without_sampling_matches_its_closed_form(z, rounds, delta):
    """Composition of Gaussians is a Gaussian; Balle & Wang 2018 give its exact epsilon."""
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    pld = epsilon({plain(z): rounds}, delta, "pld")
    rdp = epsilon({plain(z): rounds}, delta, "rdp")
    assert exact <= pld <= exact * 1.001 + 1e-4
    assert pld <= rdp <= 1.3 * exact + 0.2


@every_case(
    "z, rounds, delta",
    [
        (300, 10**6, 1e-12),
        (300, 10**5, 1e-12),
        (300, 10**5, 1e-11),
        (300, 10**6, 1e-9),
        (100, 10**4, 1e-12),
        (30, 10**3, 1e-12),
        (30, 10**3, 1e-9),
        (3.3, 120, 1e-4),
        (10, 1000, 1e-6),
    ],
)
def test_trap_the_fft_of_pld_rounds_small_deltas_away(z, rounds, delta):
    """Sampled at rate one, PLD goes through its FFT; the closed form is still known."""
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    bound = guarantee({poisson(1.0, z): rounds}, delta)
    assert bound.epsilon >= exact
    assert bound.by_accountant["pld"] is None or bound.by_accountant["pld"] >= exact
    assert bound.epsilon <= 1.1 * exact + 0.1


@every_case(
    "q, z, rounds, delta, rdp, pld",
    [
        (2.92e-4, 0.5, 1600, 1e-6, 3.930, 2.630),
        (2.92e-4, 1.0, 1600, 1e-6, 0.678, 0.0602),
        (1e-3, 0.8, 10_000, 1e-6, 1.704, 0.948),
    ],
)
def test_published_parameter_sets(q, z, rounds, delta, rdp, pld):
    assert epsilon({poisson(q, z): rounds}, delta, "rdp") == pytest.approx(rdp, rel=1e-3)
    assert epsilon({poisson(q, z): rounds}, delta, "pld") == pytest.approx(pld, rel=3e-3)


@every_case("number", [4, np.float32(4), np.float64(4), np.int64(4)])
def test_trap_a_noise_multiplier_that_is_no_python_float(number):
    """The library drops such terms inside a Poisson event (FACTS, section 1)."""
    event = Event(PoissonSampled(np.float64(0.1), Gaussian(number)), "poisson")
    assert type(event.release.of.noise_multiplier) is float
    assert type(event.release.rate) is float
    for name in ("rdp", "pld"):
        assert epsilon({event: 50}, 1e-5, name) == epsilon({poisson(0.1, 4.0): 50}, 1e-5, name)


def test_trap_exchanges_over_one_cohort_are_one_event_not_several():
    """16 releases at z = 4 over one cohort are Gaussian(1); sampling them apart under-counts."""
    together = Event(PoissonSampled(0.1, same_cohort(4.0, 16)), "poisson")
    assert together.release.of.noise_multiplier == 1.0
    apart = epsilon({poisson(0.1, 4.0): 16 * 100}, 1e-5, "pld")
    assert epsilon({together: 100}, 1e-5, "pld") > 1.5 * apart


def test_trap_five_passes_as_five_samples():
    """Rules of proof, section 3: T = 5, q = 0.1, z = 1, 100 rounds: 16.6 claimed, 40.8 true."""
    wrong = epsilon({poisson(0.1, 1.0): 500}, 1e-5, "pld")
    right = epsilon({Event(PoissonSampled(0.1, same_cohort(1.0, 5)), "poisson"): 100}, 1e-5, "pld")
    assert wrong == pytest.approx(16.6, abs=0.1)
    assert right == pytest.approx(40.8, abs=0.1)


def test_trap_what_a_relation_has_no_bound_for_is_refused():
    event = Event(PoissonSampled(0.1, Gaussian(4.0)), "poisson", relation="replace-one")
    assert not supports(event, "rdp")
    assert epsilon({event: 1}, 1e-5, "rdp") is None
    assert guarantee({event: 1}, 1e-5).epsilon == math.inf
    with pytest.raises(Unaccountable, match="no proof"):
        refuse_unaccountable(event, "tightest")


def test_trap_a_divergence_rounded_below_zero_is_no_proof_of_zero():
    """Tiny rates and large noise push the library's divergence to or below zero."""
    for q, z in [(1e-9, 50.0), (1e-8, 1e4), (1e-6, 1e6)]:
        assert epsilon({poisson(q, z): 1000}, 1e-12, "rdp") >= 0.0
        assert epsilon({poisson(q, z): 10**9}, 1e-9, "rdp") > 0.0


def test_rounding_up_never_hides_a_real_divergence():
    """The RDP bound stays above the exact epsilon where the exact one is known, tiny as it is."""
    exact = dp_accounting.get_epsilon_gaussian(1e5, 1e-9)
    assert epsilon({plain(1e5): 1}, 1e-9, "rdp") >= exact
    assert epsilon({plain(1e5): 1}, 1e-9, "pld") >= exact


def test_run_length_encoding_equals_single_compositions():
    accountant = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.1))
    for _ in range(20):
        accountant.compose(event)
    ours = epsilon({poisson(0.05, 1.1): 20}, 1e-5, "rdp")
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


LOSSES = [
    {PoissonSampled(0.3, Gaussian(0.3)): 1},
    {PoissonSampled(0.3, Gaussian(2.0)): 7},
    {PoissonSampled(0.5, Gaussian(60.0)): 7},
    {PoissonSampled(0.2, Gaussian(2.0)): 3, Gaussian(4.0): 2},
    {AllocatedEpoch(5, Gaussian(0.7)): 3},
    {SeveralSites(0.2, 2, Gaussian(1.0)): 4},
    {TruncatedPoisson(0.3, 5, 12, Gaussian(1.0)): 2},
]


@every_case("counts", LOSSES, ids=lambda counts: str(next(iter(counts)).kind))
def test_epsilons_at_many_deltas_are_the_librarys_to_the_last_bit(counts):
    distribution = pld._distribution(tuple(counts.items()))
    tails = LossTails(distribution)
    for delta in (1e-14, *np.geomspace(1e-10, 0.5, 12).tolist(), 0.9, 1 - 1e-12):
        assert tails.epsilon(delta) == float(distribution.get_epsilon_for_delta(delta)), delta


@every_case("rate", [1e-4, 0.3, 0.5, 0.999])
@every_case("z", [0.4, 2.0, 60.0])
def test_losses_of_sampled_gaussians_are_the_librarys(rate, z):
    """Which inverts them one by one."""
    theirs = library.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=2e-3
    )
    ours = pld._gaussian(z, rate, 2e-3)
    for delta in (1e-9, 1e-5, 0.1):
        wanted = pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-12)
        assert ours.get_epsilon_for_delta(delta) == wanted


@every_case("rate", [1e-9, 1e-3, 0.3, 0.99, 1 - 1e-12])
@every_case("z", [0.1, 0.7, 3.2895, 20.0, 1e4])
def test_divergences_of_sampled_gaussians_are_the_librarys(rate, z):
    """The same orders are infinite, since the library's sums do not converge there."""
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z)))
    ours = sampled_divergences(rate, z, accountant.orders)
    np.testing.assert_allclose(ours, accountant.rdp, rtol=1e-13, atol=1e-14)


def test_divergences_without_noise_in_double_precision_are_infinite():
    with np.errstate(all="ignore"):
        assert np.isinf(sampled_divergences(0.01, 1e-170, np.array([1.5, 2.0, 64.0]))).all()


@every_case("std", [0.4, 3.2895, 60.0])
def test_normal_probabilities_are_scipys_to_the_last_bit(std):
    ours, theirs = pld._Normal(std), stats.norm(scale=std)
    points = np.concatenate([np.linspace(-40, 40, 1001) * std, [-np.inf, np.inf]])
    assert np.array_equal(ours.cdf(points), theirs.cdf(points))
    assert np.array_equal(ours.logcdf(points), theirs.logcdf(points))
    assert all(ours.ppf(each) == theirs.ppf(each) for each in (0.5 * math.exp(-50), 1e-9, 0.3))


def test_no_noise_and_no_mechanism_are_infinite():
    for event in (poisson(0.1, 0.0), plain(0.0), Event(Unprotected("nothing"), "poisson")):
        bound = guarantee(
            {event: 1, poisson(0.1, 1.0): 5} if event.sampler == "poisson" else {event: 1}, 1e-5
        )
        assert bound.epsilon == math.inf
        assert set(bound.by_accountant.values()) == {math.inf}


def test_nothing_spent_is_zero():
    assert guarantee({}, 1e-5).epsilon == 0.0


def test_tightest_is_the_minimum_and_rdp_is_always_reported():
    bound = guarantee({poisson(0.1, 1.0): 100}, 1e-4)
    assert bound.epsilon == min(bound.by_accountant.values())
    assert bound.by_accountant["rdp"] > bound.by_accountant["pld"]
    assert guarantee({poisson(0.1, 1.0): 100}, 1e-4, "rdp").epsilon == bound.by_accountant["rdp"]


def test_pld_is_not_asked_below_its_precision():
    bound = guarantee({poisson(0.1, 1.0): 100}, 1e-14)
    assert bound.by_accountant["pld"] is None
    assert bound.epsilon == bound.by_accountant["rdp"] < math.inf


def test_little_noise_needs_neither_much_time_nor_memory():
    assert epsilon({poisson(0.1, 0.01): 100}, 1e-5, "pld") < 1e6


def test_events_that_protect_different_things_are_not_composed():
    with pytest.raises(Unaccountable, match="agree in both"):
        guarantee({poisson(0.1, 1.0): 1, Event(Gaussian(1.0), "full", "zero-out"): 1}, 1e-5)


@every_case("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_delta_outside_its_range_is_refused(delta):
    with pytest.raises(Unaccountable, match="delta"):
        guarantee({poisson(0.1, 1.0): 1}, delta)


@every_case("z", [1e-300, 1e-200, 1e-10, 1e-4])
def test_noise_too_small_for_the_arithmetic_is_infinite_not_a_crash(z):
    assert guarantee({poisson(0.1, z): 10}, 1e-5).epsilon == math.inf


@every_case("bad", [-1.0, math.nan, math.inf, 1e10, "1", None, True])
def test_a_noise_multiplier_that_is_no_number_is_refused(bad):
    with pytest.raises(Unaccountable):
        Gaussian(bad)


@every_case("bad", [-0.1, 1.1, math.nan])
def test_a_rate_that_is_no_probability_is_refused(bad):
    with pytest.raises(Unaccountable):
        PoissonSampled(bad, Gaussian(1.0))


@settings(max_examples=12)
@example(q=0.875, z=0.5, rounds=142, accountant="rdp")  # dp-accounting's series does not converge
@given(
    q=st.floats(1e-4, 1.0),
    z=st.floats(0.5, 20.0),
    rounds=st.integers(1, 500),
    accountant=st.sampled_from(["rdp", "pld"]),
)
def test_epsilon_grows_with_rounds_and_rate_and_falls_with_noise(q, z, rounds, accountant):
    def at(q, z, rounds):
        return epsilon({poisson(q, z): rounds}, 1e-5, accountant)

    here = at(q, z, rounds)
    assert here <= at(q, z, rounds + 10) * 1.01 + 2e-3  # PLD's grid may differ between the two
    assert here <= at(min(1.0, q * 1.5), z, rounds) * 1.01 + 2e-3
    assert at(q, z * 1.5, rounds) <= here * 1.01 + 2e-3


def test_events_survive_json():
    for event in (poisson(0.1, 1.5), plain(2.0), Event(Unprotected("why"), "poisson")):
        assert Event.from_json(event.to_json()) == event


@every_case(
    "data",
    [
        {},
        {"release": {}},
        {"release": {"kind": "new"}, "sampler": "a", "relation": "b", "unit": "c"},
        {
            "release": {
                "kind": "poisson",
                "rate": 0.1,
                "of": {"kind": "unprotected", "reason": ""},
            },
            "sampler": "a",
            "relation": "b",
            "unit": "c",
        },
    ],
)
def test_json_that_is_no_event_is_refused(data):
    with pytest.raises(Unaccountable):
        Event.from_json(data)
