"""What a plan solved for, beside the keys of a run file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privfed.config.chosen import Chosen


@dataclass(frozen=True)
class Resolved:
    """What a plan solved for, as its run's file keeps it: see `privfed.config.config`."""

    noise_multiplier: float | None = None
    admitted: int = 0
    chosen: Chosen | None = None
    evaluation_admitted: int = 0

    def to_json(self) -> dict[str, Any]:
        """What the file of a run whose noise was solved for states: no zeros, and nothing unset."""
        chosen = self.chosen.to_json() if self.chosen else None
        stated = {
            "noise_multiplier": self.noise_multiplier,
            "admitted": self.admitted or None,
            "evaluation_admitted": self.evaluation_admitted or None,
            "chosen": chosen,
        }
        return {key: value for key, value in stated.items() if value is not None}

    @classmethod
    def read(cls, stated: Any) -> Resolved:
        """What a file states under "resolved"; nothing, where that is none of ours."""
        kinds = {"noise_multiplier": float, "admitted": int, "evaluation_admitted": int}
        stated = stated if isinstance(stated, dict) else {}
        usable = {k: stated[k] for k, of in kinds.items() if type(stated.get(k)) is of}
        usable = {k: value for k, value in usable.items() if 0 <= value < math.inf}
        return cls(**usable, chosen=Chosen.from_json(stated.get("chosen")))
