"""How a model serves each declared group of public examples, and how far groups lie apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privfed.data.federation import Examples
from privfed.measures.groups import ExampleGroups
from privfed.models.form import Form
from privfed.models.network import Network
from privfed.vector import Indices


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
