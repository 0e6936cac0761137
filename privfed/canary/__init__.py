"""Canaries for other pipelines: secret directions and bits, and a client that sends them.

This package imports only NumPy, so that it can run wherever clients run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.canary.folder import Folder
from privfed.canary.folder import participants as participants
from privfed.canary.layouts import shifted
from privfed.core.errors import Refused

__all__ = ["Client", "participants"]


@dataclass(frozen=True)
class CanaryClient:
    """One canary client of a folder that `privfed canary new` made. It reads no data.

    It sends an update of the declared length along its own direction, long enough that a correct
    pipeline clips it. If its secret bit is 0, it sends a zero update under zero-out, and the
    opposite update under replace-one; under add/remove it does not take part.

    Args:
      directory: the folder of canaries.
      number: the canary's number, from 0.

    Raises:
      Broken: if the folder is damaged.
      Refused: if the number is out of range, or that canary does not take part (`participants`).
    """

    directory: str | Path
    number: int

    def __post_init__(self) -> None:
        declared = self._folder.manifest()
        if not isinstance(self.number, int | np.integer) or isinstance(self.number, bool):
            raise Refused(
                f"the canary is {self.number!r}; expected the number of a canary, an integer"
            )
        if not 0 <= self.number < declared.count:
            raise Refused(
                f"the canary is {self.number}; expected a number from 0 to {declared.count - 1}"
            )
        if declared.meaning.absent and not self._heads:
            raise Refused(
                f"canary {self.number} is excluded by its inclusion bit; under "
                f"{declared.relation} start a client only for those that "
                "privfed.canary.participants(directory) lists"
            )

    def answer(self, received: Any) -> Any:
        """Returns the parameters to send back: `received` plus this canary's update.

        Args:
          received: the model: an array or tensor, a list of these, or a mapping of these (a
            state_dict).

        Returns:
          Parameters in the same layout and precision; arrays of integers or booleans are unchanged.

        Raises:
          Refused: if `received` is no such model or has another dimension, or a result is not
            finite.
        """
        return shifted(received, self.update)

    @cached_property
    def update(self) -> NDArray[np.float64]:
        """This canary's flat update `[d]`, for pipelines that send differences of models."""
        declared = self._folder.manifest()
        times = 1.0 if self._heads else declared.meaning.tails
        direction = self._folder.directions()[self.number].astype(np.float64)
        return np.asarray(direction * (times * declared.length))

    @property
    def _folder(self) -> Folder:
        return Folder(Path(self.directory))

    @cached_property
    def _heads(self) -> bool:
        return bool(self._folder.inclusion()[self.number])


Client = CanaryClient
