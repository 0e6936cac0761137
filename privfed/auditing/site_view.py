"""What the server and colluding sites together see of sums over sites, in the worst case allowed.

As many sites stay as have to, and so many of these work with the server as may: what they sent is
known, and taken off. Left is what honest survivors sent, with the noise that they really added:
what PRIVACY, section 9.1, calls Y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.secure.arithmetic import Arithmetic
from privfed.secure.channel import Channel
from privfed.secure.dropout import Leaves
from privfed.secure.encoded_accumulator import EncodedAccumulator
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.limits import Limits
from privfed.secure.summation import Session


class WithoutColluders(Arithmetic):
    """The arithmetic of a sum over sites, less all that the sites from number `honest` on sent."""

    def __init__(
        self,
        honest: int,
        session: Session,
        codec: Codec,
        limits: Limits,
        layers: Layers | None,
        abort_where_lost: Callable[[], None],
    ) -> None:
        super().__init__(session, codec, limits, layers, abort_where_lost)
        self._honest = honest

    def send(self, client: int, row: Integers) -> None:
        if client < self._honest:
            super().send(client, row)
        else:
            self._count += 1


@dataclass(frozen=True)
class SeenWithColluders(EncodedSummation):
    """Sums over sites as the server sees them that works with colluding sites.

    The first `honest` sites neither drop out nor collude. The last ones drop out, as many as may,
    beside whoever else does.
    """

    @property
    def honest(self) -> int:
        """How many sites stay and do not collude: |H|, as few as the proof counts on."""
        return self.limits.minimum - self.limits.colluders

    def open(self, session: Session, length: int, encoding: Encoding) -> EncodedAccumulator:
        leaves = session.leaves if len(session.leaves) else np.zeros_like(session.clients)
        gone = session.clients >= self.limits.minimum
        leaves = np.where(gone, Leaves.BEFORE_MASKING, leaves)
        return super().open(replace(session, leaves=leaves), length, encoding)

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        lost = partial(self.protocol.abort_where_lost, session, self.limits)
        return WithoutColluders(self.honest, session, codec, self.limits, layers, lost)
