"""The round at which `stop.patience` would have ended a complete run, by the engine's rule.

Until that round both runs are identical, including their randomness.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.federated_evaluation.scored import Scored
from privfed.metrics.accuracy import Accuracy
from privfed.metrics.mean_loss import MeanLoss
from privfed.run.recorder import Stopping

LOWER_IS_BETTER = {"accuracy": Accuracy.lower_is_better, "loss": MeanLoss.lower_is_better}
"""Whether lower is better, by the measure that stops a run."""


def stopped(run: Sequence[Scored], patience: int, by: str, charged: bool) -> Scored:
    """Returns the final model of `run` if evaluations of `by` stop it, `charged` or public."""
    stopping = Stopping(patience, by, LOWER_IS_BETTER[by])
    for scored in run:
        stopping = stopping.after(_measured(scored, by, charged))
        if stopping.over:
            return scored
    return run[-1]


def _measured(scored: Scored, by: str, charged: bool) -> dict[str, float]:
    """Returns the measure as an evaluation reports it: with its interval, if clients evaluated."""
    if not charged:
        return {by: getattr(scored, by)}
    return {by: scored.estimate, f"{by}_low": scored.low, f"{by}_high": scored.high}
