"""What masked sums cost a client and the server, beside Flower's SecAgg+ primitives on equal sizes.

    python -m experiments.benchmarks.secure_sums [--clients 100] [--length 1000000]

Flower's steps are put together from its own primitives as its client and workflow do it, without
network or files; ours are the real messages, with signatures and consistency, which it has not.
Flower belongs in an environment where both are installed; without it, only ours is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from privfed.secure.codec import Codec
from privfed.secure.dropout import Leaves
from privfed.secure.encoded import Channel
from privfed.secure.graph import Graph
from privfed.secure.limits import Limits
from privfed.secure.masks import MaskedChannel, MaskedSums
from privfed.secure.primitives import Expander
from privfed.secure.summation import Aborted, Session

LOST = 10
"""One client in so many drops out after it shared its keys."""


@dataclass(frozen=True)
class Given:
    """A graph of given degree, whatever it withstands."""

    degree: int

    def graph(self, clients: int) -> Graph:
        return Graph(clients, self.degree, int(0.6 * (self.degree + 1)))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(clients: int, length: int, degree: int) -> dict[str, float]:
    """Medians over clients of sharing keys and masking, and the server's unmasking."""
    ids = np.arange(clients)
    leaves = np.where(ids % LOST == LOST - 1, Leaves.BEFORE_MASKING, Leaves.NEVER)
    session = Session(1, 0, bytes(32), ids, leaves)
    codec = Codec.finest(1.0, 1.0, length, 32, clients, 2.0**30)
    shared: list[float] = []
    masked: list[float] = []
    channel = MaskedChannel.__new__(MaskedChannel)
    timed(channel, "_answer_of", shared)
    channel.__init__(session, codec, Given(degree))  # type: ignore[misc, arg-type]
    row = np.ones(length, dtype=np.int64)
    for client in ids[leaves == Leaves.NEVER].tolist():
        masked.append(seconds(lambda client=client: channel.send(client, row)))  # type: ignore[misc]
    return {"mask": statistics.median(masked), "unmask": seconds(channel.total)}
