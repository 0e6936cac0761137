"""Those whose membership is asked about, users or single examples, and their scores by models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.privacy.membership import confidence, means_of
from privfed.data.federation import Examples
from privfed.errors import Refused
from privfed.models.network import Network
from privfed.run.rehearsal import keeping, rehearse
from privfed.run.setup import Setup
from privfed.streams import Streams
from privfed.vector import Indices

Level = Literal["user", "example"]
Progress = Callable[[int, int], None]
"""A callback that is told how many runs are done, and of how many."""
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TargetScores:
    """Mean losses of targets, and means of their confidence, each `[s, t]`, under s models."""

    losses: Reals
    statistics: Reals

    def beside(self, other: TargetScores) -> TargetScores:
        """These targets and then those of `other`, under the same models."""
        pairs = ((self.losses, other.losses), (self.statistics, other.statistics))
        return TargetScores(*(np.concatenate(pair, axis=1) for pair in pairs))


def target_scores(
    net: Network, models: Sequence[Tensor], examples: Examples, offsets: Indices, level: Level
) -> TargetScores:
    """What `models` `[d]` say of `examples`, or of the users between `offsets` who hold any."""
    losses = np.stack([_losses(net, params, examples) for params in models])
    scores = TargetScores(losses, confidence(losses))
    if level == "example":
        return scores
    held = np.unique(offsets)
    means = ([means_of(row, held) for row in rows] for rows in (scores.losses, scores.statistics))
    return TargetScores(*map(np.stack, means))


def _losses(net: Network, params: Tensor, examples: Examples) -> Reals:
    """The loss of each example `[N]`, in float64: a confident model's are too small for less."""
    losses = [
        net.loss.losses(outputs.double(), y.double() if y.is_floating_point() else y)
        for outputs, y in net.scored(params, examples)
    ]
    return np.asarray(torch.cat(losses).cpu().numpy(), dtype=np.float64)


def models_on_halves(
    setup: Setup, level: Level, runs: int, seed: int, rounds: int, show: Progress
) -> tuple[list[Tensor], Flags]:
    """The final models `[d]` of `runs` runs, each on a half of the targets by fair coins.

    Returns, beside them, who was inside, `[runs, targets]`. Raises `Refused` where nobody was.
    """
    people = setup.federation
    sizes = np.diff(people.client_offsets)
    sizes = sizes[sizes > 0]
    targets = len(sizes) if level == "user" else len(people.examples)
    inside = fair_coins(seed, "membership", runs, targets)
    models = []
    for run, coin in enumerate(inside):
        show(run, runs)
        if not coin.any():
            raise Refused(
                f"coins leave nobody in one of {runs} runs; take more clients, or another --seed"
            )
        included = np.repeat(coin, sizes) if level == "user" else coin
        run_seed = Streams(seed).at("membership/run", run).integer()
        models.append(rehearse(setup, keeping(people, included), run_seed, rounds).params)
    return models, inside


def fair_coins(seed: int, stream: str, runs: int, targets: int) -> Flags:
    """Fair coins `[runs, targets]`."""
    return Streams(seed).at(stream).generator().random((runs, targets)) < 0.5
