"""How exactly measures will be known, before anybody is asked."""

from __future__ import annotations

import numpy as np

from privfed.deferred import torch
from privfed.measures.measure_row import MeasureRow

_DRAWS = 20
"""How many made-up sums a width is the mean over."""


def half_widths(
    row: MeasureRow, clients: float, deviation: float, confidence: float = 0.95
) -> dict[str, float]:
    """Half the width of each measure's interval, by its title, that noise alone would leave.

    It is the mean over made-up sums of a cohort of so many `clients`, whose model does no better
    than a constant answer, with noise of this `deviation` on each number of the sum; of everybody,
    where there are groups. Nobody's data are in it, and the made-up noise is always the same. How
    much clients differ, where they are drawn, comes on top.
    """
    scored = row.of_examples(*row.scoring.guess())
    total = clients * row.of_clients(scored, np.array([0, len(scored)]))[0]
    generator = torch.Generator().manual_seed(0)
    widths: dict[str, float] = {}
    for _ in range(_DRAWS):
        noise = torch.randn(row.length, generator=generator, dtype=torch.float64)
        estimates = row.estimates(total + deviation * noise, deviation, 1.0, confidence)[""]
        for title, each in estimates.items():
            widths[title] = widths.get(title, 0.0) + (each.high - each.low) / 2 / _DRAWS
    return widths
