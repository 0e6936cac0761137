"""Losses, and the measures that go with them: what a client minimises, and how a model is scored.

Outputs are `[B, *positions, width]` and labels `[B, *positions]` or `[B, width]`; every loss gives
one number per example. A measure is a mean over all examples scored, so scoring goes in pieces:
`keep` says what it needs of each example, `measures` what follows from all of them.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from privfed.errors import Refused
from privfed.federation import Examples, Meaning
from privfed.parts import Part

_NONE = -1
"""The label of a position that has none (padding)."""
_VECTOR = 16
"""Numbers that a CPU takes at once."""


class Loss(Protocol):
    """One kind of task."""

    lower_is_better: ClassVar[bool]
    """Whether the first measure is better the lower it is."""
    softmax: ClassVar[bool]
    """Whether it is that of a softmax over classes, whose gradients tell labels."""

    def width(self, examples: Examples) -> int:
        """How many outputs a model has for these labels. Raises `Refused` where they do not fit."""
        ...

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each example `[B]`."""
        ...

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`losses` `[c, B]` of c models' outputs; each one's whatever the others are."""
        ...

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        """`[B, j]`: what `measures` needs of each example."""
        ...

    def measures(self, kept: Tensor) -> dict[str, float]:
        """Measures by name, from `[N, j]`; the first is the one to look at."""
        ...

    def alone(self, kept: Tensor) -> tuple[str, float]:
        """The measure of one client's examples `[n, j]`, few and perhaps of one class, by name."""
        ...

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        """What the label is expected to be: probabilities of classes `[B, *positions, classes]`, of
        label columns `[B, classes]`, or a number in its own units `[B]`.
        """
        ...

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        """Columns of predictions `[B, *]` by name: "prediction", and what else there is to say.

        Classes are int64, sets of labels bool `[B, classes]`, numbers in the labels' own units.
        """
        ...


class _Scored(Part):
    """What losses share: models are stacked, and the first measure is also that of one client."""

    lower_is_better: ClassVar[bool] = False
    softmax: ClassVar[bool] = False

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])

    def measures(self, kept: Tensor) -> dict[str, float]:
        raise NotImplementedError

    def alone(self, kept: Tensor) -> tuple[str, float]:
        return next(iter(self.measures(kept).items()))


class CrossEntropy(_Scored):
    """One of several classes per example, or per position of a sequence; scored by accuracy.

    A sequence's loss is the mean over its labelled positions; accuracy is over all positions.
    """

    softmax: ClassVar[bool] = True

    def width(self, examples: Examples) -> int:
        _expect(examples.y.dtype == torch.int64, "cross_entropy", "class labels", examples)
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.dim() == 1:
            return F.cross_entropy(outputs, y, reduction="none")
        flat = F.cross_entropy(
            outputs.flatten(0, -2), y.flatten(), ignore_index=_NONE, reduction="none"
        ).view(y.shape)
        return flat.flatten(1).sum(1) / (y != _NONE).flatten(1).sum(1).clamp(min=1)

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        width = outputs.shape[-1]
        if outputs.device.type != "cpu" or not _VECTOR // 2 <= width < _VECTOR:
            return super().stacked(outputs, y)
        # Of fewer classes than its vectors hold, a CPU's softmax takes one number at a time: with
        # impossible ones added it is up to four times as fast.
        if y.numel() and int(y.max()) >= width:
            raise IndexError(f"a label is {int(y.max())}, of {width} classes")
        return super().stacked(F.pad(outputs, (0, _VECTOR - width), value=-math.inf), y)

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        labelled = (y != _NONE).view(len(y), -1)
        right = (outputs.argmax(-1) == y).view(len(y), -1) & labelled
        return torch.stack([right.sum(1), labelled.sum(1)], 1).double()

    def measures(self, kept: Tensor) -> dict[str, float]:
        right, labelled = kept.sum(0).tolist()
        return {"accuracy": right / max(labelled, 1.0)}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.softmax(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        """Of a sequence, only the probability of what is predicted at each position."""
        likely = self.expectation(outputs, meaning)
        probability, label = likely.max(-1)
        if label.dim() > 1:
            return {"prediction": label, "probability": probability}
        return {"prediction": label, **_by_class(likely, meaning)}


class BinaryCrossEntropy(_Scored):
    """One output for two classes, the log-odds of class 1; scored by the area under the ROC curve.

    Accuracy is at a probability of one half.
    """

    def width(self, examples: Examples) -> int:
        right = examples.y.dtype == torch.int64 and examples.y.dim() == 1 and examples.classes == 2
        _expect(right, "binary_cross_entropy", "two classes", examples)
        return 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            outputs.squeeze(-1), y.to(outputs.dtype), reduction="none"
        )

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return torch.stack([outputs.squeeze(-1).double(), y.double()], 1)

    def measures(self, kept: Tensor) -> dict[str, float]:
        from sklearn.metrics import roc_auc_score

        score, y = kept.nan_to_num().cpu().unbind(1)
        if not 0 < y.mean() < 1:
            raise Refused(
                "the area under the ROC curve needs examples of both classes to score on, and "
                "these are all of one; take a larger test set, or model.loss = 'cross_entropy'"
            )
        auc = float(roc_auc_score(y.numpy(), score.numpy()))
        return {"auc": auc, "accuracy": self.alone(kept)[1]}

    def alone(self, kept: Tensor) -> tuple[str, float]:
        """Accuracy: most clients have no area under a curve."""
        score, y = kept.nan_to_num().unbind(1)
        return "accuracy", float(((score > 0) == (y > 0.5)).double().mean())

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        odds = outputs.squeeze(-1)
        return torch.stack([(-odds).sigmoid(), odds.sigmoid()], -1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        likely = self.expectation(outputs, meaning)
        return {"prediction": (likely[:, 1] > 0.5).long(), **_by_class(likely, meaning)}


class MultiLabel(_Scored):
    """Any number of labels per example, each with its own log-odds; scored by recall at k.

    The loss is the mean over labels of the binary cross-entropy. recall_at_k is the share of an
    example's labels among the k likeliest, averaged over examples that have any.
    """

    k: int = Field(3, ge=1)

    def width(self, examples: Examples) -> int:
        right = examples.y.dtype == torch.float32 and examples.classes > 1
        _expect(right, "multi_label", "several columns of 0/1 labels", examples)
        if self.k > examples.classes:
            raise Refused(f"model.k is {self.k}, but there are {examples.classes} labels; lower it")
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(-1)

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        found = y.gather(-1, outputs.topk(self.k, -1).indices).sum(-1)
        return torch.stack([found, y.sum(-1)], 1).double()

    def measures(self, kept: Tensor) -> dict[str, float]:
        found, there = kept[kept[:, 1] > 0].unbind(1)
        recall = float((found / there).mean()) if len(there) else 0.0
        return {f"recall_at_{self.k}": recall}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.sigmoid()

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        likely = self.expectation(outputs, meaning)
        return {"prediction": likely > 0.5, **_by_class(likely, meaning)}


class SquaredError(_Scored):
    """Numbers to predict, scaled by their declared bounds; scored by the mean absolute error.

    The loss is the mean squared error in scaled units, the score in the label's own units.
    """

    lower_is_better: ClassVar[bool] = True

    def width(self, examples: Examples) -> int:
        right = examples.y.dtype == torch.float32 and examples.classes == 1
        _expect(right, "squared_error", "a number with declared bounds", examples)
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean(-1)

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return (outputs - y).abs().mean(-1, keepdim=True).double() * meaning.scale

    def measures(self, kept: Tensor) -> dict[str, float]:
        return {"mae": float(kept.mean())}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return (outputs * meaning.scale + meaning.shift).squeeze(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        return {"prediction": self.expectation(outputs, meaning)}


def _by_class(likely: Tensor, meaning: Meaning) -> dict[str, Tensor]:
    """A column of probabilities for each class of `likely` `[B, classes]`."""
    names = meaning.names or tuple(str(n) for n in range(likely.shape[-1]))
    return {f"probability_{name}": likely[:, n] for n, name in enumerate(names)}


def _expect(fits: bool, loss: str, wanted: str, examples: Examples) -> None:
    if fits:
        return
    if examples.y.dtype == torch.int64:
        found = f"one of {examples.classes} classes per example"
        instead = "cross_entropy" if examples.classes > 2 else "binary_cross_entropy"
    else:
        found = "numbers or 0/1 labels"
        instead = "multi_label" if examples.classes > 1 else "squared_error"
    raise Refused(
        f"model.loss is {loss!r}, which needs {wanted}, but the data have {found}; use "
        f"model.loss = {instead!r}"
    )
