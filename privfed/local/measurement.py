"""What clients answer in rounds that evaluate: one row of measures each, of the model as it is."""

from __future__ import annotations

from privfed.local.objectives.sgd import Sgd
from privfed.vector import Layout


class Measurement(Sgd):
    """Rows of `length` measures, and no update: nobody trains."""

    length: int = 0

    def layout(self, d: int) -> Layout:
        return Layout((("measures", self.length),))
