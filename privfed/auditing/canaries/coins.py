"""Which canaries enter the population."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfed.streams import Streams


def fair_coins(count: int, streams: Streams) -> NDArray[np.bool_]:
    """An independent fair coin for each of `count` canaries: whether it enters, `[count]`."""
    return (streams.at("canaries/coins").bits(count) & np.uint64(1)).astype(bool)
