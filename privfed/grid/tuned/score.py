"""By what candidates are compared: what clients measured and was charged, or the public test set.

Both are post-processing of what a run releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privfed.errors import Refused
from privfed.grid.default_measure import tuning_measure
from privfed.grid.grid import Tuning
from privfed.grid.results import number_or_none
from privfed.parts import expected
from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.setup import Setup


def score(tuning: Tuning, setup: Setup) -> tuple[str, bool]:
    """The measure to choose by, and whether less is better. Raises `Refused` for no measure.

    Without `tune.by`, the first that clients measure, or the loss's own.
    """
    charged = _charged(setup)
    by = tuning.by or next(iter(charged), "")
    if by in charged:
        lower = tuning.lower_is_better
        return by, charged[by] if lower is None else lower
    if setup.plan.config.nothing_public and by not in charged:
        instead = f"tune.by = {next(iter(charged))!r}" if charged else 'evaluation.by = "clients"'
        raise Refused(
            f'data.holdout = "none" leaves no example to score candidates by'
            f"{f' ({by!r})' if by else ''}: let clients do it, and charge it ({instead})"
        )
    network = setup.network
    measure, lower = tuning_measure(by, tuning.lower_is_better, network.loss)
    known = {network.loss.measure, "loss"}
    if measure not in known and len(setup.federation.test):
        known |= {*network.evaluate(network.initial_params, setup.federation.test)}
    if measure not in known:
        names = [*charged, *sorted(known)]
        raise Refused(f"tune.by is {measure!r}, which is no measure; {expected(measure, names)}")
    return measure, lower


def score_of(outcome: Mapping[str, Any], measure: str) -> float | None:
    """The `measure` of a run that ended so; None where it has no such number."""
    if not measure.startswith(PREFIX):
        return number_or_none(outcome.get(measure))
    estimate = outcome.get("clients", {}).get(measure.removeprefix(PREFIX), {})
    return number_or_none(estimate.get("value"))


def _charged(setup: Setup) -> dict[str, bool]:
    """The measures that clients make, and whether less of each is better."""
    measures = setup.executor.measures
    if measures is None:
        return {}
    return {
        f"{PREFIX}{each.title(measures.row.scoring)}": each.lower_is_better
        for each in measures.row.measures
    }
