"""Where `stop.patience` would have ended a run that went on to its end, as the engine decides it.

Until then both are the same run, coin for coin.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.federated_evaluation.scored import Scored
from privfed.metrics.accuracy import Accuracy
from privfed.metrics.mean_loss import MeanLoss
from privfed.run.recorder import Stopping

LOWER_IS_BETTER = {"accuracy": Accuracy.lower_is_better, "loss": MeanLoss.lower_is_better}
"""By the measure that a run is stopped by."""


def stopped(run: Sequence[Scored], patience: int, by: str, charged: bool) -> Scored:
    """The model that `run` ends with, where evaluations of `by` end it, `charged` or public."""
    stopping = Stopping(patience, by, LOWER_IS_BETTER[by])
    for scored in run:
        stopping = stopping.after(_measured(scored, by, charged))
        if stopping.over:
            return scored
    return run[-1]


def _measured(scored: Scored, by: str, charged: bool) -> dict[str, float]:
    """The measure, as an evaluation has it: with its interval, where clients made it."""
    if not charged:
        return {by: getattr(scored, by)}
    return {by: scored.estimate, f"{by}_low": scored.low, f"{by}_high": scored.high}
