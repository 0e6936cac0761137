"""Detects that a run's model is worse than the best constant prediction, and since when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privfed.data.federation import Examples
from privfed.models.loss import Loss

_PATIENCE = 3
"""Consecutive evaluations required, since one or two may be chance."""


@dataclass(frozen=True)
class Divergence:
    """Counts the last consecutive `evaluations` whose loss exceeds the baseline and has not fallen.

    A loss has not fallen if it is above the `lowest` of the run so far: a model that still improves
    from a bad start does not count. A loss that is not finite always counts. `since` is the round
    of the first of these evaluations, `loss` the last loss, and `constant` the loss of the best
    constant prediction. All values are measured on public examples.
    """

    evaluations: int = 0
    since: int = 0
    loss: float = 0.0
    constant: float = 0.0
    lowest: float = math.inf

    def after(self, round: int, loss: float, constant: float) -> Divergence:
        """Returns the counts after one more evaluation, that of `round`."""
        lowest = min(self.lowest, loss)
        if math.isfinite(loss) and (loss <= constant or loss <= lowest):
            return Divergence(lowest=lowest)
        return Divergence(self.evaluations + 1, self.since or round, loss, constant, lowest)

    @property
    def established(self) -> bool:
        """Whether there is divergence: three evaluations in succession, or a non-finite loss."""
        return self.evaluations >= _PATIENCE or not math.isfinite(self.loss)

    def sentence(self, private: bool) -> str:
        """Returns a sentence on the problem, with remedies; `private`: whether there is noise."""
        return (
            "the model's loss has been above the baseline (the best constant prediction) "
            f"without falling since round {self.since} ({self.loss:.4g}, baseline "
            f"{self.constant:.4g}): lower {remedies(private).removeprefix('change ')}"
        )

    def to_json(self) -> dict[str, Any] | None:
        """Returns the counts as JSON; None unless divergence is established."""
        if not self.established:
            return None
        return {name: getattr(self, name) for name in ("evaluations", "since", "loss", "constant")}


def remedies(private: bool) -> str:
    """Advice on keys to change if a model does not learn; `private`: whether there is noise."""
    if not private:
        return "change client.lr or server.lr"
    return (
        "change client.lr or server.lr or privacy.clip, which scales the noise; or sample larger "
        "cohorts, or spend more ε"
    )


_BATCH_SIZE = 1024


class Baseline:
    """Compares a run's loss on its public test set with that of the best constant prediction.

    Detects if the run stays worse. Labels may change between rounds, and then the best constant
    prediction changes too.
    """

    def __init__(self, loss: Loss) -> None:
        self.divergence = Divergence()
        self._loss = loss
        self._examples: Examples | None = None
        self._measures: Mapping[str, float] = {}
        self._warned = False

    def on(self, examples: Examples) -> Mapping[str, float]:
        """Returns the result of `best_constant`, computed again only if the examples change."""
        if self._examples is not examples:
            self._examples, self._measures = examples, best_constant(self._loss, examples)
        return self._measures

    def go_on(self, losses: Mapping[int, float], examples: Examples) -> None:
        """Counts the evaluations of an interrupted run again, from their losses by round."""
        for round, loss in losses.items():
            self.divergence = self.divergence.after(round, loss, self.on(examples)["loss"])

    def judge(self, round: int, loss: float, examples: Examples) -> bool:
        """Adds an evaluation; returns whether divergence is established, the first time only."""
        self.divergence = self.divergence.after(round, loss, self.on(examples)["loss"])
        new = self.divergence.established and not self._warned
        self._warned |= new
        return new


def best_constant(loss: Loss, examples: Examples) -> dict[str, float]:
    """The measures of the best constant prediction on `examples`.

    "loss" is the smallest loss of any constant prediction. All other measures are those of one
    constant prediction, which is best by the loss's first measure. The labels of `examples` are
    used, so they must be public. Raises `Refused` if a measure is undefined for them.

    Args:
      loss: the loss of the run.
      examples: labelled public examples.
    """
    best = loss.baseline_outputs(examples.y, loss.width(examples))
    judged = [
        loss.scores(_repeated(best, y), y, examples.meaning)
        for y in torch.split(examples.y, _BATCH_SIZE)
    ]
    return {**loss.measures(torch.cat(judged)), "loss": constant_loss(loss, examples)}


def constant_loss(loss: Loss, examples: Examples) -> float:
    """The mean loss of the constant prediction that minimises it on public `examples`."""
    least = loss.minimiser(examples.y, loss.width(examples))
    batches = torch.split(examples.y, _BATCH_SIZE)
    losses = [loss.losses(_repeated(least, y), y).double() for y in batches]
    return float(torch.cat(losses).mean())


def _repeated(outputs: Tensor, y: Tensor) -> Tensor:
    """`outputs` `[width]` for every example and position of y: `[B, *positions, width]`."""
    places = y.shape[:-1] if y.is_floating_point() else y.shape
    return outputs.expand(*places, -1)
