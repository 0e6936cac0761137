"""Cross-entropy over classes, of examples or of the positions of a sequence."""

from __future__ import annotations

import math
from typing import ClassVar

from privfed.core.deferred import F, Tensor, torch
from privfed.data.federation import NO_LABEL, Examples, Meaning
from privfed.models.loss import (
    TINY_SHARE,
    ScoredLoss,
    class_probabilities,
    refuse_labels_unless,
)

_VECTOR = 16
"""How many numbers a CPU's vector instructions take at once."""


class CrossEntropy(ScoredLoss):
    """One of several classes per example, or per position of a sequence; scored by accuracy.

    A sequence's loss is the mean over its labelled positions; accuracy is over all positions.
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
        """The logarithm of each class's share; an example weighs one, however long it is."""
        labelled = (y != NO_LABEL).view(len(y), -1)
        weights = labelled / labelled.sum(1, keepdim=True).clamp(min=1)
        shares = _class_weights(y, weights.view(y.shape), width)
        return (shares / shares.sum().clamp(min=1)).clamp(min=TINY_SHARE).log()

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        """How often each class is a label, so that the most frequent one is predicted."""
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
        # A CPU's softmax over fewer classes than its vectors hold takes one number at a time: with
        # impossible classes added it is up to four times as fast.
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
        """The likeliest class, and its probability.

        For a single label there is the probability of every class; for a sequence only that of what
        is predicted at each position.
        """
        probabilities = self.expectation(outputs, meaning)
        probability, label = probabilities.max(-1)
        if label.dim() > 1:
            return {"prediction": label, "probability": probability}
        return {"prediction": label, **class_probabilities(probabilities, meaning)}


def _class_weights(y: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The sum `[classes]` of each class's `weights` `[N, *]`; unlabelled positions do not count."""
    labelled = y != NO_LABEL
    return torch.bincount(y[labelled], weights[labelled].double(), minlength=classes)
