"""Mean and worst decile over clients, by setting, arm and epsilon, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from experiments.personalisation.cases import ARMS, EPSILONS
from experiments.personalisation.records import Record
from experiments.personalisation.tables import MEASURES, values
from privfed.grid.pictures.figures import COLOURS, MARKERS, STYLE


def picture(results: Sequence[Record]) -> bytes:
    """Draws a panel for each setting and measure: marks for each arm, means of seeds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings = list(dict.fromkeys(record.setting for record in results))
    places = np.arange(len(ARMS))[::-1]
    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(
            2, len(settings), figsize=(3 * len(settings) + 1, 5.4), sharey=True, squeeze=False
        )
        for column, setting in enumerate(settings):
            of = [record for record in results if record.setting == setting]
            for row, (measure, name) in enumerate(MEASURES.items()):
                panel = axes[row, column]
                for number, epsilon in enumerate(EPSILONS):
                    cells = [list(values(of, arm, epsilon, measure).values()) for arm in ARMS]
                    panel.plot(
                        [np.mean(cell) for cell in cells],
                        places,
                        MARKERS[number],
                        color=COLOURS[number],
                        markersize=5,
                        label=f"ε = {epsilon:g}".replace("inf", "∞"),
                    )
                panel.set(xlabel=f"{name} over clients (%)")
            axes[0, column].set(title=setting, yticks=places, yticklabels=ARMS)
        axes[0, 0].legend(loc="upper right")
        out = io.BytesIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
    return out.getvalue()
