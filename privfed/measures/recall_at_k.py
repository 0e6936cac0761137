"""The share of an example's labels among the likeliest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from privfed.deferred import torch
from privfed.measures.accuracy import per_position
from privfed.measures.mean_measure import MeanMeasure
from privfed.measures.measure import Count
from privfed.measures.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor


class RecallAtK(MeanMeasure):
    """The share of an example's labels among the k likeliest: whether its class is one of them.

    An example of several labels that has none counts for nothing.
    """

    k: int = Field(5, ge=1)
    """How many of the likeliest are looked at."""

    def title(self, scoring: Scoring) -> str:
        return f"recall_at_{self.k}"

    def lacks(self, scoring: Scoring) -> str:
        enough = not scoring.numbers and scoring.form.classes > self.k
        return "" if enough else f"more than {self.k} classes or label columns"

    def count(self, scoring: Scoring) -> Count:
        return Count.APART if scoring.label_columns else super().count(scoring)

    def counted(self, y: Tensor, scoring: Scoring) -> Tensor:
        return y.sum(-1) > 0 if scoring.label_columns else super().counted(y, scoring)

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        return 0.0, 1.0

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        likely = scoring.loss.expectation(outputs, scoring.form.meaning).topk(self.k, -1).indices
        finite = outputs.isfinite().all(-1)
        if scoring.label_columns:
            recalled = y.gather(-1, likely).sum(-1).double() / y.sum(-1).clamp(min=1)
            return torch.where(finite, recalled, 0.0)
        among = (likely == y[..., None]).any(-1) & finite
        return per_position(among.double(), y, scoring)
