"""A model whose parameters, after one step from zero, are the average of clients' count vectors.

The model's input lists the indices of the counts to which a client adds. The output is the sum of
the parameters at these indices, each times a public amplitude, and the loss is minus the output.
One step of gradient descent at rate 1 from zero is then exactly the client's count vector: the
amplitude at each of these indices, and zero elsewhere. A release of statistics is therefore a round
of training: the same code samples clients, clips, sums, adds noise, charges, audits and composes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import guarantee
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import Examples, Meaning
from privfed.models.form import Task
from privfed.models.loss import Loss
from privfed.plan.evaluation_cost import EvaluationCost, evaluation_cost, variance_weight
from privfed.plan.round_cost import RoundCost, round_cost

_ABOUT_COST = ("run", "cohort", "privacy", "secure", "evaluation", "budget", "aggregation")


def epsilon_of_share(raw: Raw, described: Config) -> float:
    """Returns the epsilon of a description with the fraction `budget.statistics` of the budget.

    The noise is solved jointly for the description, the training of the same run file and
    evaluation rounds, so that together they spend privacy.epsilon. The ratio of the description's
    noise multiplier z_D to that of training, z, is z_D / z = sqrt(R w_D (1 - s) (1 - e) / (s w (T -
    E))). Here s is the fraction of the description and e that of evaluation; R is the number of
    rounds of the description, T that of the run, of which E are evaluation rounds; and w_D and w
    are the `variance_weight` of a round of the description and of training. The description is
    charged as its own events. The noise of training is then solved for again, with that charge
    counted.

    Args:
      raw: the run file.
      described: the configuration of the description.

    Raises:
      Refused: if the run file states no fraction or no finite privacy.epsilon, if its noise depends
        on a message's length, or if no noise meets the budget.
    """
    config = _costs(raw)
    privacy, cost, evaluation = config.privacy, round_cost(config), evaluation_cost(config)
    description = round_cost(described)
    ratio = _ratio(config, cost, evaluation, described)

    def event(z: float) -> Event:
        return description.event(z * ratio)

    def extra_spending(z: float) -> Spending:
        releases = Counter({event(z): described.run.rounds})
        return releases + Counter(evaluation.spending(z) if evaluation else {})

    training = config.run.rounds - (evaluation.count if evaluation else 0)
    try:
        z = cost.solve(
            training,
            privacy.epsilon or 0.0,
            privacy.delta,
            privacy.accountant,
            extra_spending=extra_spending,
        )
        return guarantee(
            {event(z): described.run.rounds}, privacy.delta, privacy.accountant
        ).epsilon
    except AccountingError as error:
        raise Refused(f"budget.statistics: {error}") from error


def _costs(raw: Raw) -> Config:
    """Returns the configuration of the sections of `raw` that determine the cost of its training.

    Raises `Refused` if `raw` states no `budget.statistics` or no finite `privacy.epsilon`, or if
    its noise depends on a message's length.
    """
    about = {name: section for name, section in raw.items() if name in _ABOUT_COST}
    config = assembled({**about, "data": {"clients": raw.get("data", {}).get("clients", 0)}})
    if not config.budget.statistics:
        raise Refused(
            "--epsilon is missing; set it to the budget of this release, or set "
            "budget.statistics to its share of the run's budget",
            key="epsilon",
        )
    if config.privacy.epsilon in (None, math.inf) or config.shared_noise:
        raise Refused(
            "budget.statistics needs a finite privacy.epsilon, and noise that does not depend on "
            "a message's length; use --epsilon to set the budget of this release",
            key="budget.statistics",
        )
    return config


def _ratio(
    config: Config, cost: RoundCost, evaluation: EvaluationCost | None, described: Config
) -> float:
    """Returns the description's noise multiplier divided by that of training.

    `evaluation` is None if clients do not evaluate models.
    """
    description = round_cost(described)
    share, evaluations = config.budget.statistics, evaluation.count if evaluation else 0
    left = (1 - share) * (1 - (config.budget.evaluation if evaluation else 0.0))
    weights = [variance_weight(each.witness) for each in (description, cost)]
    rounds = (described.run.rounds, config.run.rounds - evaluations)
    return math.sqrt(weights[0] * rounds[0] * left / (share * weights[1] * rounds[1]))


Stretch = Annotated[list[float], Field(min_length=2, max_length=2)]


class CountModel(Part):
    """A model with one parameter per count, for releases of statistics (`privfed describe`).

    `stretches` are pairs [length, amplitude], in the order of the counts: `length` successive
    counts have the amplitude `amplitude`.
    """

    linear: ClassVar[bool] = True

    stretches: list[Stretch] = Field(min_length=1)

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        lengths, amplitudes = zip(*self.stretches, strict=True)
        repeats = torch.tensor([int(length) for length in lengths])
        return _counting(torch.tensor(amplitudes, dtype=torch.float32).repeat_interleave(repeats))


def _counting(amplitudes: Tensor) -> nn.Module:
    """Returns a module whose output is the sum of amplitude * parameter over its input's indices.

    Inputs are indices `[B, k]` of counts, from 1; 0 marks an unused entry.
    """

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


class Added(Loss):
    """The negated model output as loss: a round yields the average of clients' count vectors."""

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
