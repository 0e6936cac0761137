"""The values that a plan solves for, in addition to the keys of a run file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privfed.config.chosen import Chosen


@dataclass(frozen=True)
class Resolved:
    """The values that a plan solved for, as stored in the file: see `privfed.config.config`."""

    noise_multiplier: float | None = None
    admitted: int = 0
    chosen: Chosen | None = None
    evaluation_admitted: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the entries for the resolved file; zero and unset values are left out."""
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
        """Reads the entries under "resolved"; entries that privfed did not write are ignored."""
        kinds = {"noise_multiplier": float, "admitted": int, "evaluation_admitted": int}
        stated = stated if isinstance(stated, dict) else {}
        usable = {k: stated[k] for k, of in kinds.items() if type(stated.get(k)) is of}
        usable = {k: value for k, value in usable.items() if 0 <= value < math.inf}
        return cls(**usable, chosen=Chosen.from_json(stated.get("chosen")))
