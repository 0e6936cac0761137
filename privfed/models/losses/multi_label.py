"""Binary cross-entropy of many labels per example, scored by recall at k."""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import F, Tensor, torch
from privfed.core.errors import Refused
from privfed.data.federation import Examples, Meaning
from privfed.models.loss import (
    ScoredLoss,
    class_probabilities,
    log_odds,
    refuse_labels_unless,
)


class MultiLabel(ScoredLoss):
    """Any number of labels per example, each with its own log-odds; scored by recall at k.

    The loss is the mean over labels of the binary cross-entropy. recall_at_k is the share of an
    example's labels among the k likeliest, averaged over examples that have any.
    """

    k: int = Field(3, ge=1)
    """How many of the likeliest labels the measure looks at."""

    @property
    def measure(self) -> str:
        return f"recall_at_{self.k}"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return log_odds(y.double().mean(0))

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        """What each label adds to the recall: its mean share of an example's labels.

        The k labels of the largest share are those that a constant answer names best.
        """
        labels = y.sum(-1, keepdim=True)
        return (y / labels.clamp(min=1)).double().mean(0)

    def width(self, examples: Examples) -> int:
        columns = examples.y.dtype == torch.float32 and examples.classes > 1
        refuse_labels_unless(columns, "multi_label", "several columns of 0/1 labels", examples)
        if self.k > examples.classes:
            raise Refused(f"model.k is {self.k}, but there are {examples.classes} labels; lower it")
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(-1)

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        recalled = y.gather(-1, outputs.topk(self.k, -1).indices).sum(-1)
        return torch.stack([recalled, y.sum(-1)], 1).double()

    def measures(self, scores: Tensor) -> dict[str, float]:
        recalled, labels = scores[scores[:, 1] > 0].unbind(1)
        recall = float((recalled / labels).mean()) if len(labels) else 0.0
        return {self.measure: recall}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.sigmoid()

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        probabilities = self.expectation(outputs, meaning)
        return {"prediction": probabilities > 0.5, **class_probabilities(probabilities, meaning)}
