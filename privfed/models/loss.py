"""What a loss is: what a client minimises, and how a model is scored.

Outputs are `[B, *positions, width]` and labels `[B, *positions]` or `[B, width]`; every loss gives
one number per example. A measure is a mean over all examples scored, so scoring goes in pieces:
`scores` says what it needs of each example, `measures` what follows from all of them. A loss also
knows which keys suit its task, and the best answer that looks at nothing
(`privfed.run.constant_baseline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from privfed.data.federation import Examples, Meaning
from privfed.models.task import Task

if TYPE_CHECKING:
    from torch import Tensor


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
