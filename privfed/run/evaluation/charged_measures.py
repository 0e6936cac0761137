"""What an evaluation by clients tells: estimates with intervals, from what its round released."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from privfed.measures.estimate import Estimate
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
    size = int(algorithm.sampler.size)
    deviation = 0.0
    if algorithm.mechanism.private:
        factor = algorithm.mechanism.noise_on_update(size)
        deviation = factor * algorithm.encoding_factor(0) * float(algorithm.mechanism.clip)
    by_group = measures.row.estimates(
        released.double() * size,
        deviation,
        algorithm.witness(1).rate,
        setup.plan.config.evaluation.confidence,
    )
    return {
        f"{name}[{group}]" if group else name: estimate
        for group, estimates in by_group.items()
        for name, estimate in estimates.items()
    }


def in_metrics(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """The estimates as numbers of a line of metrics, each with its interval's two ends."""
    numbers: dict[str, float] = {}
    for name, estimate in estimates.items():
        numbers[f"{PREFIX}{name}"] = estimate.value
        numbers[f"{PREFIX}{name}_low"] = estimate.low
        numbers[f"{PREFIX}{name}_high"] = estimate.high
    return numbers
