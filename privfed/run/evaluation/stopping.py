"""When a run ends early: where so many evaluations in a row were no better than the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.setup import Setup


@dataclass(frozen=True)
class Stopping:
    """Counts evaluations without a better one, of the measure `by`, up to `patience` of them.

    It reads public or charged measures alone, so that when a run ends is post-processing.
    """

    patience: int
    by: str
    lower_is_better: bool
    best: float = math.nan
    since: int = 0

    def after(self, measures: Mapping[str, float]) -> Stopping:
        """With one more evaluation; one without the measure, or with no number, is none."""
        value = measures.get(self.by, math.nan)
        if math.isnan(value):
            return self
        better = value < self.best if self.lower_is_better else value > self.best
        best, since = (value, 0) if better or math.isnan(self.best) else (self.best, self.since + 1)
        return Stopping(self.patience, self.by, self.lower_is_better, best, since)

    @property
    def over(self) -> bool:
        """Whether the run ends."""
        return 0 < self.patience <= self.since


def stopping_of(setup: Setup) -> Stopping:
    """When a run ends early: by the first measure that its evaluations have, or by the one that it
    names.
    """
    config, measures = setup.plan.config, setup.executor.measures
    patience, by, loss = config.stop.patience, config.stop.by, config.loss
    if measures:
        named = zip(config.evaluation.measures, measures.row.measures, strict=True)
        measure = dict(named)[by or config.evaluation.measures[0]]
        title = measure.title(measures.row.scoring)
        return Stopping(patience, f"{PREFIX}{title}", measure.lower_is_better)
    lower = loss.lower_is_better if by in ("", loss.measure) else by == "loss"
    return Stopping(patience, by or loss.measure, lower)
