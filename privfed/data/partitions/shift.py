"""What a shift of the examples between clients or rounds is, and no shift at all."""

from __future__ import annotations

from typing import ClassVar, Protocol

from privfed.data.federation import Federation
from privfed.parts import Part
from privfed.streams import Streams


class Shift(Protocol):
    """A change of the population beyond who owns which example."""

    changes_labels: ClassVar[bool]
    """Whether examples get other labels than they came with."""
    moves_features: ClassVar[bool]
    """Whether features are changed, all of a client's examples alike."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        """The population after the shift; it follows from the run's seed, never from data."""
        ...


class NoShift(Part):
    """The data as they are."""

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = False

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        return federation
