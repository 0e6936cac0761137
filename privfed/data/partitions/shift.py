"""What a shift of clients' examples is, and none at all."""

from __future__ import annotations

from typing import ClassVar, Protocol

from privfed.data.federation import Federation
from privfed.parts import Part
from privfed.streams import Streams


class Shift(Protocol):
    changes_labels: ClassVar[bool]
    """Whether examples get other labels than they came with."""
    moves_features: ClassVar[bool]
    """Whether examples are moved, each client's together."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        """The population after the shift; it follows from the run's seed, never from data."""
        ...


class NoShift(Part):
    """The data as they are."""

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = False

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        return federation
