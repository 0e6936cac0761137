"""The best of a random number of runs: held against exact laws, and against dp-accounting."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from lanes import every_case, mostly_slow
from scipy.special import logsumexp

from accounting.accountants import epsilon, supports
from accounting.bounds.rdp import rdp_epsilon
from accounting.calibration import noise_multiplier
from accounting.choosing.private_selection import selected_divergences, selected_epsilon
from accounting.choosing.repetitions import Repetitions
from accounting.errors import Unaccountable
from accounting.events import REPLACE_ONE, ZERO_OUT, Event, best_of, within
from accounting.guarantee import guarantee
from accounting.noises import Gaussian, Skellam
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, TruncatedPoisson, Unprotected

ORDERS = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 200.0])
LAWS = [Repetitions.with_mean(shape, mean) for shape, mean in ((1, 8), (0, 5), (0.5, 24), (2, 3))]
DELTAS = [1e-6, 1e-3, 0.05]
ROUND = Event(PoissonSampled(0.1, Gaussian(1.5)), "poisson")


def hockey_stick(p, q, at):
    return float(np.maximum(p - math.exp(at) * q, 0.0).sum())


def profile(p, q, at):
    return max(hockey_stick(p, q, at), hockey_stick(q, p, at))


def exact_epsilon(p, q, delta):
    """The least epsilon >= 0 of the pair at `delta`, rounded up."""
    low, high = 0.0, 60.0
    if profile(p, q, low) <= delta:
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(p, q, middle) > delta else (low, middle)
    return high


def divergence(p, q, order):
    return logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1)


def best(law, p):
    """The law of the best of K answers, whose order is that of the places of `p`."""
    below = np.concatenate([[0.0], np.minimum(p.cumsum(), 1.0)])
    below[-1] = 1.0
    return np.diff([law.generating(x) for x in below])


def pairs():
    """Randomised response, and pairs of laws on a few answers, near and far from each other."""
    for epsilon_of_one in (0.1, 1.0, 3.0):
        heads = math.exp(epsilon_of_one) / (1 + math.exp(epsilon_of_one))
        yield np.array([heads, 1 - heads]), np.array([1 - heads, heads])
    source = np.random.default_rng(7)
    for size in (3, 4, 6):
        for spread in (0.3, 1.5):
            p = source.dirichlet(np.ones(size))
            q = p * np.exp(source.normal(0, spread, size))
            yield p, q / q.sum()
    yield np.array([0.999, 0.001]), np.array([1 - 1e-6, 1e-6])  # a rare answer that wins


def enumerated(p, tries):
    """The same for a number of tries that is known, by going through all that they may answer."""
    law = np.zeros_like(p)
    for answers in np.ndindex(*[len(p)] * tries):
        law[max(answers)] += math.prod(p[list(answers)])
    return law


def test_the_exact_law_is_that_of_enumeration():
    p, law = np.array([0.2, 0.5, 0.3]), Repetitions(1.0, 0.4)
    masses = [0.4 * 0.6 ** (k - 1) for k in range(1, 8)]
    mixed = sum(mass * enumerated(p, k) for k, mass in enumerate(masses, start=1))
    assert np.abs(best(law, p) - mixed).max() < 0.6**7


@pytest.mark.parametrize(
    "law", mostly_slow(LAWS, *LAWS[:2], names=[f"shape {law.shape:g}" for law in LAWS])
)
def test_no_exact_pair_exceeds_either_bound(law):
    for p, q in pairs():
        chosen, other = best(law, p), best(law, q)
        once = functools.partial(exact_epsilon, p, q)
        for delta in DELTAS:
            assert exact_epsilon(chosen, other, delta) <= selected_epsilon(once, law, delta) + 1e-9
        curve = [max(divergence(p, q, a), divergence(q, p, a)) for a in ORDERS]
        bounds = selected_divergences(ORDERS, np.array(curve), law)
        exact = [max(divergence(chosen, other, a), divergence(other, chosen, a)) for a in ORDERS]
        assert np.all(np.array(exact) <= bounds + 1e-9)


def test_planted_faults_are_below_what_is_true():
    """The best of K charged as one run, a price paid once less, and a number that is known."""
    p, q = np.array([0.999, 0.001]), np.array([1 - 1e-6, 1e-6])
    once = functools.partial(exact_epsilon, p, q)
    law, delta = Repetitions.with_mean(1.0, 8.0), 2e-3
    true = exact_epsilon(best(law, p), best(law, q), delta)
    assert once(delta) < true <= selected_epsilon(once, law, delta)
    heads = 1 / (1 + math.exp(-1.0))
    p, q = np.array([heads, 1 - heads]), np.array([1 - heads, heads])
    once, heavy = functools.partial(exact_epsilon, p, q), Repetitions.with_mean(1.0, 500.0)
    true = exact_epsilon(best(heavy, p), best(heavy, q), 1e-9)
    assert true > 1.5 * once(1e-9), "the price (1 + η) ε' cannot be left out"
    known = exact_epsilon(enumerated(p, 8), enumerated(q, 8), 1e-9)
    assert known > selected_epsilon(once, Repetitions.with_mean(1.0, 8.0), 1e-9)


def test_a_gamma_so_small_that_the_first_guess_breaks_the_condition():
    """e' has to be at least log(1 + δ' (1 - γ) / γ), also where Q tells nothing at all."""
    law = Repetitions(1.0, 1e-4)
    assert selected_epsilon(lambda delta: 0.0, law, 1e-3) > 0.0
    assert selected_epsilon(lambda delta: None, law, 1e-3) is None


@every_case("shape, mean", [(1.0, 24.0), (0.0, 8.0), (2.0, 10.0)])
def test_divergences_are_dp_accountings(shape, mean):
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5))
    run = dp_accounting.SelfComposedDpEvent(event, 50)
    theirs = rdp.RdpAccountant()
    theirs.compose(dp_event.RepeatAndSelectDpEvent(run, mean, shape))
    choice = best_of({ROUND: 50}, Repetitions.with_mean(shape, mean))
    ours = rdp_epsilon({choice.release: 1}, 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert guarantee({choice: 1}, 1e-5).epsilon < ours


@every_case("rounds, z", [(100, 2.25), (100, 7.22), (20, 1.0)])
def test_eight_rates_cost_at_most_twice_a_single_run(rounds, z):
    event = Event(PoissonSampled(0.1, Gaussian(z)), "poisson")
    law = Repetitions.with_mean(1.0, 24.0)
    single = guarantee({event: rounds}, 1e-5).epsilon
    chosen = guarantee({best_of({event: rounds}, law): 1}, 1e-5).epsilon
    assert single < chosen <= 2.0 * single
    assert 1 - law.generating(7 / 8) > 0.77


def test_events_go_to_json_and_back():
    choice = best_of({ROUND: 5, Event(Gaussian(2.0), "full"): 1}, LAWS[1])
    assert Event.from_json(choice.to_json()) == choice
    assert choice.sampler == "full, poisson"
    broken = choice.to_json()
    for change in ({"gamma": 2.0}, {"of": []}, {"of": [[{"kind": "gaussian"}, 1]]}):
        with pytest.raises(Unaccountable):
            Event.from_json({**broken, "release": {**broken["release"], **change}})


def test_parts_of_a_run_protect_the_same():
    with pytest.raises(Unaccountable, match="agree in both"):
        best_of({ROUND: 1, Event(Gaussian(1.0), "full", ZERO_OUT): 1}, LAWS[0])


@every_case(
    "release, relation, by_rdp, by_pld",
    [
        (ROUND.release, "add/remove", True, True),
        (Skellam(400.0, 10.0, 50.0), REPLACE_ONE, True, False),
        (TruncatedPoisson(0.1, 20, 100, Gaussian(1.0)), "add/remove", False, True),
        (ROUND.release, ZERO_OUT, False, False),
    ],
    ids=["poisson", "integers", "truncated", "unproven relation"],
)
def test_a_choice_is_accounted_for_by_whoever_accounts_for_its_runs(
    release, relation, by_rdp, by_pld
):
    choice = best_of({Event(release, "any", relation): 3}, LAWS[0])
    assert (supports(choice, "rdp"), supports(choice, "pld")) == (by_rdp, by_pld)
    for name, able in (("rdp", by_rdp), ("pld", by_pld)):
        bound = epsilon({choice: 1}, 1e-5, name)
        assert (bound is not None) == able


def test_beside_other_events_divergences_are_added_and_pld_is_silent():
    choice = best_of({ROUND: 50}, LAWS[0])
    both = guarantee({choice: 1, ROUND: 10}, 1e-5)
    assert both.by_accountant["pld"] is None
    assert both.epsilon == rdp_epsilon({choice.release: 1, ROUND.release: 10}, 1e-5)
    assert both.epsilon > guarantee({choice: 1}, 1e-5).epsilon
    assert guarantee({choice: 2}, 1e-5).epsilon > guarantee({choice: 1}, 1e-5).epsilon


def test_runs_without_noise_promise_nothing():
    for release in (Unprotected("none"), Gaussian(0.0)):
        choice = best_of({ROUND: 1, Event(release, "poisson"): 1}, LAWS[0])
        assert guarantee({choice: 1}, 1e-5).epsilon == math.inf


def test_slack_counts_for_every_candidate():
    slack = 1e-9
    aborting = Event(ROUND.release, "poisson", slack=slack)
    choice = best_of({aborting: 50}, LAWS[0])
    assert choice.slack == pytest.approx(50 * slack * LAWS[0].mean)
    plain = guarantee({best_of({ROUND: 50}, LAWS[0]): 1}, 1e-5).epsilon
    assert guarantee({choice: 1}, 1e-5).epsilon > plain


def test_rounds_that_keep_a_separation_count_as_they_touch_a_client():
    cyclic = Event(Separated(4, Gaussian(2.0)), "cyclic", ZERO_OUT)
    choice = best_of({cyclic: 10}, LAWS[0])
    assert choice.release.of == ((Gaussian(2.0), 3),)
    assert within({cyclic: 10}, choice.release)
    assert within({cyclic: 12}, choice.release)
    assert not within({cyclic: 13}, choice.release)
    assert not within({ROUND: 1}, choice.release)


def test_noise_is_solved_for_all_of_it():
    def whole(z):
        return best_of({Event(PoissonSampled(0.1, Gaussian(z)), "poisson"): 100}, LAWS[0])

    z = noise_multiplier(whole, 1, 2.0, 1e-5)
    assert 1.99 < guarantee({whole(z): 1}, 1e-5).epsilon <= 2.0
    assert guarantee({whole(0.98 * z): 1}, 1e-5).epsilon > 2.0
