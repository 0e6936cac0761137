"""What is public of what is scored: the form of labels, and the loss."""

from __future__ import annotations

from dataclasses import dataclass

from privfed.core.deferred import Tensor, torch
from privfed.data.federation import NO_LABEL
from privfed.models.form import Form
from privfed.models.loss import Loss

_MOST = 64
"""How many labels a guess is looked at beside, at most."""


@dataclass(frozen=True)
class Scoring:
    """The form of examples and the loss of the model that is scored: neither is anybody's."""

    form: Form
    loss: Loss

    @property
    def sequences(self) -> bool:
        """Whether an example has a label at each of its positions."""
        return self.form.classified and bool(self.form.labels)

    @property
    def label_columns(self) -> bool:
        """Whether an example has any number of labels, a column of 0/1 for each."""
        return not self.form.classified and self.form.classes > 1

    @property
    def numbers(self) -> bool:
        """Whether a label is a number with declared bounds."""
        return not self.form.classified and self.form.classes == 1

    @property
    def labels(self) -> str:
        """What labels are, in words."""
        if self.label_columns:
            return f"{self.form.classes} columns of 0/1 labels"
        if self.numbers:
            return "a number to predict"
        where = "position of a sequence" if self.sequences else "example"
        return f"one of {self.form.classes} classes per {where}"

    def labelled(self, y: Tensor) -> Tensor:
        """Which examples of labels y `[n, *]` have any: bool `[n]`, False where all is padding."""
        if not self.sequences:
            return torch.ones(len(y), dtype=torch.bool, device=y.device)
        return (y != NO_LABEL).flatten(1).any(1)

    def guess(self) -> tuple[Tensor, Tensor]:
        """The best constant answer, beside labels of which none is more frequent.

        Outputs `[n, *positions, width]` and labels y `[n, *]` of up to 64 examples, which are
        nobody's, and of one position where they are sequences.
        """
        form, loss = self.form, self.loss
        width = loss.width(form.empty())
        if form.classified:
            y = torch.arange(form.classes)
        else:
            least = -1.0 if self.numbers else 0.0
            y = torch.tensor([least, 1.0])[:, None].expand(2, form.classes)
        outputs = loss.minimiser(y, width).float()
        some = y[:: -(-len(y) // _MOST)]
        if self.sequences:
            return outputs.expand(len(some), 1, -1), some[:, None]
        return outputs.expand(len(some), -1), some

    def guess_loss(self) -> float:
        """The mean loss of `guess`."""
        return float(self.loss.losses(*self.guess()).double().mean())
