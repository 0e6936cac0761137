"""Measures of federated evaluation by correct predictions: accuracy, and recall at k."""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.data.federation import NO_LABEL
from privfed.metrics.mean_measure import MeanMeasure
from privfed.metrics.measure import Count, Scoring


class Accuracy(MeanMeasure):
    """The fraction of examples, or of a sequence's labelled positions, with a correct prediction.

    An example counts 1 if the predicted class is its label, and else 0. A sequence counts as one
    example, with the fraction of its labelled positions that are correct. Non-finite outputs count
    as wrong.
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
    """Returns the mean of `values` over each example's labelled positions.

    Args:
      values: one value per position, shape `[n, *positions]`; `[n]` if examples are not sequences.
      y: labels, shape `[n, *positions]`; `NO_LABEL` marks padding.
      scoring: the form of the examples.

    Returns:
      One value per example, shape `[n]`; 0 for a sequence without labelled positions.
    """
    if not scoring.sequences:
        return values
    labelled = (y != NO_LABEL).flatten(1).double()
    return (values.flatten(1) * labelled).sum(1) / labelled.sum(1).clamp(min=1)


class RecallAtK(MeanMeasure):
    """The fraction of an example's labels that are among the k most likely classes.

    With one class per example, this is 1 if the class is among the k most likely and 0 otherwise;
    for a sequence, the mean over its labelled positions. In a multi-label task, examples without
    any label are not counted. Non-finite outputs count as 0.
    """

    k: int = Field(5, ge=1)
    """Number of most likely classes that count as predicted."""

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
