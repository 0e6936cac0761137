"""Losses, and the measures that go with them: what a client minimises, and how a model is scored.

Outputs are `[B, *positions, width]` and labels `[B, *positions]` or `[B, width]`; every loss gives
one number per example. A measure is a mean over all examples scored, so scoring goes in pieces:
`keep` says what it needs of each example, `measures` what follows from all of them. A loss also
knows which keys suit its task, and the best answer that looks at nothing (`privfed.run.constant_baseline`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import Field

from privfed.data.federation import Examples, Meaning
from privfed.deferred import F, torch
from privfed.errors import Refused
from privfed.models.task import Task
from privfed.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

_NONE = -1
"""The label of a position that has none (padding)."""
_VECTOR = 16
"""Numbers that a CPU takes at once."""
_TINY = 1e-12
"""A share that makes a finite logarithm."""
_BOUNDS = (-1.0, 1.0)
"""Of a number to predict, in scaled units."""
_UNDECLARED = 1000.0
"""The squared norm of an example, taken to be so where a source declares none."""
_CLIP, _COHORT = 0.4, 150
"""Of the default run."""
_LEAST_CLIP = 0.01


class Loss(Protocol):
    """One kind of task."""

    @property
    def measure(self) -> str:
        """The name of the first measure."""
        ...

    lower_is_better: ClassVar[bool]
    """Whether the first measure is better the lower it is."""
    softmax: ClassVar[bool]
    """Whether it is that of a softmax over classes, whose gradients tell labels."""

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """What suits this task of what a run file leaves out: "section.key" -> value."""
        ...

    def width(self, examples: Examples) -> int:
        """How many outputs a model has for these labels. Raises `Refused` where they do not fit."""
        ...

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        """The outputs `[width]` whose mean loss on labels y `[N, *]` is least, for any x."""
        ...

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        """The outputs `[width]` whose first measure on labels y `[N, *]` is best, for any x."""
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

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """A clip in proportion to the cohort, up to that of the default run.

        Noise on the average update has a deviation of z clip / cohort, so that at any cohort it is
        as loud as in that run, and no louder. `experiments/first_run` tried others.
        """
        clip = _CLIP * min(task.cohort / _COHORT, 1.0)
        return {"privacy.clip": max(float(f"{clip:.2g}"), _LEAST_CLIP)}

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def minimiser(self, y: Tensor, width: int) -> Tensor: ...

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        return self.minimiser(y, width)

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])

    @abstractmethod
    def measures(self, kept: Tensor) -> dict[str, float]: ...

    def alone(self, kept: Tensor) -> tuple[str, float]:
        return next(iter(self.measures(kept).items()))


class CrossEntropy(_Scored):
    """One of several classes per example, or per position of a sequence; scored by accuracy.

    A sequence's loss is the mean over its labelled positions; accuracy is over all positions.
    """

    softmax: ClassVar[bool] = True

    @property
    def measure(self) -> str:
        return "accuracy"

    def width(self, examples: Examples) -> int:
        _expect(examples.y.dtype == torch.int64, "cross_entropy", "class labels", examples)
        return examples.classes

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        """Each class's share, as a logarithm; every example weighs one, however long it is."""
        labelled = (y != _NONE).view(len(y), -1)
        weights = labelled / labelled.sum(1, keepdim=True).clamp(min=1)
        shares = _summed(y, weights.view(y.shape), width)
        return (shares / shares.sum().clamp(min=1)).clamp(min=_TINY).log()

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        """The class of most labels."""
        return _summed(y, torch.ones_like(y), width)

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

    Accuracy is at a probability of one half. No constant answer has an area other than 0.5.
    """

    @property
    def measure(self) -> str:
        return "auc"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return _log_odds(y.double().mean(0, keepdim=True))

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

    @property
    def measure(self) -> str:
        return f"recall_at_{self.k}"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return _log_odds(y.double().mean(0))

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        """The k labels that add most to the recall, each by its share of an example's labels."""
        there = y.sum(-1, keepdim=True)
        return (y / there.clamp(min=1)).double().mean(0)

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
        return {self.measure: recall}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.sigmoid()

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        likely = self.expectation(outputs, meaning)
        return {"prediction": likely > 0.5, **_by_class(likely, meaning)}


class SquaredError(_Scored):
    """Numbers to predict, scaled by their declared bounds; scored by the mean absolute error.

    The loss is the mean squared error in scaled units, the score in the label's own units. Labels
    lie within their bounds, [-1, 1] in scaled units, and so do predictions: what is scored and
    predicted is clamped there (never the loss, whose gradient has to point back).
    """

    lower_is_better: ClassVar[bool] = True

    @property
    def measure(self) -> str:
        return "mae"

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """Steps that cannot overshoot, whatever the data, where the model is linear.

        For one output w.x + b, the mean of (w.x + b - y)^2 over any batch has the Hessian
        2 mean(x' x'^T), x' = (x, 1): positive semi-definite, its largest eigenvalue at most its
        trace, 2 mean(|x|^2 + 1) <= L = 2 (squared_norm + 1). A gradient step at rate 1 / L
        therefore multiplies the error in every direction by a factor in [0, 1], on every batch, so
        local training never moves away from what a batch asks for, however many steps it takes.
        (At a rate above 2 / L it may grow without end.)
        """
        declared = task.squared_norm
        bound = _UNDECLARED if declared is None else declared
        rate = float(f"{1 / (2 * (bound + 1)):.3g}")
        return {"client.lr": rate, "server.lr": 0.2, "server.momentum": 0.9, "privacy.clip": 0.02}

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return y.mean(0)

    def best_guess(self, y: Tensor, width: int) -> Tensor:
        return y.median(0).values

    def width(self, examples: Examples) -> int:
        right = examples.y.dtype == torch.float32 and examples.classes == 1
        _expect(right, "squared_error", "a number with declared bounds", examples)
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean(-1)

    def keep(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return (outputs.clamp(*_BOUNDS) - y).abs().mean(-1, keepdim=True).double() * meaning.scale

    def measures(self, kept: Tensor) -> dict[str, float]:
        return {self.measure: float(kept.mean())}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        within = outputs.clamp(*_BOUNDS)
        return (within * meaning.scale + meaning.shift).squeeze(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        return {"prediction": self.expectation(outputs, meaning)}


def _by_class(likely: Tensor, meaning: Meaning) -> dict[str, Tensor]:
    """A column of probabilities for each class of `likely` `[B, classes]`."""
    names = meaning.names or tuple(str(n) for n in range(likely.shape[-1]))
    return {f"probability_{name}": likely[:, n] for n, name in enumerate(names)}


def _summed(y: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The weights `[N, *]` of labels y `[N, *]` by class `[classes]`, without those of none."""
    labelled = y != _NONE
    return torch.bincount(y[labelled], weights[labelled].double(), minlength=classes)


def _log_odds(shares: Tensor) -> Tensor:
    """Finite, also where a share is 0 or 1."""
    return torch.logit(shares, eps=_TINY)


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
