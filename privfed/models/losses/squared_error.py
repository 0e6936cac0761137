"""Squared error of a predicted number, scored by the mean absolute error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from privfed.core.deferred import Tensor, torch
from privfed.data.federation import Examples, Meaning
from privfed.models.form import Task
from privfed.models.loss import Loss, refuse_labels_unless

_BOUNDS = (-1.0, 1.0)
"""Bounds of a predicted number, in scaled units."""
_UNDECLARED = 1000.0
"""Assumed squared norm of an example, if a source declares none."""


class SquaredError(Loss):
    """Squared error of numbers with declared bounds; scored by the mean absolute error.

    Labels are scaled from their bounds onto [-1, 1]. The loss is the mean squared error in scaled
    units; the score is in the label's own units. Predictions are clamped to the bounds for scores
    and results. They are not clamped for the loss, which would have no gradient outside.
    """

    lower_is_better: ClassVar[bool] = True

    @property
    def measure(self) -> str:
        return "mae"

    def defaults(self, task: Task) -> Mapping[str, Any]:
        """Returns defaults with a client learning rate that cannot overshoot in a linear model.

        For one output w.x + b, the mean of (w.x + b - y)^2 over any batch has the Hessian 2 mean(x'
        x'^T), x' = (x, 1): positive semi-definite, its largest eigenvalue at most its trace, 2
        mean(|x|^2 + 1) <= L = 2 (squared_norm + 1). A gradient step at rate 1 / L therefore
        multiplies the error in every direction by a factor in [0, 1], on every batch. Local
        training then never moves away from a batch's minimiser, whatever its number of steps. (At a
        rate above 2 / L the error may grow without bound.) The default is 1 / L rounded to 3
        significant digits, with factors of at least -0.005. If no bound on inputs is declared, 1000
        is assumed, and the statement holds only if that bound holds.
        """
        declared = task.squared_norm
        bound = _UNDECLARED if declared is None else declared
        rate = float(f"{1 / (2 * (bound + 1)):.3g}")
        return {"client.lr": rate, "server.lr": 0.2, "server.momentum": 0.9, "privacy.clip": 0.02}

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return y.mean(0)

    def baseline_outputs(self, y: Tensor, width: int) -> Tensor:
        return y.median(0).values

    def width(self, examples: Examples) -> int:
        single = examples.y.dtype == torch.float32 and examples.classes == 1
        refuse_labels_unless(single, "squared_error", "a number with declared bounds", examples)
        return examples.classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean(-1)

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return (outputs.clamp(*_BOUNDS) - y).abs().mean(-1, keepdim=True).double() * meaning.scale

    def measures(self, scores: Tensor) -> dict[str, float]:
        return {self.measure: float(scores.mean())}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        bounded = outputs.clamp(*_BOUNDS)
        return (bounded * meaning.scale + meaning.shift).squeeze(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        return {"prediction": self.expectation(outputs, meaning)}
