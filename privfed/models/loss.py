"""What a loss is: what a client minimises, and how a model is scored.

Outputs are `[B, *positions, width]` and labels `[B, *positions]` or `[B, width]`; every loss gives
one number per example. A measure is a mean over all examples scored, so scoring goes in pieces:
`scores` says what it needs of each example, `measures` what follows from all of them. A loss also
knows which keys suit its task, and the best answer that looks at nothing
(`privfed.run.evaluation.divergence`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import Examples, Meaning
from privfed.models.form import Task

TINY_SHARE = 1e-12
"""A share that makes a finite logarithm."""
_CLIP, _COHORT = 0.4, 150
"""The clipping norm and the cohort of the default run."""
_LEAST_CLIP = 0.01


class ScoredLoss(Part):
    """The base of losses that score each example by itself.

    The losses of stacked models are computed as those of one long batch, the outputs of least loss
    are taken for those of the best measure, and one client's measure is the first of `measures`.
    """

    lower_is_better: ClassVar[bool] = False
    softmax: ClassVar[bool] = False

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """A clipping norm in proportion to the cohort, up to that of the default run.

        The noise on the average update has a deviation of z clip / cohort, so that at any cohort it
        is as loud as in that run, and no louder. `experiments/first_run` tried others.
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
    def measures(self, scores: Tensor) -> dict[str, float]: ...

    def client_measure(self, scores: Tensor) -> tuple[str, float]:
        return next(iter(self.measures(scores).items()))


def class_probabilities(probabilities: Tensor, meaning: Meaning) -> dict[str, Tensor]:
    """A column `[B]` for each class of `probabilities` `[B, classes]`, by the class's name."""
    names = meaning.names or tuple(str(n) for n in range(probabilities.shape[-1]))
    return {f"probability_{name}": probabilities[:, n] for n, name in enumerate(names)}


def log_odds(shares: Tensor) -> Tensor:
    """The log-odds of `shares`, finite also where a share is 0 or 1."""
    return torch.logit(shares, eps=TINY_SHARE)


def refuse_labels_unless(fit: bool, loss: str, needed: str, examples: Examples) -> None:
    """Raises `Refused` unless the labels `fit`; the message names a loss that suits them."""
    if fit:
        return
    if examples.y.dtype == torch.int64:
        present = f"one of {examples.classes} classes per example"
        instead = "cross_entropy" if examples.classes > 2 else "binary_cross_entropy"
    else:
        present = "numbers or 0/1 labels"
        instead = "multi_label" if examples.classes > 1 else "squared_error"
    raise Refused(
        f"model.loss is {loss!r}, which needs {needed}, but the data have {present}; use "
        f"model.loss = {instead!r}"
    )


class Loss(Protocol):
    """A task: the loss that clients minimise, the measures of a model, and its predictions."""

    @property
    def measure(self) -> str:
        """The name of the first of `measures`."""
        ...

    lower_is_better: ClassVar[bool]
    """Whether the first measure is better the lower it is."""
    softmax: ClassVar[bool]
    """Whether the loss is that of a softmax over classes, whose gradients tell labels."""

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """What suits `task`, of keys that a run file leaves out: "section.key" -> value."""
        ...

    def width(self, examples: Examples) -> int:
        """How many outputs a model has for the labels of `examples`.

        Raises `Refused` where the labels are of another kind than the loss is for.
        """
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
        """The losses `[c, B]` of c models' outputs `[c, B, *positions, width]` on y `[c, B, *]`.

        A model's losses are the same whatever the other models are.
        """
        ...

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        """The scores `[B, j]` of each example, from which `measures` follow."""
        ...

    def measures(self, scores: Tensor) -> dict[str, float]:
        """Measures by name, from the scores `[N, j]` of all examples; the first matters most."""
        ...

    def client_measure(self, scores: Tensor) -> tuple[str, float]:
        """The name and value of the measure that suits one client's examples, from scores `[n, j]`.

        A client's examples are few, and perhaps all of one class.
        """
        ...

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        """What the label is expected to be, given the outputs.

        Probabilities of classes `[B, *positions, classes]`, of label columns `[B, classes]`, or a
        number in the label's own units `[B]`.
        """
        ...

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        """Columns of predictions `[B, *]` by name: "prediction", and probabilities where there are.

        Classes are int64, sets of labels bool `[B, classes]`, numbers in the labels' own units.
        """
        ...
