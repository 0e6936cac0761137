"""Cross-entropy over classes, of two classes by one logit, and of several labels at once."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import F, Tensor, torch
from privfed.core.errors import Refused
from privfed.data.federation import NO_LABEL, Examples, Meaning
from privfed.models.loss import (
    TINY_SHARE,
    Loss,
    class_probabilities,
    log_odds,
    refuse_labels_unless,
)


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of one output, the log-odds of class 1; scored by the ROC AUC.

    For the accuracy, class 1 is predicted if its probability exceeds one half. Any constant
    prediction has an area under the ROC curve (AUC) of 0.5.
    """

    @property
    def measure(self) -> str:
        return "auc"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return log_odds(y.double().mean(0, keepdim=True))

    def width(self, examples: Examples) -> int:
        single = examples.y.dtype == torch.int64 and examples.y.dim() == 1
        refuse_labels_unless(
            single and examples.classes == 2, "binary_cross_entropy", "two classes", examples
        )
        return 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            outputs.squeeze(-1), y.to(outputs.dtype), reduction="none"
        )

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return torch.stack([outputs.squeeze(-1).double(), y.double()], 1)

    def measures(self, scores: Tensor) -> dict[str, float]:
        from sklearn.metrics import roc_auc_score

        score, y = scores.nan_to_num().cpu().unbind(1)
        if not 0 < y.mean() < 1:
            raise Refused(
                'model.loss is "binary_cross_entropy", which is scored by the area under the ROC '
                "curve, but all scored examples have one class; use a larger test set, or "
                'model.loss = "cross_entropy"'
            )
        auc = float(roc_auc_score(y.numpy(), score.numpy()))
        return {"auc": auc, "accuracy": self.client_measure(scores)[1]}

    def client_measure(self, scores: Tensor) -> tuple[str, float]:
        """Returns the accuracy, since the ROC AUC is undefined for clients with one class only."""
        score, y = scores.nan_to_num().unbind(1)
        return "accuracy", float(((score > 0) == (y > 0.5)).double().mean())

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        log_odds = outputs.squeeze(-1)
        return torch.stack([(-log_odds).sigmoid(), log_odds.sigmoid()], -1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        probabilities = self.expectation(outputs, meaning)
        return {
            "prediction": (probabilities[:, 1] > 0.5).long(),
            **class_probabilities(probabilities, meaning),
        }


class MultiLabel(Loss):
    """Binary cross-entropy of any number of labels per example; scored by recall at k.

    Each label has its own log-odds, and the loss is the mean over labels. recall_at_k is the
    fraction of an example's labels among the k most likely ones, averaged over examples with at
    least one label.
    """

    k: int = Field(3, ge=1)
    """Number k of most likely labels that the measure takes into account."""

    @property
    def measure(self) -> str:
        return f"recall_at_{self.k}"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return log_odds(y.double().mean(0))

    def baseline_outputs(self, y: Tensor, width: int) -> Tensor:
        """Returns outputs proportional to each label's part in a constant prediction's recall.

        A label's output is the mean over all examples of 1 / n if an example with n labels has it,
        and of 0 otherwise. The k labels with the largest outputs are the best constant prediction.
        """
        labels = y.sum(-1, keepdim=True)
        return (y / labels.clamp(min=1)).double().mean(0)

    def width(self, examples: Examples) -> int:
        columns = examples.y.dtype == torch.float32 and examples.classes > 1
        refuse_labels_unless(columns, "multi_label", "several columns of 0/1 labels", examples)
        if self.k > examples.classes:
            raise Refused(
                f"model.k is {self.k}, but there are {examples.classes} labels; lower model.k"
            )
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


_VECTOR = 16
"""Number of values per vector instruction of a CPU."""


class CrossEntropy(Loss):
    """Cross-entropy of one class per example, or per position of a sequence; scored by accuracy.

    A sequence's loss is the mean over its labelled positions; accuracy is the fraction of all
    labelled positions that are predicted correctly.
    """

    softmax: ClassVar[bool] = True

    @property
    def measure(self) -> str:
        return "accuracy"

    def width(self, examples: Examples) -> int:
        refuse_labels_unless(
            examples.y.dtype == torch.int64, "cross_entropy", "class labels", examples
        )
        return examples.classes

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        """Returns the logarithm of each class's frequency among the labels.

        Every labelled example has total weight one, divided equally among its labels.
        """
        labelled = (y != NO_LABEL).view(len(y), -1)
        weights = labelled / labelled.sum(1, keepdim=True).clamp(min=1)
        shares = _class_weights(y, weights.view(y.shape), width)
        return (shares / shares.sum().clamp(min=1)).clamp(min=TINY_SHARE).log()

    def baseline_outputs(self, y: Tensor, width: int) -> Tensor:
        """Returns each class's number of labels: the most frequent class is then predicted."""
        return _class_weights(y, torch.ones_like(y), width)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.dim() == 1:
            return F.cross_entropy(outputs, y, reduction="none")
        flat = F.cross_entropy(
            outputs.flatten(0, -2), y.flatten(), ignore_index=NO_LABEL, reduction="none"
        ).view(y.shape)
        return flat.flatten(1).sum(1) / (y != NO_LABEL).flatten(1).sum(1).clamp(min=1)

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        width = outputs.shape[-1]
        if outputs.device.type != "cpu" or not _VECTOR // 2 <= width < _VECTOR:
            return super().stacked(outputs, y)
        # A CPU's softmax over fewer classes than its vectors hold processes single numbers: padding
        # with impossible classes makes it up to four times as fast.
        if y.numel() and int(y.max()) >= width:
            raise IndexError(f"a label is {int(y.max())}, of {width} classes")
        return super().stacked(F.pad(outputs, (0, _VECTOR - width), value=-math.inf), y)

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        labelled = (y != NO_LABEL).view(len(y), -1)
        correct = (outputs.argmax(-1) == y).view(len(y), -1) & labelled
        return torch.stack([correct.sum(1), labelled.sum(1)], 1).double()

    def measures(self, scores: Tensor) -> dict[str, float]:
        correct, labelled = scores.sum(0).tolist()
        return {"accuracy": correct / max(labelled, 1.0)}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.softmax(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        """Returns the most likely class, and its probability.

        For a single label, the probability of every class is included; for a sequence, only that of
        the predicted class at each position.
        """
        probabilities = self.expectation(outputs, meaning)
        probability, label = probabilities.max(-1)
        if label.dim() > 1:
            return {"prediction": label, "probability": probability}
        return {"prediction": label, **class_probabilities(probabilities, meaning)}


def _class_weights(y: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Returns the sum `[classes]` of each class's `weights` `[N, *]` over labelled positions."""
    labelled = y != NO_LABEL
    return torch.bincount(y[labelled], weights[labelled].double(), minlength=classes)
