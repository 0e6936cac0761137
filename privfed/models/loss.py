"""The interface of losses: the loss that clients minimise, and the measures of a model.

Outputs are `[B, *positions, width]` and labels `[B, *positions]` or `[B, width]`; every loss
returns one number per example. Examples are scored in pieces: `scores` computes the terms of each
example, and `measures` combines the terms of all examples. A loss also has default values of keys
for a task, and computes the best constant prediction (`privfed.run.evaluation.divergence`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import Examples, Meaning
from privfed.models.form import Task

TINY_SHARE = 1e-12
"""Lower bound on frequencies, which keeps their logarithms finite."""
_CLIP, _COHORT = 0.4, 150
"""Clipping norm and cohort of the default run."""
_LEAST_CLIP = 0.01


class Loss(Part):
    """A task: the loss that clients minimise, the measures of a model, and its predictions.

    By default, `stacked` computes the losses of stacked models as those of one long batch;
    `baseline_outputs` returns the result of `minimiser`; and `client_measure` is the first of
    `measures`.
    """

    lower_is_better: ClassVar[bool] = False
    """Whether lower values of the first measure are better."""
    softmax: ClassVar[bool] = False
    """Whether the loss is that of a softmax over classes, whose gradients reveal labels."""

    @property
    @abstractmethod
    def measure(self) -> str:
        """The name of the first of `measures`."""

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """Returns default values for `task` of keys left out of a run file: "section.key" -> value.

        The only default here is a clipping norm: that of the default run for cohorts of 150 or
        more, proportionally less for smaller ones, and at least 0.01. The noise on the average
        update has standard deviation z * clip / cohort, z the noise multiplier. It is then about
        the same for cohorts of 4 to 150 clients, and lower for larger ones.
        `experiments/first_run` compares other norms.
        """
        clip = _CLIP * min(task.cohort / _COHORT, 1.0)
        return {"privacy.clip": max(float(f"{clip:.2g}"), _LEAST_CLIP)}

    @abstractmethod
    def width(self, examples: Examples) -> int:
        """Returns the number of outputs per example or position that `examples` require.

        Raises `Refused` if the loss does not support labels of this kind.
        """

    @abstractmethod
    def minimiser(self, y: Tensor, width: int) -> Tensor:
        """Returns the constant outputs `[width]` with the least mean loss on labels y `[N, *]`."""

    def baseline_outputs(self, y: Tensor, width: int) -> Tensor:
        """Returns constant outputs `[width]` with the best first measure on labels y `[N, *]`."""
        return self.minimiser(y, width)

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of each example `[B]`.

        Args:
          outputs: model outputs, shape [B, *positions, width].
          y: labels, shape [B, *positions] or [B, width].
        """

    def stacked(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the losses `[c, B]` of c models with stacked outputs.

        Outputs are `[c, B, *positions, width]` and labels `[c, B, *]`.

        A model's losses do not depend on the other models.
        """
        return self.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        """Returns the scores `[B, j]` of each example, from which `measures` are computed.

        Args:
          outputs: model outputs, shape [B, *positions, width].
          y: labels, shape [B, *positions] or [B, width].
          meaning: meaning of the labels.
        """

    @abstractmethod
    def measures(self, scores: Tensor) -> dict[str, float]:
        """Returns measures by name from scores `[N, j]` of all examples; the main one is first."""

    def client_measure(self, scores: Tensor) -> tuple[str, float]:
        """Returns the name and value of one client's measure, from its scores `[n, j]`.

        An override must return a value even if all examples of the client have one class.
        """
        return next(iter(self.measures(scores).items()))

    @abstractmethod
    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        """Returns the expected label, given the outputs.

        The result contains probabilities of classes `[B, *positions, classes]` or of label columns
        `[B, classes]`, or numbers in the labels' own units `[B]`.

        Args:
          outputs: model outputs, shape [B, *positions, width].
          meaning: meaning of the labels.
        """

    @abstractmethod
    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        """Returns columns of predictions `[B, *]` by name, "prediction" first.

        Classes are int64, sets of labels bool `[B, classes]`, numbers in the labels' own units.

        Args:
          outputs: model outputs, shape [B, *positions, width].
          meaning: meaning of the labels, whose names label the probabilities.
        """


def class_probabilities(probabilities: Tensor, meaning: Meaning) -> dict[str, Tensor]:
    """Returns the columns `[B]` of `probabilities` `[B, classes]`, named by class."""
    names = meaning.names or tuple(str(n) for n in range(probabilities.shape[-1]))
    return {f"probability_{name}": probabilities[:, n] for n, name in enumerate(names)}


def log_odds(shares: Tensor) -> Tensor:
    """Returns the log-odds of float64 probabilities `shares`, clamped to [1e-12, 1 - 1e-12]."""
    return torch.logit(shares, eps=TINY_SHARE)


def refuse_labels_unless(fit: bool, loss: str, needed: str, examples: Examples) -> None:
    """Raises `Refused` unless `fit`; the message names a loss that suits the labels.

    Args:
      fit: whether the labels suit the loss.
      loss: name of the loss.
      needed: labels that the loss needs, for the message.
      examples: examples with the labels.
    """
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
