"""The loss, cut at a public bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privfed.measures.mean_measure import MeanMeasure
from privfed.measures.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor


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
