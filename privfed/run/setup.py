"""A run that is ready to start: its plan, its people, its model, and how it is trained here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privfed.client.autotune import Speed
from privfed.client.byzantine import Attackers
from privfed.client.executor import LocalExecutor
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.holdout import with_held_back
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm, TrainingState


@dataclass(frozen=True)
class Setup:
    """A run, ready to start. `plan` holds the trainer and the chunk that were measured.

    `speed` is that of training here, `scoring_seconds` what scoring a model takes.
    """

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    """What happens in rounds that train."""
    executor: LocalExecutor
    streams: Streams
    speed: Speed
    scoring_seconds: float
    evaluation: Algorithm | None = None
    """What happens in rounds in which clients evaluate; None where they do not."""
    attackers: Attackers | None = None
    targeted: Examples | None = None
    """Test examples as attackers feed them in, labelled as they want them read."""

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """What happens in the rounds of each kind."""
        return (self.algorithm, self.evaluation) if self.evaluation else (self.algorithm,)

    @property
    def state_length(self) -> int:
        """How many numbers each client keeps between rounds."""
        return self.executor.trainer.objective.state_length(self.network.shapes.length)

    def algorithm_in(self, round: int) -> Algorithm:
        """What happens in `round`."""
        if self.evaluation and round in self.plan.config.evaluation_rounds:
            return self.evaluation
        return self.algorithm

    def over(self, people: Federation) -> Setup:
        """The same run over other people, on the model's device."""
        here = people.to(self.network.initial_params.device)
        measures = self.executor.measures
        if measures:
            here, scored = with_held_back(here, self.plan.config.evaluation.holdout)
            measures = replace(measures, federation=scored)
        trainer = replace(self.executor.trainer, federation=here)
        executor = replace(self.executor, trainer=trainer, measures=measures)
        return replace(self, federation=here, executor=executor)

    def initial_state(self) -> TrainingState:
        """The state before round 1."""
        return self.algorithm.initial_state(self.network.initial_params)
