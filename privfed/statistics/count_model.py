"""A model that adds up: trained once, from zero, its parameters are the average of what clients
send.

Its output on a client's counts is the sum of the parameters there, each times a public amplitude,
and its loss is minus that. One step of gradient descent at rate 1 from zero is then exactly the
client's vector of amplitudes, so that a release of statistics is a round of training: charged,
drawn, bounded, summed and noised by the same code, and audited and composed as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from privfed.data.federation import Examples, Meaning
from privfed.models.losses.scored import ScoredLoss
from privfed.models.task import Task
from privfed.parts import Part

Stretch = Annotated[list[float], Field(min_length=2, max_length=2)]


class CountModel(Part):
    """One parameter for each count. `stretches` are lengths and amplitudes of counts, in order."""

    stretches: list[Stretch] = Field(min_length=1)

    @classmethod
    def stretched(cls, amplitudes: list[float]) -> list[list[float]]:
        """The stretches of `amplitudes` `[d]`."""
        stretches: list[list[float]] = []
        for amplitude in amplitudes:
            if stretches and stretches[-1][1] == amplitude:
                stretches[-1][0] += 1
            else:
                stretches.append([1.0, amplitude])
        return stretches

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        lengths, amplitudes = zip(*self.stretches, strict=True)
        repeats = torch.tensor([int(length) for length in lengths])
        return _counting(torch.tensor(amplitudes, dtype=torch.float32).repeat_interleave(repeats))


def _counting(amplitudes: Tensor) -> nn.Module:
    """The module whose output on x `[B, k]`, places of counts from 1 on (0: none), is their sum."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts = nn.Parameter(torch.zeros(len(amplitudes)))
            self.register_buffer("amplitudes", amplitudes)

        def forward(self, x: Tensor) -> Tensor:
            place = (x - 1).clamp(min=0)
            added = self.counts[place] * self.get_buffer("amplitudes")[place]
            return (added * (x > 0)).sum(-1, keepdim=True)

    return Counting()


class Added(ScoredLoss):
    """Minus the output: what is learned is what was added."""

    @property
    def measure(self) -> str:
        return "added"

    def defaults(self, task: Task) -> Mapping[str, Any]:
        return {}

    def width(self, examples: Examples) -> int:
        return 1

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return y.new_zeros(width)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -outputs.squeeze(-1)

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return outputs.double()

    def measures(self, scores: Tensor) -> dict[str, float]:
        return {self.measure: float(scores.mean())}

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        return outputs.squeeze(-1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        return {"prediction": outputs.squeeze(-1)}
