"""Mean errors, cut at a public bound: the loss, and the absolute error."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.metrics.mean_measure import MeanMeasure
from privfed.metrics.measure import Scoring


class MeanAbsoluteError(MeanMeasure):
    """How far a predicted number is from the label, in the label's units, cut at a public bound.

    Predictions and labels lie within the declared bounds of the label, so that without a `clip` of
    its own nothing is cut; a smaller one has less noise.
    """

    lower_is_better: ClassVar[bool] = True
    clip: float = Field(0.0, ge=0)
    """The bound of an example's error, in the label's units; 0: the width of its bounds."""

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
    """The loss of the model, that of each example cut at a public bound.

    The bound is twice the loss of the best constant answer where all labels are as frequent, e.g.
    2 log(classes) for cross-entropy, unless `clip` states another: what lies beyond it counts as
    the bound, so that a model which is sure and wrong looks better than it is.
    """

    lower_is_better: ClassVar[bool] = True
    clip: float = Field(0.0, ge=0)
    """The bound of an example's loss; 0: twice the loss of a guess."""

    def title(self, scoring: Scoring) -> str:
        return "loss"

    def lacks(self, scoring: Scoring) -> str:
        return ""

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        return 0.0, self.clip or 2 * scoring.guess_loss()

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        return scoring.loss.losses(outputs, y)
