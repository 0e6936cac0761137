"""The measure that figures show and tuning compares where a grid names none: that of its loss.

A loss names its first measure and says whether less of it is better. Of whatever else is measured,
more is better, but for losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privfed.errors import Refused
from privfed.grid.pictures.figures import Figure, holds
from privfed.models.loss import Loss

Losses = Sequence[tuple[Mapping[str, Any], Loss]]
"""The loss of each cell, beside the keys that vary, as a table holds them."""


def less_is_better(loss: Loss, measure: str) -> bool:
    """Whether less of `measure` is better, which may be the loss's own, or its best or late one."""
    return loss.lower_is_better if measure.startswith(loss.measure) else measure.endswith("loss")


def figure_with_measure(figure: Figure, losses: Losses) -> Figure:
    """`figure` with the measure and the direction that it leaves out.

    Raises `Refused` where the cells that it shows have several.
    """
    losses_shown = [loss for values, loss in losses if holds(values, figure.where)]
    if not losses_shown:
        return figure  # every cell is refused, and says why
    measure = figure.measure or _only(
        losses_shown, f"figure {figure.name!r}: measure", "show some by where"
    )
    lower = _direction(figure.lower_is_better, losses_shown, measure)
    return figure.model_copy(update={"measure": measure, "lower_is_better": lower})


def tuning_measure(by: str, lower_is_better: bool | None, loss: Loss | None) -> tuple[str, bool]:
    """What a cell with this loss (None: it is refused) is tuned by, and whether less is better."""
    losses = [] if loss is None else [loss]
    measure = by or next((loss.measure for loss in losses), "")
    return measure, _direction(lower_is_better, losses, measure)


def _direction(stated: bool | None, losses: Sequence[Loss], measure: str) -> bool:
    if stated is not None:
        return stated
    return any(less_is_better(loss, measure) for loss in losses)


def refuse_several_measures(losses: Sequence[Loss]) -> None:
    """Raises `Refused` where what is tried for one cell has measures that do not compare."""
    _only(losses, "tune.by", "vary the loss in [grid]")


def _only(losses: Sequence[Loss], key: str, instead: str) -> str:
    """The one measure of `losses`. Raises `Refused`, with what to do `instead`, for several."""
    measures = list(dict.fromkeys(loss.measure for loss in losses))
    if len(measures) > 1:
        raise Refused(
            f"{key} is missing, and the losses of these cells have several: {', '.join(measures)}; "
            f"name one that all of them have, or {instead}"
        )
    return measures[0]
