"""What a run does each round: its frozen parts, its event, and the state that it changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from accounting.events import Event
from defenses.types import RowRule, SumRule
from privfed.client.objective import Cohorts, Memory, Objective
from privfed.core.deferred import Tensor
from privfed.core.schedules import CONSTANT, Schedule
from privfed.core.streams import Streams
from privfed.core.vector import Layout
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import Mechanism, PublicState
from privfed.sampling.cohort import Cohort, People, Sampler, Witness
from privfed.sampling.evaluation_rounds import EvaluationRounds, over_larger_population
from privfed.sampling.site_coins import over_several_sites
from privfed.secure.aborts import round_event
from privfed.secure.summation import Summation
from privfed.server.optimizer import ServerOptimizer
from privfed.server.optimizer import State as ServerState


def releases_per_round(objective: Objective, rule: SumRule | RowRule) -> int:
    """Releases per round, known before it: together they make one event."""
    return objective.exchanges - 1 + rule.uploads


@dataclass(frozen=True)
class Algorithm:
    """What a run does each round: frozen parts and declared constants."""

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
    """At least the probability that a round aborts for all to see (`privfed.secure.aborts`), where
    that tells who was drawn."""
    evaluates: bool = False
    """Whether its rounds measure the model by clients, and leave it as it is."""
    evaluation_rounds: EvaluationRounds = field(default_factory=lambda: EvaluationRounds(0))
    """Which rounds of the run are of that kind."""
    sites: int = 0
    """How many sites are the parties of sums; 0: clients are."""
    sites_per_client: int = 1
    """At how many sites a client's rows may lie, each of which counts as one part of so many."""
    canaries: int = 0
    """How many made-up clients there may be in the population beside the `clients` declared."""

    def moved(
        self, round: int, params: Tensor, delta: Tensor, state: ServerState
    ) -> tuple[Tensor, ServerState]:
        """The server's step from `params` `[d]` in `round`: the next model `[d]`, and its state."""
        server, factor = self.server, self.schedule.factor(round)
        if server.in_client_rates:
            rate = self.client_schedule.factor(round)
            delta, factor = delta / rate if rate else delta, factor * rate
        return (server if factor == 1.0 else server.at(factor)).step(params, delta, state)

    @property
    def cohorts(self) -> Cohorts:
        """The public constants of cohorts that objectives may use."""
        period = self.sampler.witness(0, self.clients).period
        return Cohorts(self.clients, float(self.sampler.size), period)

    def witness(self, round: int) -> Witness:
        """The rule by which the cohort of `round` is drawn."""
        witness = self.sampler.witness(round, self.clients)
        larger = over_larger_population(witness, self.canaries)
        return over_several_sites(larger, self.sites_per_client)

    def draw(self, round: int, people: People, streams: Streams) -> Cohort:
        """The cohort of `round`.

        A sampler whose draws hang together counts the rounds of its kind alone: a client who takes
        part in every b-th round that trains does so also where every b-th of all rounds evaluates.
        """
        turn = self.evaluation_rounds.turn(round) if self.sampler.remembers else round
        cohort = self.sampler.sample(turn, self.clients, people, streams)
        return replace(cohort, round=round)

    @property
    def fixed_divisor(self) -> bool:
        """Whether rows weigh one and their sum is divided by the configuration's constant."""
        return self.mechanism.private or self.objective.sums_states

    def initial_state(self, params: Tensor) -> TrainingState:
        """The state before round 1; a rule that keeps a center starts from no movement."""
        return TrainingState(
            params,
            self.server.init(params),
            self.mechanism.init(),
            self.objective.init(params),
            self.rule.memory(params),
        )

    @property
    def exchanges(self) -> int:
        """Releases per round."""
        return releases_per_round(self.objective, self.rule)

    def wire(self, layout: Layout) -> Layout:
        """What a client sends: the rule's terms, and its weight where that is not public."""
        if self.rule.extra:
            layout = layout.plus("terms", self.rule.extra)
        return layout if self.fixed_divisor else layout.plus("weight", 1)

    def encoding_factor(self, parameters: int) -> float:
        """The norm of what is summed, over that of a client's row; 1 without a secure sum.

        Raises `Refused` where the secure sum cannot hold it.
        """
        encoding = self.mechanism.encoding(self.mechanism.init())
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        norm = self.summation.encoded(encoding, width)
        return norm / encoding.bound if encoding.bound < math.inf else 1.0

    @property
    def noise_share(self) -> Share | None:
        """The noise that each party adds to a sum; None where they add none."""
        return self.mechanism.encoding(self.mechanism.init()).noise

    def grid_step(self, parameters: int) -> float | None:
        """The step of the whole numbers that are summed; None without a secure sum."""
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        return self.summation.step(self.mechanism.encoding(self.mechanism.init()), width)

    def event(self, round: int) -> Event:
        """What `round` is charged: a pure function of declared constants."""
        return round_event(self.mechanism, self.witness(round), self.exchanges, self.aborts)


@dataclass(frozen=True)
class TrainingState:
    """All that a round changes, all of it public.

    The model `[d]`, and what server optimizer, mechanism, objective and rule remember. Of simulated
    attackers who read raw updates, what they remember: such a run guarantees nothing.
    """

    params: Tensor
    server: ServerState
    mechanism: PublicState
    objective: Memory = field(default_factory=dict)
    rule: Memory = field(default_factory=dict)
    attack: Memory = field(default_factory=dict)
    evaluation: Memory = field(default_factory=dict)
    """What the last evaluation by clients released, and how evaluations went before it."""
