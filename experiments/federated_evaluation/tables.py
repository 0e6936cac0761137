"""The tables of the study's page, as Markdown: precision, cost, and stopping rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import t

from experiments.federated_evaluation.cases import (
    ARMS,
    CASES,
    END,
    HELD_BACK,
    LONGER,
    PATIENCE,
    TENS,
    TENS_BY_LOSS,
    TENS_FIFTH,
    TEST,
)
from experiments.federated_evaluation.scored import Scored
from experiments.federated_evaluation.stops import stopped

_CLOSE = 0.02
"""The error threshold of the study."""
BY_ACCURACY = (END, TENS, TENS_FIFTH)
COSTS = (HELD_BACK, END, TENS, TENS_FIFTH)
STOPS = (
    (TEST, "accuracy"),
    (TEST, "loss"),
    (TENS, "accuracy"),
    (TENS_BY_LOSS, "loss"),
    (TENS_FIFTH, "accuracy"),
)
"""The evaluator, and the measure by which a run is stopped."""


def tables(rows: Sequence[Scored]) -> str:
    """Returns all tables, separated by blank lines."""
    return "\n\n".join([exactness(rows), costs(rows), stopping(rows)])


def runs(rows: Sequence[Scored], case: str, arm: str) -> dict[int, list[Scored]]:
    """Returns the runs of an arm by seed, each in the order of its rounds."""
    chosen: dict[int, list[Scored]] = {}
    for row in sorted(rows, key=lambda row: row.round):
        if (row.case, row.arm) == (case, arm):
            chosen.setdefault(row.seed, []).append(row)
    return chosen


def exactness(rows: Sequence[Scored]) -> str:
    """Returns the errors of estimated accuracy, in points."""
    head = ("clients", "evaluation", "95 % of errors", "within 2 points", "half the interval")
    return _markdown(
        (*head, "covered", "95 % of the test set's"),
        (
            (case, arm, *_exact([row for run in of.values() for row in run]))
            for case in CASES
            for arm in BY_ACCURACY
            if (of := runs(rows, case, arm))
        ),
    )


def _exact(scored: Sequence[Scored]) -> tuple[str, ...]:
    error = np.abs([row.estimate - row.truth for row in scored])
    half = np.mean([(row.high - row.low) / 2 for row in scored])
    covered = sum(row.low <= row.truth <= row.high for row in scored)
    apart = np.abs([row.accuracy - row.truth for row in scored])
    return (
        f"{100 * np.quantile(error, 0.95):.1f}",
        f"{np.sum(error <= _CLOSE)} of {len(error)}",
        f"{100 * half:.1f}",
        f"{covered} of {len(error)}",
        f"{100 * np.quantile(apart, 0.95):.1f}",
    )


def costs(rows: Sequence[Scored]) -> str:
    """Returns accuracy on the test set after the last round, and its differences, paired by
    seed.
    """
    return _markdown(
        ("clients", TEST, *COSTS),
        (
            (case, f"{100 * np.mean(list(base.values())):.1f}", *_differences(rows, case, base))
            for case in CASES
            if (base := _ends(rows, case, TEST))
        ),
    )


def _differences(rows: Sequence[Scored], case: str, base: dict[int, float]) -> Iterable[str]:
    for arm in COSTS:
        ends = _ends(rows, case, arm)
        yield interval([100 * (ends[seed] - base[seed]) for seed in base if seed in ends])


def _ends(rows: Sequence[Scored], case: str, arm: str) -> dict[int, float]:
    return {seed: run[-1].accuracy for seed, run in runs(rows, case, arm).items()}


def stopping(rows: Sequence[Scored]) -> str:
    """Returns the stopping rounds, the spent epsilon, and the gain from stopping."""
    head = ("clients", "evaluation", "by", "stopped", "after rounds", "ε", "accuracy", "loss")
    return _markdown(
        (*head, f"accuracy, patience {LONGER}"),
        (
            (case, arm, by, *_stops(list(of.values()), by, ARMS[arm].charged))
            for case in CASES
            for arm, by in STOPS
            if (of := runs(rows, case, arm))
        ),
    )


def _stops(of: Sequence[Sequence[Scored]], by: str, charged: bool) -> Iterable[str]:
    ends = [stopped(run, PATIENCE, by, charged) for run in of]
    later = [stopped(run, LONGER, by, charged) for run in of]
    early = sum(end.round < run[-1].round for end, run in zip(ends, of, strict=True))
    yield f"{early} of {len(of)}"
    yield f"{np.mean([end.round for end in ends]):.0f}"
    yield f"{np.mean([end.epsilon for end in ends]):.1f}"
    yield interval([100 * gain for gain in _gains(of, ends, "accuracy")])
    yield interval(_gains(of, ends, "loss"), 2)
    yield interval([100 * gain for gain in _gains(of, later, "accuracy")])


def _gains(of: Sequence[Sequence[Scored]], ends: Sequence[Scored], measure: str) -> list[float]:
    """Returns the difference of a measure between each run's stop and its end."""
    pairs = zip(ends, of, strict=True)
    return [getattr(end, measure) - getattr(run[-1], measure) for end, run in pairs]


def interval(values: Sequence[float], digits: int = 1) -> str:
    """Returns the mean and half of its 95 % interval, by Student's t."""
    count = len(values)
    half = t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count)
    return f"{np.mean(values):+.{digits}f} ± {half:.{digits}f}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
