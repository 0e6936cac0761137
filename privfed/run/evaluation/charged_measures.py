"""What an evaluation by clients tells: estimates with intervals, from what its round released."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from privfed.measures.measure import Estimate
from privfed.measures.measure_row import half_widths
from privfed.round.algorithm import Algorithm
from privfed.run.setup import Setup

PREFIX = "clients_"
"""Before the name of a measure that clients made, where it stands beside those on a test set."""


def charged_measures(setup: Setup, released: Tensor) -> Mapping[str, Estimate]:
    """Each measure by name, from the noised average of clients' rows `[m]` that a round released.

    Those of a group have its name behind them: "accuracy[f]". It is post-processing of the release.
    """
    algorithm, measures = setup.evaluation, setup.executor.measures
    if algorithm is None or measures is None:
        return {}
    size = float(algorithm.sampler.size)
    by_group = measures.row.estimates(
        released.double() * size,
        _deviation(algorithm),
        algorithm.witness(1).rate * (1.0 - algorithm.dropout),
        setup.plan.config.evaluation.confidence,
    )
    return {
        f"{name}[{group}]" if group else name: estimate
        for group, estimates in by_group.items()
        for name, estimate in estimates.items()
    }


def expected_widths(setup: Setup) -> dict[str, float]:
    """Half the width of each measure's interval that noise will leave, before anybody is asked."""
    algorithm, measures = setup.evaluation, setup.executor.measures
    if algorithm is None or measures is None:
        return {}
    confidence, size = setup.plan.config.evaluation.confidence, float(algorithm.sampler.size)
    return half_widths(measures.row, size, _deviation(algorithm), confidence)


def _deviation(algorithm: Algorithm) -> float:
    """The deviation of the noise on each number of a sum of rows."""
    mechanism = algorithm.mechanism
    if not mechanism.private:
        return 0.0
    factor = mechanism.noise_on_update(round(float(algorithm.sampler.size)))
    return factor * algorithm.encoding_factor(0) * float(mechanism.clip)


def in_metrics(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """The estimates as numbers of a line of metrics, each with its interval's two ends."""
    numbers: dict[str, float] = {}
    for name, estimate in estimates.items():
        numbers[f"{PREFIX}{name}"] = estimate.value
        numbers[f"{PREFIX}{name}_low"] = estimate.low
        numbers[f"{PREFIX}{name}_high"] = estimate.high
    return numbers
