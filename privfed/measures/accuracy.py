"""The share of examples whose class is predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfed.data.federation import NO_LABEL
from privfed.measures.mean_measure import MeanMeasure
from privfed.measures.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor


class Accuracy(MeanMeasure):
    """The share of examples, or of a sequence's labelled positions, whose class is predicted.

    An example is correct or not; a sequence counts once, by the share of its positions.
    """

    def title(self, scoring: Scoring) -> str:
        return "accuracy"

    def lacks(self, scoring: Scoring) -> str:
        return "" if scoring.form.classified else "classes"

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        return 0.0, 1.0

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        prediction = scoring.loss.predict(outputs, scoring.form.meaning)["prediction"]
        correct = (prediction == y) & outputs.isfinite().all(-1)
        return per_position(correct.double(), y, scoring)


def per_position(values: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
    """The mean of `values` `[n, *positions]` over each example's labelled positions: `[n]`."""
    if not scoring.sequences:
        return values
    labelled = (y != NO_LABEL).flatten(1).double()
    return (values.flatten(1) * labelled).sum(1) / labelled.sum(1).clamp(min=1)
