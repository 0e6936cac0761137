"""How privfed's pictures look: readable in print and for the colour-blind.

Lines and bars take the Okabe-Ito palette with a marker and a dash each (Okabe & Ito 2008), with a
grey in the place of its black, on which hatching and whiskers show.
"""

from __future__ import annotations

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "privfed",
    "figure.constrained_layout.use": True,
}
