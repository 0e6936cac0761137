"""What the loop tells its canaries, whatever they are."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class RunCanaries(Protocol):
    """The canaries of a run, and the log of what they saw."""

    def hear(self, round: int, released: list[Tensor]) -> None:
        """Take note of a release that is replayed, which may have been noted before."""
        ...

    def end(self, params: Tensor) -> None:
        """Take note of the final model `[d]`: the run is at its end."""
        ...
