"""The form of a run's examples (shapes, types, labels), with which its model can be rebuilt.

Checkpoints contain the form: a run directory therefore describes its model's inputs and outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from privfed.core.deferred import torch
from privfed.core.parts import Part
from privfed.data.federation import Examples, Meaning
from privfed.data.inputs import Input
from privfed.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Task:
    """Public constants of a learning task, from which a loss derives default values of keys.

    `squared_norm` bounds the squared L2 norm of every example (None if no bound is declared), and
    `cohort` is the expected number of clients in a round.
    """

    squared_norm: float | None
    cohort: float


class Form(Part):
    """The form of examples.

    Attributes:
      features: Shape of one example's x.
      labels: Shape of one example's y.
      tokens: Whether x are integers.
      classified: Whether labels are classes.
      classes: Number of classes; if labels are not classes, number of label columns.
      names: Names of the classes.
      scale: Factor of y * scale + shift, a label in its own unit.
      shift: Offset in this conversion.
      preprocessing: Preprocessing of raw columns; None if the model takes the source's values.
      inputs: Inputs of the model by name, if the source declares them.
    """

    features: tuple[int, ...]
    labels: tuple[int, ...]
    tokens: bool
    classified: bool
    classes: int
    names: tuple[str, ...]
    scale: float
    shift: float
    preprocessing: Preprocessing | None
    inputs: dict[str, Input] = {}

    @classmethod
    def of(cls, examples: Examples) -> Form:
        """Returns the form of `examples`."""
        meaning = examples.meaning
        return cls(
            features=tuple(examples.x.shape[1:]),
            labels=tuple(examples.y.shape[1:]),
            tokens=examples.x.dtype == torch.int64,
            classified=examples.y.dtype == torch.int64,
            classes=examples.classes,
            names=meaning.names,
            scale=meaning.scale,
            shift=meaning.shift,
            preprocessing=examples.preprocessing,
            inputs=dict(examples.inputs),
        )

    @property
    def meaning(self) -> Meaning:
        """The meaning of labels: names, scale and shift."""
        return Meaning(self.names, self.scale, self.shift)

    def empty(self) -> Examples:
        """Returns N = 0 examples of this form."""
        x = torch.zeros(0, *self.features, dtype=torch.int64 if self.tokens else torch.float32)
        y = torch.zeros(0, *self.labels, dtype=torch.int64 if self.classified else torch.float32)
        return Examples(
            x,
            y,
            self.classes,
            meaning=self.meaning,
            preprocessing=self.preprocessing,
            inputs=self.inputs,
        )
