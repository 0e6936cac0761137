"""A run that is ready to start: its plan, population, model, and training mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privfed.client.autotune import Speed
from privfed.client.byzantine import Attackers
from privfed.client.executor import LocalExecutor
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.holdout import with_held_back
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm, TrainingState

PUBLIC = "public examples"
"""Name of the features of public examples among a run's constants."""


@dataclass(frozen=True)
class Setup:
    """A run that is ready to start; its `plan` has the measured training mode and chunk size.

    `speed` is the measured training speed, and `scoring_seconds` the time to score a model on the
    test set.
    """

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    """The algorithm of training rounds."""
    executor: LocalExecutor
    streams: Streams
    speed: Speed
    scoring_seconds: float
    clipped: str = ""
    """A warning that public test examples exceed their declared bounds, or ""."""
    evaluation: Algorithm | None = None
    """The algorithm of rounds in which clients evaluate; None if they do not."""
    attackers: Attackers | None = None
    targeted: Examples | None = None
    """Test examples with the attack applied, labelled with its target classes."""

    @property
    def constants(self) -> dict[str, Tensor]:
        """The tensors that sites need and that training does not change, by name.

        They are those of the model and, if messages are about public examples, the features of
        these (`PUBLIC`).
        """
        public = self.federation.root if self.plan.config.compression.public else None
        features = {} if public is None else {PUBLIC: public.x[torch.arange(len(public))]}
        return {**self.network.constants, **features}

    def at_site(self, site: int) -> Setup:
        """The same run at one site, whose clients have a common architecture."""
        trainers = self.executor.own_trainers
        chosen = (trainers[site % len(trainers)],) if trainers else ()
        return replace(self, executor=replace(self.executor, own_trainers=chosen))

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The algorithms of training rounds and, if clients evaluate, of evaluation rounds."""
        return (self.algorithm, self.evaluation) if self.evaluation else (self.algorithm,)

    @property
    def state_length(self) -> int:
        """Number of values each client keeps between rounds."""
        trainers = self.executor.own_trainers or (self.executor.trainer,)
        return trainers[0].objective.state_length(self.network.shapes.length)

    def algorithm_in(self, round: int) -> Algorithm:
        """The algorithm of `round`, which trains or evaluates."""
        if self.evaluation and round in self.plan.config.evaluation_rounds:
            return self.evaluation
        return self.algorithm

    def over(self, population: Federation) -> Setup:
        """The same run over another population, which is moved to the model's device."""
        here = population.to(self.network.initial_params.device)
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
