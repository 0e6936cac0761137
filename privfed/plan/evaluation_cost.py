"""The cost of rounds in which clients evaluate: that of a round whose rows are metrics."""

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
from privfed.server.optimizer import NoStep

ROW_NORM = 1.0
"""The clipping norm of a row of metrics, whose norm never exceeds it (`privfed.metrics`)."""


@dataclass(frozen=True)
class EvaluationCost:
    """The cost of a run's evaluation rounds.

    Attributes:
      config: the configuration of an evaluation round.
      cost: the cost of an evaluation round, as a function of its noise.
      count: the number of evaluation rounds.
      ratio: the noise multiplier of evaluation rounds, divided by that of training rounds. At this
        ratio evaluations take the fraction `budget.evaluation` of the variance budget: the sum over
        rounds of w / z^2, for a weight w (`variance_weight`) and the noise multiplier z.
    """

    config: Config
    cost: RoundCost
    count: int
    ratio: float

    def event(self, noise: float | None) -> Event:
        """Returns the charge of an evaluation round if training has noise multiplier `noise`.

        None means a mechanism without noise.
        """
        return self.cost.event(self.noise(noise))

    def noise(self, noise: float | None) -> float | None:
        """Returns the noise multiplier of evaluation rounds if that of training is `noise`.

        None for None, which means no noise.
        """
        return None if noise is None else noise * self.ratio

    def spending(self, noise: float) -> Spending:
        """Returns the charges of all evaluation rounds if training has noise multiplier `noise`."""
        return {self.event(noise): self.count} if self.count else {}


def evaluation_cost(config: Config, length: int = 0) -> EvaluationCost | None:
    """Returns the cost of evaluations by clients; None if clients do not evaluate.

    Args:
      config: the run.
      length: the number of entries in a row of metrics; needed only for distributed noise.

    Raises:
      Refused: if the evaluation rounds have no proof.
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
    """Returns the layout of a client's row of metrics for examples of this `form`.

    Raises `Refused` if a metric or the groups do not fit the examples.
    """
    groups = ExampleGroups.by(config.evaluation.group, form).names
    return MeasureRow.of(config.measures, Scoring(form, config.loss), groups)


def as_evaluation(config: Config, length: int = 0) -> Config:
    """Returns the configuration of the evaluation rounds of a run.

    A client sends a row of metrics instead of an update. The same parts sample clients, clip, sum
    and add noise. The differences: the aggregation rule is the mean, the clipping norm is fixed,
    and the sampling and the noise of different rounds are independent. Attackers are not simulated
    in evaluation rounds.

    Args:
      config: the run.
      length: the number of entries in a row of metrics; needed only for distributed noise.
    """
    evaluation = config.evaluation
    return replace(
        config,
        objective=Measurement(length=length),
        compression=NoCompression(),
        optimizer=NoStep(),
        rule=Mean(),
        aggregation=config.aggregation.model_copy(
            update={"before": [], "silo_weights": [], "byzantine": config.byzantine}
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
    """Returns the noise multiplier of evaluation rounds divided by that of training rounds.

    A round with noise multiplier z takes about w / z² of the variance budget. The weight w is q² if
    secret sampling with rate q amplifies privacy (Bu et al. 2020, "Deep learning with Gaussian
    differential privacy", section 4.1, the limit of many rounds); otherwise w is the fraction of
    rounds in which a client takes part. Let each k rounds consist of one evaluation (w_E, z_E) and
    k - 1 training rounds (w, z). The evaluation takes the share s of the variance budget if
    z_E / z = sqrt(w_E (1 - s) / (w s (k - 1))). This ratio does not depend on the number of rounds,
    so a resumed run has the same noise. The approximation does not affect the accounting, in which
    each round is charged its own event.
    """
    share, training = config.budget.evaluation, config.evaluation_rounds.every - 1
    witnesses = [each.sampler.witness(1, each.data.clients) for each in (evaluating, config)]
    weight, of_training = map(variance_weight, witnesses)
    return math.sqrt(weight * (1 - share) / (of_training * share * training))


def variance_weight(witness: Witness) -> float:
    """Returns the weight w of a round, which takes about w / z^2 of the variance budget.

    The weight is q^2 for secret sampling with rate q, and q if a client takes part in a fixed
    schedule. Under random allocation a client has one of B secret slots, drawn anew in each epoch.
    The log-likelihood ratio of the epoch then has variance about 1 / (B z^2), which its rounds
    share.
    """
    if isinstance(witness.release, RandomAllocation):
        return witness.rate**2 * witness.separation
    return witness.rate if witness.separation > 1 else witness.rate**2
