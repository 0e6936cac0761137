"""Measures of federated evaluation that are mean errors: the loss and the absolute error.

Each example's error is clipped to a public bound.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.metrics.mean_measure import MeanMeasure
from privfed.metrics.measure import Scoring


class MeanAbsoluteError(MeanMeasure):
    """The mean absolute error, in label units, with each error clipped to a public bound.

    Predictions and labels lie within the declared bounds of the label, so nothing is clipped unless
    `clip` is set. A smaller `clip` reduces the noise.
    """

    lower_is_better: ClassVar[bool] = True
    clip: float = Field(0.0, ge=0)
    """Largest error that an example counts with, in the label's units; a larger error counts as
    this. 0: the width of the label's bounds."""

    def title(self, scoring: Scoring) -> str:
        return "mean_absolute_error"

    def lacks(self, scoring: Scoring) -> str:
        return "" if scoring.numbers else "a number to predict (squared_error)"

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        return 0.0, self.clip or 2 * scoring.form.scale

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        meaning = scoring.form.meaning
        label = y.squeeze(-1).double() * meaning.scale + meaning.shift
        return (scoring.loss.expectation(outputs, meaning).double() - label).abs()


class MeanLoss(MeanMeasure):
    """The mean loss of the model, with each example's loss clipped to a public bound.

    Unless `clip` is set, the bound is twice the loss of the baseline (best constant prediction) on
    equally frequent labels, e.g. 2 log(classes) for cross-entropy. A larger loss counts as the
    bound, so the estimate is too low for a model that is confident and wrong.
    """

    lower_is_better: ClassVar[bool] = True
    clip: float = Field(0.0, ge=0)
    """Largest loss that an example counts with; 0: twice the loss of the baseline."""

    def title(self, scoring: Scoring) -> str:
        return "loss"

    def lacks(self, scoring: Scoring) -> str:
        return ""

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        return 0.0, self.clip or 2 * scoring.guess_loss()

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        return scoring.loss.losses(outputs, y)
