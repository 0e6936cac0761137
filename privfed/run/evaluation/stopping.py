"""When a run ends early: where so many evaluations in a row were no better than the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.setup import Setup


@dataclass(frozen=True)
class Stopping:
    """Counts evaluations in a row that were no better than the `best`, up to `patience` of them.

    Of a measure with an interval, the best is an estimate, and the best of many is flattered by its
    noise: an evaluation counts only where even the better end of its interval is no better. It
    reads public or charged measures alone, so that when a run ends is post-processing.
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
        end = measures.get(f"{self.by}_{'low' if self.lower_is_better else 'high'}", value)
        if math.isnan(self.best) or self._better(value):
            return replace(self, best=value, since=0)
        return replace(self, since=0 if self._better(end) else self.since + 1)

    def _better(self, value: float) -> bool:
        """Whether it is better than the best."""
        return value < self.best if self.lower_is_better else value > self.best

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
