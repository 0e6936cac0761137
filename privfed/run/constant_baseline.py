"""The best constant answer: what a model has to beat, since it looks at nothing but the labels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from privfed.data.federation import Examples
from privfed.models.loss import Loss
from privfed.run.divergence import Divergence

_AT_ONCE = 1024


class Baseline:
    """What a run has to beat on its public test set, and for how long it has not.

    Labels may change with rounds, and then so does the best constant answer.
    """

    def __init__(self, loss: Loss) -> None:
        self.divergence = Divergence()
        self._loss = loss
        self._examples: Examples | None = None
        self._measures: Mapping[str, float] = {}
        self._warned = False

    def on(self, examples: Examples) -> Mapping[str, float]:
        """`best_constant`, computed once as long as the examples stay the same."""
        if self._examples is not examples:
            self._examples, self._measures = examples, best_constant(self._loss, examples)
        return self._measures

    def go_on(self, losses: Mapping[int, float], examples: Examples) -> None:
        """Count the evaluations of a run that was interrupted, by round."""
        for round, loss in losses.items():
            self.divergence = self.divergence.after(round, loss, self.on(examples)["loss"])

    def judge(self, round: int, loss: float, examples: Examples) -> bool:
        """Count one more; whether divergence is established, and nobody was warned yet."""
        self.divergence = self.divergence.after(round, loss, self.on(examples)["loss"])
        new = self.divergence.established and not self._warned
        self._warned |= new
        return new


def best_constant(loss: Loss, examples: Examples) -> dict[str, float]:
    """The measures of a model that gives the same outputs for every one of `examples`.

    "loss" is that of the outputs that minimise it, and the other measures are those of the outputs
    best for the first of them. It reads the labels of `examples`, which have to be public. Raises
    `Refused` where the measures do.
    """
    width = loss.width(examples)
    least, best = loss.minimiser(examples.y, width), loss.best_guess(examples.y, width)
    judged, losses = [], []
    for y in torch.split(examples.y, _AT_ONCE):
        judged.append(loss.scores(_repeated(best, y), y, examples.meaning))
        losses.append(loss.losses(_repeated(least, y), y).double())
    return {**loss.measures(torch.cat(judged)), "loss": float(torch.cat(losses).mean())}


def _repeated(outputs: Tensor, y: Tensor) -> Tensor:
    """`outputs` `[width]` for every example, and position, of y: `[B, *positions, width]`."""
    places = y.shape[:-1] if y.is_floating_point() else y.shape
    return outputs.expand(*places, -1)
