"""What every sampler keeps: cohorts that are drawn by the rule its witness declares."""

import contextlib
from dataclasses import replace

import numpy as np
from contracts.registered import contract_tests
from scipy import stats

from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.sampling.cohort import Cohort, Population
from privfed.sampling.samplers import CappedPoisson, Cyclic, FixedSize, Full, Poisson

CLIENTS, ROUNDS = 40, 1000
STREAMS = Streams(3, simulated=True)


def small(sampler):
    """The sampler for `CLIENTS` declared, of which it draws a quarter where that is a key."""
    free = "size" in type(sampler).model_fields and not sampler.derives_size
    return (sampler.model_copy(update={"size": 10}) if free else sampler).of(CLIENTS)


def fitting(sampler):
    """How many clients may be present: as many as declared, fewer and more where it allows."""
    for present in (CLIENTS, 25, 60):
        with contextlib.suppress(Refused):
            sampler.fits(present, CLIENTS)
            sampler.witness(1, CLIENTS).refuse_population(present, CLIENTS)
            yield present


def population_of(present, sizes=None):
    return Population.of(np.ones(present, np.int64) if sizes is None else sizes)


def drawn(sampler, present, rounds=ROUNDS, streams=STREAMS):
    population = population_of(present)
    return [sampler.sample(r, CLIENTS, population, streams) for r in range(1, rounds + 1)]


def entered(cohorts, present):
    """Which client was in which cohort `[rounds, present]`."""
    return np.stack([np.isin(np.arange(present), cohort.clients) for cohort in cohorts])


def draws_cohorts_of_its_form(part):
    sampler = small(part)
    assert sampler.of(CLIENTS) == sampler, "what follows from the clients is settled once"
    for present in fitting(sampler):
        divisors = set()
        for number, cohort in enumerate(drawn(sampler, present, 60), 1):
            assert cohort.round == number
            assert cohort.witness == sampler.witness(number, CLIENTS)
            assert (np.diff(cohort.clients) > 0).all()
            assert set(cohort.clients) <= set(range(present))
            assert len(cohort.clients) <= (sampler.capacity() or present)
            divisors.add(cohort.divisor)
        assert divisors == {float(sampler.size)}, "the divisor is a configured constant"


def includes_clients_at_the_declared_rate(part):
    """Whoever is present: by chi-square over all clients, at 1e-6; no larger rate, and no less."""
    sampler = small(part)
    for present in fitting(sampler):
        often = entered(drawn(sampler, present), present).sum(0)
        rate = sampler.witness(1, CLIENTS).rate
        release = sampler.witness(1, CLIENTS).release
        if isinstance(release, TruncatedPoisson):  # a uniform part of those that enter
            sizes = stats.binom(present, rate)
            among = np.arange(present + 1)
            rate = float((sizes.pmf(among) * np.minimum(among, release.cap)).sum()) / present
        mean = ROUNDS * rate
        if sampler.remembers or rate == 1:  # the same number for all: no chance
            assert (often == round(mean)).all()
            continue
        total = (often.sum() - present * mean) / np.sqrt(present * mean * (1 - rate))
        assert abs(total) < 5, f"a rate of {often.mean() / ROUNDS:g} for {rate:g}"
        statistic = ((often - mean) ** 2 / (mean * (1 - rate))).sum()
        assert stats.chi2.sf(statistic, present) > 1e-6


def declares_the_release_of_its_draws(part):
    """Sizes, numbers and rates that are named in the event are those of the draws."""
    sampler = small(part)
    witness = sampler.witness(1, CLIENTS)
    sizes = {len(cohort.clients) for cohort in drawn(sampler, CLIENTS, 200)}
    release = witness.release
    assert witness.random == (len(sizes) > 1) or sampler.remembers
    assert witness.shares_places == sampler.shares_places
    if isinstance(release, PoissonSampled):
        assert release.rate == witness.rate
        assert len(sizes) > 1
    if isinstance(release, TruncatedPoisson):
        assert max(sizes) == sampler.capacity() == release.cap
    if isinstance(release, WithoutReplacement):
        assert sizes == {sampler.size}
    assert not sampler.reads_sizes or release is None, "sizes are private"


def keeps_the_separation_it_declares(part):
    """Once at most in `separation` rounds in a row, and once in `period` from the first on."""
    sampler = small(part)
    witness = sampler.witness(1, CLIENTS)
    who = entered(drawn(sampler, CLIENTS, 120), CLIENTS)
    for start in range(len(who) - witness.separation + 1):
        assert (who[start : start + witness.separation].sum(0) <= 1).all() or (
            witness.separation == 1
        )
    if witness.period > 1:
        periods = len(who) // witness.period
        turns = who[: periods * witness.period].reshape(periods, witness.period, -1)
        assert (turns.sum(1) == 1).all()


def draws_afresh_and_in_secret(part):
    """Rounds differ, and another run draws others, unless everybody always takes part."""
    sampler = small(part)
    if sampler.witness(1, CLIENTS).rate == 1:
        return
    rounds = {cohort.clients.tobytes() for cohort in drawn(sampler, CLIENTS, 10)}
    keys = (
        [Streams(0, key=bytes([n] * 32)) for n in range(20)]
        if sampler.remembers
        else [Streams(3)] * 20
    )
    runs = {
        sampler.sample(1, CLIENTS, population_of(CLIENTS), each).clients.tobytes() for each in keys
    }
    assert len(rounds) >= 10 / 2
    assert len(runs) > 15


def reads_no_sizes_it_does_not_declare(part):
    sampler = small(part)
    sizes = np.arange(CLIENTS, dtype=np.int64) ** 2
    pairs = [
        [
            sampler.sample(round, CLIENTS, population_of(CLIENTS, each), STREAMS).clients.tolist()
            for each in (None, sizes)
        ]
        for round in range(1, 21)
    ]
    assert sampler.reads_sizes == any(first != second for first, second in pairs)


class OfThePresent(Poisson):
    """Its rate follows from the clients who are there."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, len(population), population, streams)
        return replace(cohort, witness=self.witness(round, clients))


class TooOften(Poisson):
    """Coins of twice the declared rate."""

    def sample(self, round, clients, population, streams):
        drawn = self.model_copy(update={"size": 2 * self.size})
        cohort = drawn.sample_by_coins(round, clients, population, streams)
        return replace(cohort, divisor=float(self.size), witness=self.witness(round, clients))

    def sample_by_coins(self, round, clients, population, streams):
        return super().sample(round, clients, population, streams)


class ByTheirNumber(Poisson):
    """The average is over those who were drawn."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, clients, population, streams)
        return replace(cohort, divisor=float(len(cohort.clients)))


class Overfull(CappedPoisson):
    """It draws more than it has places for."""

    def sample(self, round, clients, population, streams):
        return Poisson.sample(self, round, clients, population, streams)


class FixedAsPoisson(Poisson):
    """It draws exactly `size`, and claims independent draws."""

    def sample(self, round, clients, population, streams):
        cohort = FixedSize(size=self.size).sample(round, clients, population, streams)
        return replace(cohort, witness=self.witness(round, clients))


class OutOfTurn(Cyclic):
    """Slots are drawn again in every round."""

    def sample(self, round, clients, population, streams):
        drawn = Poisson(size=self.size).sample(round, clients, population, streams)
        return replace(drawn, witness=self.witness(round, clients))


class ForEver(Poisson):
    """The cohort of the first round is that of all."""

    def sample(self, round, clients, population, streams):
        return replace(
            super().sample(1, clients, population, Streams(3, simulated=True)),
            round=round,
            witness=self.witness(round, clients),
        )


class Largest(Poisson):
    """It prefers clients with many examples, and does not say so."""

    def sample(self, round, clients, population, streams):
        order = np.argsort(-population.sizes, kind="stable")[: self.size]
        return Cohort(round, np.sort(order), float(self.size), self.witness(round, clients))


class Half(Full):
    """Every other client, as if it were everybody."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, clients, population, streams)
        return replace(cohort, clients=cohort.clients[::2])


test_every_sampler_keeps, test_a_wrong_sampler_is_rejected_by = contract_tests(
    "sampler",
    {
        draws_cohorts_of_its_form: [ByTheirNumber(), Overfull()],
        includes_clients_at_the_declared_rate: [
            OfThePresent(),
            TooOften(),
            Half(),
            ForEver(),
            Largest(),
        ],
        declares_the_release_of_its_draws: [FixedAsPoisson(), Overfull()],
        keeps_the_separation_it_declares: [OutOfTurn()],
        draws_afresh_and_in_secret: [ForEver()],
        reads_no_sizes_it_does_not_declare: [Largest()],
    },
)
