"""What every sampler keeps: cohorts that are drawn by the rule its witness declares."""

from dataclasses import replace

import numpy as np
from contracts.registered import contract_tests

from privfed.core.streams import Streams
from privfed.sampling.asynchronous import Asynchronous
from privfed.sampling.cohort import Cohort
from privfed.sampling.samplers import CappedPoisson, Cyclic, FixedSize, Full, Poisson
from privfed.testing.hooks import (
    bounds_the_staleness_it_declares,
    declares_the_release_of_its_draws,
    draws_afresh_and_in_secret,
    draws_cohorts_of_its_form,
    includes_clients_at_the_declared_rate,
    keeps_the_separation_it_declares,
    reads_no_sizes_it_does_not_declare,
)


class OfThePresent(Poisson):
    """Its rate follows from the clients who are there."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, len(population), population, streams)
        return replace(cohort, witness=self.witness(round, clients))


class TooOften(Poisson):
    """Bernoulli draws of twice the declared rate."""

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


class Older(Asynchronous):
    """Clients train models that the server no longer stores."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, clients, population, streams)
        return replace(cohort, staleness=cohort.staleness + 1)


class Heavy(Asynchronous):
    """Late rows count for more."""

    def sample(self, round, clients, population, streams):
        cohort = super().sample(round, clients, population, streams)
        return replace(cohort, weights=1.0 + cohort.staleness)


class Unsaid(Asynchronous):
    """Clients train earlier models, and the server stores none."""

    def largest_staleness(self):
        return 0


class Soon(Asynchronous):
    """A client returns as soon as it has delivered."""

    def _periods(self, delays):
        return delays + 1


class Half(Full):
    """Every other client, declared as all clients."""

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
        keeps_the_separation_it_declares: [OutOfTurn(), Soon()],
        bounds_the_staleness_it_declares: [Older(), Heavy(), Unsaid()],
        draws_afresh_and_in_secret: [ForEver()],
        reads_no_sizes_it_does_not_declare: [Largest()],
    },
)
