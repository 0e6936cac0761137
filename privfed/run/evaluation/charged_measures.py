"""What an evaluation by clients tells: estimates with intervals, from what its round released."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.metrics.groups import ExampleGroups
from privfed.metrics.measure import Estimate
from privfed.metrics.measure_row import half_widths
from privfed.models.form import Form
from privfed.models.network import Network
from privfed.round.algorithm import Algorithm
from privfed.run.setup import Setup


def over_groups(
    network: Network, params: Tensor, examples: Examples, column: str
) -> dict[str, float]:
    """The first measure in each group that `column` makes of `examples`, the worst, and gaps.

    "accuracy[b]" is that of group b; "worst_group_accuracy" the worst group's, and
    "group_gap_accuracy" how far it is below the best. "opportunity_gap", of classes, is how much
    the recall of a class differs between two groups at most: 0 is equality of opportunity (Hardt,
    Price & Srebro 2016, definition 2.2) for every class. Groups without an example have no part in
    it. Nothing without a `column`. Raises `Refused` where it makes no groups.
    """
    form = Form.of(examples)
    declared = ExampleGroups.by(column, form)
    groups = declared.of(examples.x, examples.y)
    if groups is None:
        return {}
    name, places = network.loss.measure, range(len(declared.names))
    scores = {
        declared.names[group]: network.evaluate(params, examples.take(rows))[name]
        for group in places
        if len(rows := np.flatnonzero(groups == group))
    }
    if not scores:
        return {}
    lower = network.loss.lower_is_better
    worst = max(scores.values()) if lower else min(scores.values())
    gaps = {
        f"worst_group_{name}": worst,
        f"group_gap_{name}": max(scores.values()) - min(scores.values()),
    }
    if form.classified and not form.labels:
        gaps["opportunity_gap"] = opportunity_gap(
            _predicted(network, params, examples), examples.y.cpu().numpy(), groups
        )
    return {**{f"{name}[{group}]": score for group, score in scores.items()}, **gaps}


def opportunity_gap(predicted: Indices, labels: Indices, groups: Indices) -> float:
    """By how much the recall of a class differs between two groups at most, over all classes.

    Of examples `[n]` each. A class that is in fewer than two groups has no such difference, and
    without any it is 0.
    """
    gaps = [0.0]
    for label in np.unique(labels):
        of_class = labels == label
        recalls = [
            float((predicted[of_class & (groups == group)] == label).mean())
            for group in np.unique(groups[of_class])
        ]
        gaps.append(max(recalls) - min(recalls))
    return max(gaps)


def _predicted(network: Network, params: Tensor, examples: Examples) -> Indices:
    """The classes that the model predicts `[n]`."""
    meaning = examples.meaning
    parts = [
        network.loss.predict(outputs, meaning)["prediction"]
        for outputs, _ in network.scored(params, examples)
    ]
    return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.int64)


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
