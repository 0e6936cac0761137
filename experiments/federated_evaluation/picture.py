"""Clients' estimates next to the truth, over rounds, and the stopping rounds of worsening runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.federated_evaluation.cases import ARMS, PATIENCE, TENS, TENS_FIFTH, TEST
from experiments.federated_evaluation.scored import Scored
from experiments.federated_evaluation.stops import stopped
from experiments.federated_evaluation.tables import runs
from privfed.grid.pictures.figures import COLOURS, DASHES, MARKERS, STYLE

_MEASURED = {"digits": "digits, 500 clients", "large table": "a table, 5,000 clients"}
_DIVERGING = "fast digits"


def picture(rows: Sequence[Scored]) -> bytes:
    """Draws estimates of one run with their intervals, and means of runs that diverge, as SVG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2))
        for place, (case, title) in zip(axes[:2], _MEASURED.items(), strict=True):
            _measured(place, runs(rows, case, TENS)[0])
            place.set(title=title, xlabel="round")
        _diverging(axes[2], rows)
        axes[0].set_ylabel("accuracy (%)")
        axes[0].legend(loc="lower right")
        axes[2].legend(loc="upper left")
        out = io.BytesIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
    return out.getvalue()


def _measured(place: Any, run: Sequence[Scored]) -> None:
    """Draws the charged estimates in one run, and the true values."""
    rounds = [row.round for row in run]
    estimates = np.array([[row.estimate, row.low, row.high] for row in run]) * 100
    reach = np.abs(estimates[:, 1:] - estimates[:, :1]).T
    place.plot(rounds, [100 * row.truth for row in run], color=COLOURS[0], label="true value")
    place.errorbar(
        rounds,
        estimates[:, 0],
        reach,
        fmt="s",
        color=COLOURS[1],
        markersize=4,
        label="charged estimate",
    )


def _diverging(place: Any, rows: Sequence[Scored]) -> None:
    """Draws the mean loss over rounds of each arm, and each run's loss where it stopped."""
    for number, arm in enumerate((TEST, TENS, TENS_FIFTH)):
        each, colour = list(runs(rows, _DIVERGING, arm).values()), COLOURS[number]
        means = np.mean([[row.loss for row in run] for run in each], axis=0)
        rounds = [row.round for row in each[0]]
        ends = [stopped(run, PATIENCE, "accuracy", ARMS[arm].charged) for run in each]
        place.plot(rounds, means, DASHES[number], color=colour, label=arm)
        place.plot(
            [end.round + 2 * number - 2 for end in ends],
            [end.loss for end in ends],
            MARKERS[number],
            color=colour,
            markersize=4,
            alpha=0.5,
        )
    place.set(title="digits, early stops", xlabel="round", ylabel="test loss")
