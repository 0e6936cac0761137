"""Measures on groups of examples, and measures with intervals from clients' evaluations."""

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
    """Returns the loss's first measure on each group of `column`, and differences of groups.

    "accuracy[b]" is the accuracy on group b, "worst_group_accuracy" that on the worst group, and
    "group_gap_accuracy" the difference of the best and the worst group. "opportunity_gap", for
    single-label classes, is the largest difference of a class's recall between two groups: 0 is
    equality of opportunity (Hardt, Price & Srebro 2016, definition 2.2) for every class. Groups
    without examples are left out.

    Args:
      network: the model.
      params: its parameters, shape [d].
      examples: labelled examples.
      column: the column that defines groups; "": none, and the result is empty.

    Returns:
      Measures by name.

    Raises:
      Refused: if the column defines no groups.
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
    """The largest difference of a class's recall between two groups, over all classes.

    Arguments have one entry per example `[n]`. A class whose examples are all in one group is left
    out. The gap is 0 if every class is left out.
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
    """The predicted class of each example, `[n]`."""
    meaning = examples.meaning
    parts = [
        network.loss.predict(outputs, meaning)["prediction"]
        for outputs, _ in network.scored(params, examples)
    ]
    return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.int64)


PREFIX = "clients_"
"""Prefix of measures made by clients, to distinguish them from those on a test set."""


def charged_measures(setup: Setup, released: Tensor) -> Mapping[str, Estimate]:
    """Returns estimates of each measure by name, from `released`, the noised average `[m]` of rows.

    A measure of a group has the group's name as a suffix: "accuracy[f]". The computation is
    post-processing of the release. The result is empty if the run's clients do not evaluate.
    """
    algorithm, measures = setup.evaluation, setup.executor.measures
    if algorithm is None or measures is None:
        return {}
    size = float(algorithm.sampler.size)
    by_group = measures.row.estimates(
        released.double() * size,
        _noise_std(algorithm),
        algorithm.witness(1).rate * (1.0 - algorithm.dropout),
        setup.plan.config.evaluation.confidence,
    )
    return {
        f"{name}[{group}]" if group else name: estimate
        for group, estimates in by_group.items()
        for name, estimate in estimates.items()
    }


def expected_widths(setup: Setup) -> dict[str, float]:
    """Returns the expected half-width of each measure's interval by name, before the round.

    The result is empty if clients do not evaluate.
    """
    algorithm, measures = setup.evaluation, setup.executor.measures
    if algorithm is None or measures is None:
        return {}
    confidence, size = setup.plan.config.evaluation.confidence, float(algorithm.sampler.size)
    return half_widths(measures.row, size, _noise_std(algorithm), confidence)


def _noise_std(algorithm: Algorithm) -> float:
    """Standard deviation of the noise on each coordinate of a sum of rows."""
    mechanism = algorithm.mechanism
    if not mechanism.private:
        return 0.0
    factor = mechanism.noise_on_update(round(float(algorithm.sampler.size)))
    return factor * algorithm.encoding_factor(0) * float(mechanism.clip)


def in_metrics(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Returns each estimate and the ends of its interval, by name as in metrics.jsonl.

    The names are "clients_NAME", "clients_NAME_low" and "clients_NAME_high".
    """
    numbers: dict[str, float] = {}
    for name, estimate in estimates.items():
        numbers[f"{PREFIX}{name}"] = estimate.value
        numbers[f"{PREFIX}{name}_low"] = estimate.low
        numbers[f"{PREFIX}{name}_high"] = estimate.high
    return numbers
