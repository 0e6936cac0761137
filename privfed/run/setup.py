"""A run that is ready to start: its plan, its people, its model, and how it is trained here."""

from __future__ import annotations

from dataclasses import dataclass

from privfed.data.federation import Examples, Federation
from privfed.local.autotune import Speed
from privfed.local.byzantine import Attackers
from privfed.local.executor import InProcess
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.streams import Streams


@dataclass(frozen=True)
class Setup:
    """A run, ready to start. `plan` holds the trainer and the chunk that were measured.

    `speed` is that of training here, `evaluation` the seconds that scoring a model takes.
    """

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    executor: InProcess
    streams: Streams
    speed: Speed
    evaluation: float
    attackers: Attackers | None = None
    targeted: Examples | None = None
    """Test examples as attackers feed them in, labelled as they want them read."""

    def start(self) -> TrainingState:
        """The state before round 1."""
        return self.algorithm.start(self.network.start)
