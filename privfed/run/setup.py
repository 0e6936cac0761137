"""A run that is ready to start: its plan, its people, its model, and how it is trained here."""

from __future__ import annotations

from dataclasses import dataclass

from privfed.data.federation import Examples, Federation
from privfed.local.autotune import Speed
from privfed.local.byzantine import Attackers
from privfed.local.executor import LocalExecutor
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.streams import Streams


@dataclass(frozen=True)
class Setup:
    """A run, ready to start. `plan` holds the trainer and the chunk that were measured.

    `speed` is that of training here, `scoring_seconds` what scoring a model takes.
    """

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    executor: LocalExecutor
    streams: Streams
    speed: Speed
    scoring_seconds: float
    attackers: Attackers | None = None
    targeted: Examples | None = None
    """Test examples as attackers feed them in, labelled as they want them read."""

    def initial_state(self) -> TrainingState:
        """The state before round 1."""
        return self.algorithm.initial_state(self.network.initial_params)
