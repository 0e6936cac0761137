"""Whether a run does worse than an answer that looks at nothing, for how long, and what helps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_PATIENCE = 3
"""Evaluations in a row, since one or two may be chance."""


@dataclass(frozen=True)
class Divergence:
    """The last `evaluations` in a row that were above a constant answer's loss and did not fall.

    Not fallen is a loss above the `lowest` of the run so far: a model that is still on its way
    from a bad start is no concern. `since` is the round of the first of them, `loss` that of the
    last, and `constant` the least loss of a constant answer. All of it is about public examples.
    """

    evaluations: int = 0
    since: int = 0
    loss: float = 0.0
    constant: float = 0.0
    lowest: float = math.inf

    def after(self, round: int, loss: float, constant: float) -> Divergence:
        """With the evaluation after `round`."""
        lowest = min(self.lowest, loss)
        if math.isfinite(loss) and (loss <= constant or loss <= lowest):
            return Divergence(lowest=lowest)
        return Divergence(self.evaluations + 1, self.since or round, loss, constant, lowest)

    @property
    def established(self) -> bool:
        """Whether it is no accident: so often, or no number any more."""
        return self.evaluations >= _PATIENCE or not math.isfinite(self.loss)

    def sentence(self, private: bool) -> str:
        """What is wrong and what to do, in a run with or without noise."""
        helps = "lower client.lr or server.lr"
        if private:
            helps += " or privacy.clip, which lets in less noise; or ask larger cohorts, or spend "
            helps += "more ε"
        return (
            f"the model's loss is above that of a constant answer and does not fall, since round "
            f"{self.since} ({self.loss:.4g}, a constant's {self.constant:.4g}): {helps}"
        )

    def to_json(self) -> dict[str, Any] | None:
        """None, where it is not established."""
        if not self.established:
            return None
        return {name: getattr(self, name) for name in ("evaluations", "since", "loss", "constant")}
