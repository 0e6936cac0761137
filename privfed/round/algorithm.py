"""The algorithm of a run: its frozen parts, a round's event, and the state that a round changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.events import Event
from defenses.types import RowRule, SumRule
from privfed.client.objective import Cohorts, Memory, Objective
from privfed.core.deferred import Tensor, torch
from privfed.core.schedules import CONSTANT, Schedule
from privfed.core.streams import Streams
from privfed.core.vector import Layout
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import Mechanism, PublicState
from privfed.sampling.cohort import (
    Cohort,
    Population,
    Sampler,
    Witness,
    over_larger_population,
    over_several_sites,
)
from privfed.sampling.evaluation_rounds import EvaluationRounds
from privfed.sampling.site_delays import SiteDelays
from privfed.secure.aborts import round_event
from privfed.secure.summation import Summation
from privfed.server.optimizer import ServerOptimizer
from privfed.server.optimizer import State as ServerState


def releases_per_round(objective: Objective, rule: SumRule | RowRule) -> int:
    """Returns the number of releases per round (one per exchange), all charged as one event."""
    return objective.exchanges - 1 + rule.uploads


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of a run: its parts (objective, rule, mechanism, sampler, …) and constants.

    Neither changes during the run; `TrainingState` holds what does.
    """

    objective: Objective
    server: ServerOptimizer
    rule: SumRule | RowRule
    mechanism: Mechanism
    sampler: Sampler
    summation: Summation
    clients: int
    byzantine: int = 0
    schedule: Schedule = CONSTANT
    client_schedule: Schedule = CONSTANT
    dropout: float = 0.0
    aborts: float = 0.0
    """Upper bound on the probability that a round publicly aborts, if aborts depend on the sampled
    cohort (`privfed.secure.aborts`).
    """
    evaluates: bool = False
    """Whether clients only evaluate in this algorithm's rounds, which do not change the model."""
    evaluation_rounds: EvaluationRounds = field(default_factory=lambda: EvaluationRounds(0))
    """The rounds of the run in which clients evaluate."""
    sites: int = 0
    """Number of sites that are the parties of sums; 0: clients are the parties."""
    sites_per_client: int = 1
    """Upper bound s on the number of sites at which one client has rows; each of these rows has
    weight 1 / s.
    """
    site_delays: SiteDelays = field(default_factory=SiteDelays)
    """The delays of the sites, in rounds."""
    averaged: int = 0
    """Number of running statistics, the last values of the model's vector. They are averaged over
    clients, without the server optimizer.
    """
    canaries: int = 0
    """Upper bound on the number of canary clients in the population, in addition to the `clients`
    declared.
    """

    def moved(
        self, round: int, params: Tensor, delta: Tensor, state: ServerState
    ) -> tuple[Tensor, ServerState]:
        """Returns the model and the optimizer's state after the server's step.

        Running statistics (the last `self.averaged` values) move by the average update itself.

        Args:
          round: number of the round.
          params: the current model, shape [d].
          delta: the released average update, shape [d].
          state: state of the server optimizer.

        Returns:
          The next model [d], and the next state.
        """
        server, factor, mean = self.server, self.schedule.factor(round), delta
        if server.in_client_rates:
            rate = self.client_schedule.factor(round)
            delta, factor = delta / rate if rate else delta, factor * rate
        server = server if factor == 1.0 else server.at(factor)
        if not self.averaged:
            return server.step(params, delta, state)
        d = len(params) - self.averaged
        moved, state = server.step(params[:d], delta[:d], state)
        return torch.cat([moved, params[d:] + mean[d:]]), state

    @property
    def cohorts(self) -> Cohorts:
        """The public constants for objectives: clients, expected cohort size, sampling period."""
        period = self.sampler.witness(0, self.clients).period
        return Cohorts(self.clients, float(self.sampler.size), period)

    def witness(self, round: int) -> Witness:
        """Returns the sampling rule of `round`, valid also with up to `canaries` more clients.

        It covers clients with rows at up to `sites_per_client` sites; raises `Refused` if that is
        not proved.
        """
        witness = self.sampler.witness(round, self.clients)
        larger = over_larger_population(witness, self.canaries)
        return over_several_sites(larger, self.sites_per_client)

    def draw(self, round: int, population: Population, streams: Streams) -> Cohort:
        """Returns the cohort that is sampled for `round`.

        For a sampler whose rounds depend on each other, training and evaluation rounds are counted
        separately. A client that participates in every b-th training round then does so whatever
        evaluation rounds are in between.
        """
        turn = self.evaluation_rounds.turn(round) if self.sampler.remembers else round
        cohort = self.sampler.sample(turn, self.clients, population, streams)
        cohort = replace(cohort, round=round)
        if population.sites is None:
            return cohort
        return self.site_delays.contributors(cohort, population.sites)

    @property
    def fixed_divisor(self) -> bool:
        """Whether all rows have the same constant weight, so that a constant divides their sum.

        This is so if the mechanism is private, or if the server sums client states; otherwise not.
        """
        return self.mechanism.private or self.objective.sums_states

    def initial_state(self, params: Tensor) -> TrainingState:
        """Returns the state before round 1, with the model `params` `[d]`."""
        return TrainingState(
            params,
            self.server.init(params[: len(params) - self.averaged]),
            self.mechanism.init(),
            self.objective.init(params),
            self.rule.memory(params),
            earlier=self._models_before(params),
        )

    def _models_before(self, params: Tensor) -> Memory:
        """Returns `TrainingState.earlier` before round 1: the initial model `[d]`, repeated."""
        count = max(self.sampler.largest_staleness(), self.site_delays.largest)
        return {"models": params.repeat(count, 1)} if count else {}

    @property
    def exchanges(self) -> int:
        """Number of releases per round."""
        return releases_per_round(self.objective, self.rule)

    def wire(self, layout: Layout) -> Layout:
        """Returns the layout of a message: the row, `rule.extra` further numbers, and the weight.

        A constant weight (`fixed_divisor`) is not sent.
        """
        if self.rule.extra:
            layout = layout.plus("terms", self.rule.extra)
        return layout if self.fixed_divisor else layout.plus("weight", 1)

    def encoding_factor(self, parameters: int) -> float:
        """Returns the ratio of the norm bound of an encoded row to that of the row itself.

        The model has `parameters` numbers. The ratio is 1 without a secure sum, or if rows have no
        bound. Raises `Refused` if the secure sum cannot encode the row.
        """
        encoding = self.mechanism.encoding(self.mechanism.init())
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        norm = self.summation.encoded(encoding, width)
        return norm / encoding.bound if encoding.bound < math.inf else 1.0

    @property
    def noise_share(self) -> Share | None:
        """The share of noise that each party adds to a sum; None if parties add no noise."""
        return self.mechanism.encoding(self.mechanism.init()).noise

    def grid_step(self, parameters: int) -> float | None:
        """Returns the real value of one unit of the summed integers; None without a secure sum.

        The model has `parameters` numbers.
        """
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        return self.summation.step(self.mechanism.encoding(self.mechanism.init()), width)

    def event(self, round: int) -> Event:
        """Returns the privacy event of `round`, a pure function of declared constants."""
        return round_event(self.mechanism, self.witness(round), self.exchanges, self.aborts)


@dataclass(frozen=True)
class TrainingState:
    """The server's state, which a round changes. It is public, unless attackers are simulated.

    It contains the model `[d]`, the states of server optimizer, mechanism, objective and rule, and
    the last evaluation. It also contains the memory of simulated attackers, which may read raw
    updates: a run with attackers has no guarantee.
    """

    params: Tensor
    server: ServerState
    mechanism: PublicState
    objective: Memory = field(default_factory=dict)
    rule: Memory = field(default_factory=dict)
    attack: Memory = field(default_factory=dict)
    evaluation: Memory = field(default_factory=dict)
    """The last release of an evaluation by clients, its round, and the number of evaluations."""
    earlier: Memory = field(default_factory=dict)
    """The models `[D, d]` before the last D training rounds, newest first, as "models". D is the
    largest staleness of the sampler; empty if that is 0."""

    def model_before(self, rounds: int) -> Tensor:
        """Returns the model `[d]` of `rounds` training rounds ago; of 0 rounds ago: the current."""
        return self.earlier["models"][rounds - 1] if rounds else self.params

    def after(self, params: Tensor, **changes: Any) -> TrainingState:
        """Returns the state with the next model `params` `[d]` and other `changes`."""
        earlier = {
            name: torch.cat([self.params[None], models[:-1]])
            for name, models in self.earlier.items()
        }
        return replace(self, params=params, earlier=earlier, **changes)
