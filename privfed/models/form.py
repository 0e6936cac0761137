"""The form of a run's examples, without any example: enough to build its model again.

A checkpoint carries it, so that a run directory alone says what its model takes and gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from privfed.core.deferred import torch
from privfed.core.parts import Part
from privfed.data.federation import Examples, Meaning
from privfed.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Task:
    """Public constants of a task.

    `squared_norm` bounds |x|^2 of every example (None: no bound is declared), and `cohort` is the
    expected number of clients in a round.
    """

    squared_norm: float | None
    cohort: float


class Form(Part):
    """The form of examples: `features` and `labels` are the shapes of one example's x and y.

    `tokens` says that x are whole numbers, `classified` that labels are classes, of which there are
    `classes` (else: so many numbers). `names`, `scale` and `shift` say what labels mean, and
    `preprocessing` what became of raw columns (None: the model takes them as the source gives
    them).
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

    @classmethod
    def of(cls, examples: Examples) -> Form:
        """The form that `examples` have."""
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
        )

    @property
    def meaning(self) -> Meaning:
        """What labels mean."""
        return Meaning(self.names, self.scale, self.shift)

    def empty(self) -> Examples:
        """A set of examples of this form that holds none."""
        x = torch.zeros(0, *self.features, dtype=torch.int64 if self.tokens else torch.float32)
        y = torch.zeros(0, *self.labels, dtype=torch.int64 if self.classified else torch.float32)
        return Examples(x, y, self.classes, meaning=self.meaning, preprocessing=self.preprocessing)
