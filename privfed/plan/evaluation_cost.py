"""What rounds cost in which clients evaluate: as a run of their own, whose rows are measures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from accounting.events import Event, Spending
from accounting.over_rounds import RandomAllocation
from attacks.types import NoAttack
from defenses.by_sums.mean import Mean
from privfed.client.client_measures import Measurement
from privfed.client.compression.compression import NoCompression
from privfed.config.attack_keys import AttackKeys
from privfed.config.config import Config
from privfed.metrics.groups import ExampleGroups
from privfed.metrics.measure import Scoring
from privfed.metrics.measure_row import MeasureRow
from privfed.models.form import Form
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.sampling.cohort import Witness
from privfed.sampling.evaluation_rounds import independent_draw
from privfed.server.optimizer import Unmoved

ROW_NORM = 1.0
"""The clip of a row of measures, which has at most that norm by itself (`privfed.metrics`)."""


@dataclass(frozen=True)
class EvaluationCost:
    """`count` rounds of a run that evaluate, each at the cost of a round of `config`.

    Their noise multiplier is `ratio` times that of training: they take the share of the variance
    budget that `budget.evaluation` states.
    """

    config: Config
    cost: RoundCost
    count: int
    ratio: float

    def event(self, noise: float | None) -> Event:
        """What such a round is charged, where training has the noise multiplier `noise`."""
        return self.cost.event(self.noise(noise))

    def noise(self, noise: float | None) -> float | None:
        """The noise multiplier of such a round."""
        return None if noise is None else noise * self.ratio

    def spending(self, noise: float) -> Spending:
        """What all of these rounds are charged."""
        return {self.event(noise): self.count} if self.count else {}


def evaluation_cost(config: Config, length: int = 0) -> EvaluationCost | None:
    """The cost of the rounds that evaluate, with rows of `length` measures; None where none does.

    Raises `Refused`.
    """
    rounds = config.evaluation_rounds
    count = rounds.among(config.run.rounds)
    if not rounds.every:
        return None
    evaluating = as_evaluation(config, length)
    return EvaluationCost(
        evaluating, round_cost(evaluating, length), count, _ratio(config, evaluating)
    )


def measure_row_of(config: Config, form: Form) -> MeasureRow:
    """What a client's row of measures is made of. Raises `Refused`."""
    groups = ExampleGroups.by(config.evaluation.group, form).names
    return MeasureRow.of(config.measures, Scoring(form, config.loss), groups)


def as_evaluation(config: Config, length: int = 0) -> Config:
    """The configuration whose rounds are those of `config` that evaluate.

    A client sends a row of measures instead of an update. It is clipped, summed, noised and drawn
    by the same parts, but the sum is an average, nothing adapts to norms, and draws and noise of
    different rounds do not hang together. The `length` of a row matters to noise that clients
    share. Attackers lie about nothing here: whatever a client measures, its row is bounded. Raises
    `Refused`.
    """
    evaluation = config.evaluation
    return replace(
        config,
        objective=Measurement(length=length),
        compression=NoCompression(),
        optimizer=Unmoved(),
        rule=Mean(),
        aggregation=config.aggregation.model_copy(
            update={"before": [], "silo_weights": [], "byzantine": config.hostile}
        ),
        mechanism=config.mechanism.with_clip(ROW_NORM),
        sampler=independent_draw(config.sampler, evaluation.size, config.data.clients),
        evaluation=evaluation.model_copy(update={"by": "test", "personal": False}),
        stop=config.stop.model_copy(update={"patience": 0}),
        attack=NoAttack(),
        attackers=AttackKeys(),
        admitted=config.evaluation_admitted,
    )


def _ratio(config: Config, evaluating: Config) -> float:
    """The noise multiplier of evaluation over that of training.

    A round takes about w / z² of the variance budget, with w = q² where a secret draw of rate q
    amplifies (Bu et al. 2020, "Deep learning with Gaussian differential privacy", section 4.1, the
    limit of many rounds), and the part of rounds that a client takes part in where nothing does.
    So a round of every k takes the share s beside the k - 1 that train at
    z_E / z = sqrt(w_E (1 - s) / (w s (k - 1))), however many rounds there are: a run that goes on
    has the same noise. What rounds cost is not this estimate's business: each is charged its own
    event.
    """
    share, training = config.budget.evaluation, config.evaluation_rounds.every - 1
    witnesses = [each.sampler.witness(1, each.data.clients) for each in (evaluating, config)]
    weight, of_training = map(variance_weight, witnesses)
    return math.sqrt(weight * (1 - share) / (of_training * share * training))


def variance_weight(witness: Witness) -> float:
    """What a round takes of the variance budget at a noise multiplier of one.

    A slot among B, secret and fresh, has a likelihood ratio of variance 1 / (B z^2), about.
    """
    if isinstance(witness.release, RandomAllocation):
        return witness.rate**2 * witness.separation
    return witness.rate if witness.separation > 1 else witness.rate**2
