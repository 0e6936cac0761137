"""One check per condition of the proof, for the mechanism as it really runs in a round.

Each takes a folder to work in, runs rounds of the code (mutated or not), and raises
`AssertionError` if the condition is violated.
"""

from __future__ import annotations

import numpy as np
import torch
from fixed_draws import SAMPLE, assert_rate, dealt
from helpers import Memory, Rounds, assert_normal, population, set_fields
from scipy import stats

from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.norm_bound import NormBound
from defenses.by_sums.sign_majority import SignMajority
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.sampling.cohort import Population

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)


def noise_has_the_charged_scale(folder) -> None:
    """With lr = 0, the release is noise of standard deviation z C / (q N)."""
    for simulated in (True, False):
        rounds = Rounds(folder, SIZES, lr=0.0, noise=1.7, clip=0.3, size=4, simulated=simulated)
        released = rounds.released(200)
        event = rounds.world.ledger.charges[0].event
        z = event.release.of.noise_multiplier
        assert_normal(released, z * 0.3 / 4)
        for word in SAMPLE[:5].tolist():  # a sample could not detect a thousandth less
            rounds = Rounds(folder, SIZES, lr=0.0, noise=1.7, clip=0.3, simulated=simulated)
            with dealt(word):
                size = np.abs(rounds.released()[0])
            np.testing.assert_allclose(size, z * 0.3 / 4 * stats.norm.isf((word >> 1) / 2.0**64),
                                       rtol=1e-5)  # fmt: skip


def noise_is_fresh_every_round(folder) -> None:
    """No two rounds, and no two coordinates, share noise."""
    released = Rounds(folder, SIZES, lr=0.0).released(60)
    correlation = np.corrcoef(released)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 0.97, "two rounds share their noise"
    assert len(np.unique(released.round(12))) == released.size


def one_client_moves_the_sum_by_at_most_the_clip(folder) -> None:
    """Noiseless rounds with full participation, with and without each client, huge updates
    included.
    """
    clip, size = 0.05, len(SIZES)
    for lr in (0.5, 1e4):

        def released(sizes, lr=lr):
            rounds = Rounds(
                folder, SIZES, federation=population(sizes), noise=0.0, clip=clip, size=size, lr=lr
            )
            return rounds.released()[0].astype(np.float64)

        everybody = released(SIZES)
        for client in range(size):
            without = [0 if k == client else n for k, n in enumerate(SIZES)]
            change = np.linalg.norm(everybody - released(without)) * size
            assert change <= clip * (1 + 1e-5), f"client {client} moved the sum by {change:g}"
        gone = released(SIZES[:-1])  # the last client removed entirely, as the relation states
        assert np.linalg.norm(everybody - gone) * size <= clip * (1 + 1e-5)


def a_weight_never_lengthens_a_clipped_row(folder) -> None:
    """Weights by examples or by constants that reach a plain sum under privacy have no effect.

    The release equals the release without weights bit for bit, and a single row has at most the
    clipping norm.
    """
    clip, size = 0.05, len(SIZES)
    weighted = {"by_examples": True}, {"weights": tuple(range(1, size + 1))}
    adaptive = CentralGaussian(clip=clip, noise_multiplier=1.0, adaptive_clip=True, count_noise=2.0)
    for mechanism in (
        CentralGaussian(clip=clip, noise_multiplier=1.0),
        adaptive,
        LocalGaussian(clip=clip, noise_multiplier=1.0),
    ):

        def released(mechanism=mechanism, **weights):
            rounds = Rounds(folder, SIZES, size=size, lr=1e3, mechanism=mechanism)
            set_fields(rounds.world.executor, **weights)
            return rounds.released()

        for weights in weighted:
            np.testing.assert_array_equal(released(**weights), released())
    for weights in weighted:
        rounds = Rounds(folder, (0, 9), noise=0.0, clip=clip, size=2, lr=1e3)
        set_fields(rounds.world.executor, **weights)
        assert np.linalg.norm(rounds.released()[0]) * 2 <= clip * (1 + 1e-5)


def the_divisor_does_not_depend_on_who_took_part(folder) -> None:
    """A client contributes its clipped row / (q N), for any number of other clients."""

    def alone(empty):
        sizes = [7, *[0] * empty]
        rounds = Rounds(folder, sizes, noise=0.0, clip=0.05, size=len(sizes), lr=1e3)
        return np.linalg.norm(rounds.released()[0]) * len(sizes)

    norms = [alone(empty) for empty in (0, 3, 9)]
    np.testing.assert_allclose(norms, 0.05, rtol=1e-5)
    # For any cohort, the release is the sum of clipped rows over q N, never over n.
    rounds = Rounds(folder, [7] * 8, noise=0.0, clip=0.05, size=4, lr=1e3, seed=1)
    released = rounds.released()[0]
    cohort = rounds.algorithm.sampler.sample(1, 8, Population.of(np.ones(8)), rounds.world.streams)
    keys = rounds.world.streams.at("shuffle", 1, cohort.clients)
    rows, _ = rounds.local.train(cohort.clients, {"params": rounds.state.params}, None, keys)
    clipped = rows * (0.05 / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    assert len(cohort.clients) not in (0, 4), "choose another seed: this cohort proves nothing"
    np.testing.assert_allclose(released, clipped.sum(0) / 4, rtol=1e-4, atol=1e-7)


def the_charge_is_durable_before_anybody_is_drawn(folder) -> None:
    """The ledger's file holds a round's charge before clients are sampled and before the
    release.
    """
    rounds = Rounds(folder, SIZES)
    seen = []

    class Watching:
        """A sampler that looks into the ledger's file before it draws."""

        def __init__(self, sampler) -> None:
            self._sampler = sampler
            self.size, self.reads_sizes = sampler.size, sampler.reads_sizes
            self.remembers = sampler.remembers

        def witness(self, *args):
            return self._sampler.witness(*args)

        def sample(self, round, *args):
            charge = Ledger.load(rounds.path).charged(round)
            assert charge is not None, f"round {round} was drawn before it was charged"
            seen.append(round)
            return self._sampler.sample(round, *args)

    class Store(Memory):
        def write(self, charge, released, state):
            stored = Ledger.load(rounds.path).charged(charge.round)
            assert stored == charge, "released before it was charged"
            super().write(charge, released, state)

    set_fields(rounds.algorithm, sampler=Watching(rounds.algorithm.sampler))
    set_fields(rounds.world, store=Store())
    rounds.run(3)
    assert seen == [1, 2, 3]


def the_sampler_is_the_one_charged_for(folder) -> None:
    """Participation is independent Bernoulli with the event's rate: marginals and cohort sizes
    agree.
    """
    for simulated in (True, False):
        rounds = Rounds(folder, [0] * 40, size=8, simulated=simulated)
        draws = 600
        rounds.run(1)
        event = rounds.world.ledger.charges[0].event.release
        assert isinstance(event, PoissonSampled)
        assert isinstance(event.of, Gaussian)
        sampler, streams = rounds.algorithm.sampler, rounds.world.streams

        def there(sampler=sampler, streams=streams):
            federation = Population.of(np.ones(40))
            return np.isin(np.arange(40), sampler.sample(1, 40, federation, streams).clients)

        assert_rate(there, event.rate)  # a frequency could not detect 2 % more
        drawn = np.zeros((draws, 40))
        for round in range(draws):
            cohort = sampler.sample(round, 40, Population.of(np.ones(40)), streams)
            drawn[round, cohort.clients] = 1
        sizes = drawn.sum(1)
        assert stats.binomtest(int(drawn.sum()), drawn.size, event.rate).pvalue > 1e-6
        spread = (draws - 1) * sizes.var(ddof=1) / (40 * event.rate * (1 - event.rate))
        tail = min(stats.chi2.cdf(spread, draws - 1), stats.chi2.sf(spread, draws - 1))
        assert tail > 1e-6, f"cohort sizes vary by {sizes.var():g}, not as Poisson sampling does"
        worst = min(stats.binomtest(int(n), draws, event.rate).pvalue for n in drawn.sum(0))
        assert worst > 1e-7, "a client is drawn at another rate than charged"


def exchanges_are_charged_together_and_noised_apart(folder) -> None:
    """Two releases over one cohort: one event at z / sqrt(2), and independent noise."""
    from helpers import TwoExchanges

    rounds = Rounds(folder, SIZES, lr=0.0, noise=2.0, clip=0.3, size=4, objective=TwoExchanges())
    rounds.run(100)
    (event,) = rounds.world.ledger.spending
    np.testing.assert_allclose(event.release.of.noise_multiplier, 2.0 / np.sqrt(2))
    first, second = (
        np.stack([release[n].numpy() for release in rounds.store.releases.values()]) for n in (0, 1)
    )
    for released in (first, second):
        assert_normal(released, 2.0 * 0.3 / 4)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.2, "exchanges share noise"


def an_empty_cohort_is_charged_and_noised(folder) -> None:
    """The release for an empty cohort has the same noise as any other, or emptiness would show."""
    rounds = Rounds(folder, SIZES, size=1, noise=2.0, clip=0.3, lr=0.0, seed=3)
    rounds.run(60)
    sampler, streams = rounds.algorithm.sampler, rounds.world.streams
    empty = [
        t
        for t in range(1, 61)
        if not len(sampler.sample(t, 8, Population.of(np.ones(8)), streams).clients)
    ]
    assert len(empty) > 10
    assert len(rounds.world.ledger.charges) == 60
    assert_normal(np.stack([rounds.store.releases[t][0].numpy() for t in empty]), 2.0 * 0.3 / 1)


def passes_are_charged_together_and_noised_apart(folder) -> None:
    """Three passes over zero rows: the release minus the cohort's sum is noise.

    One event of z / sqrt(3), and no two passes share their noise.
    """
    clip, size, passes, z = 0.3, 4, 3, 1.7
    rule = GeometricMedian(passes=passes).within(clip)
    rounds = Rounds(folder, SIZES, lr=0.0, noise=z, clip=clip, size=size, rule=rule)
    rounds.run(60)
    sampler, streams = rounds.algorithm.sampler, rounds.world.streams
    noises = []
    for t, charge in enumerate(rounds.world.ledger.charges, start=1):
        assert charge.event.release == PoissonSampled(0.5, Gaussian(z / passes**0.5))
        n = len(sampler.sample(t, 8, Population.of(np.ones(8)), streams).clients)
        releases = rounds.store.releases[t]
        assert len(releases) == passes
        center = torch.zeros(len(releases[0]) - 1)
        for released in releases:
            summed = rule.terms(torch.zeros(1, len(center)), center)[0] * n
            noises.append((released - summed / size).numpy())
            center = rule.step(center, released)
    assert_normal(np.stack(noises), z * clip / size)
    correlation = np.corrcoef(np.stack(noises))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 0.97, "two passes share their noise"


def one_client_moves_a_rules_terms_by_at_most_the_clip(folder) -> None:
    """Noiseless first passes with full participation, and without each client, huge updates
    included.
    """
    clip, size = 0.05, len(SIZES)
    for rule in (GeometricMedian(), NormBound(), CenteredClipping(), SignMajority()):
        for lr in (0.5, 1e4):

            def released(sizes, lr=lr, rule=rule):
                rounds = Rounds(
                    folder,
                    SIZES,
                    federation=population(sizes),
                    noise=0.0,
                    clip=clip,
                    size=size,
                    lr=lr,
                    rule=rule.within(clip),
                )
                return rounds.released()[0].astype(np.float64)

            everybody = released(SIZES)
            gone = released(SIZES[:-1])
            change = np.linalg.norm(everybody - gone) * size
            assert change <= clip * (1 + 1e-5), f"{type(rule).__name__}: {change:g}"


ALL = (
    noise_has_the_charged_scale,
    noise_is_fresh_every_round,
    one_client_moves_the_sum_by_at_most_the_clip,
    a_weight_never_lengthens_a_clipped_row,
    the_divisor_does_not_depend_on_who_took_part,
    the_charge_is_durable_before_anybody_is_drawn,
    the_sampler_is_the_one_charged_for,
    an_empty_cohort_is_charged_and_noised,
    exchanges_are_charged_together_and_noised_apart,
    passes_are_charged_together_and_noised_apart,
    one_client_moves_a_rules_terms_by_at_most_the_clip,
)
