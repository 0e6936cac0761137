"""The cost of sums over regions, in messages, per client, coordinator and server.

    python -m experiments.benchmarks.sums.regions [--regions 10 30 100] [--size 100] \
        [--flat 1000 2000] [--length 10000]

Processor time, on one thread. Regions have the same size, so that cohorts grow with their number.
Flat sums have one session, whose graph is sparse above 200 clients. For the largest cohort the
bytes of a flat sum are those that the plan of a run states. Every client answers real messages,
bytes to bytes. One client in eleven and each coordinator are timed, and reuse no signature check of
another party. One client in twenty-one drops out after key exchange.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import time
from collections import defaultdict

import numpy as np
from rich.console import Console
from rich.table import Table

from privfed.privacy.codec import Codec
from privfed.secure.channel import Channel, Wire
from privfed.secure.limits import Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.primitives import verified
from privfed.secure.regional.channel import FIRST_COORDINATOR, RegionalChannel
from privfed.secure.regional.protocol import RegionalSums
from privfed.secure.summation import Session

LOST, TIMED, BITS = 21, 11, 32
"""One client in `LOST` drops out, and one in `TIMED` is timed."""


class Meter(Wire):
    """Counts bytes, and measures processor seconds of timed clients and of servers.

    A server's time is between an answer's arrival and its next message to any client.
    """

    def __init__(self) -> None:
        self.seconds: dict[int, float] = defaultdict(float)
        self.bytes: dict[tuple[int, bool], int] = defaultdict(int)
        self.server, self._last = 0.0, 0.0

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        self.bytes[client, upward] += len(data)
        if not upward:
            self.close()
            if self._is_timed(client):
                verified.cache_clear()  # a separate client has checked no signature yet
        elif self._is_timed(client):
            self.seconds[client] += time.process_time() - self._last
        self._last = time.process_time()
        return data

    def _is_timed(self, client: int) -> bool:
        return client % TIMED == 0 or client >= FIRST_COORDINATOR

    def close(self) -> None:
        """Adds the time since the last answer to the server's."""
        if self._last:
            self.server += time.process_time() - self._last
        self._last = 0.0

    def cells(self, leaving: frozenset[int]) -> list[str]:
        """Returns the medians of kB up, kB down and ms of timed clients that do not drop out."""
        timed = self.seconds.keys() - leaving
        kilobytes = (
            statistics.median(self.bytes[client, way] for client in timed) / 1e3
            for way in (True, False)
        )
        milliseconds = 1e3 * statistics.median(self.seconds[client] for client in timed)
        return [*(f"{each:.1f}" for each in kilobytes), f"{milliseconds:.1f}"]


def of_cohort(clients: int) -> Session:
    """Returns the session of a cohort in which one client in `LOST` drops out."""
    ids = np.arange(clients)
    leaves = np.where(ids % LOST == 0, int(Leaves.BEFORE_MASKING), int(Leaves.NEVER))
    return Session(1, 0, bytes(32), ids, leaves)


def summed(channel: Channel, session: Session, length: int) -> frozenset[int]:
    """Sends a row of ones for each client that sends, checks the sum, and returns the dropouts."""
    row, senders = np.ones(length, dtype=np.int64), session.senders.tolist()
    for client in senders:
        channel.send(client, row)
    total, survivors = channel.total()
    if survivors != len(senders) or not np.all(total == survivors):
        raise RuntimeError("the sum is wrong")
    return frozenset(session.clients.tolist()) - {*senders}


def regional(regions: int, size: int, codec: Codec, table: Table) -> None:
    """Adds rows on a sum over `regions` regions of `size` clients each, and its top session."""
    session, part = of_cohort(regions * size), RegionalSums(regions=regions)
    limits, below, above = Limits(regions * size, size=regions * size), Meter(), Meter()

    def opened(limits: Limits, meter: Meter, each: Session) -> Channel:
        below.close()
        return MaskedChannel(each, codec, part.masks.within(limits), limits, wire=meter)

    channel = RegionalChannel(
        session,
        regions,
        part.least_regions,
        functools.partial(opened, part.region_limits(limits), below),
        functools.partial(opened, part.top_limits(limits), above),
    )
    leaving = summed(channel, session, codec.length)
    above.close()
    table.add_row(
        f"{regions} regions of {size}", *below.cells(leaving), f"{below.server / regions:.2f}"
    )
    table.add_row("  its coordinators' session", *above.cells(frozenset()), f"{above.server:.2f}")


def flat(clients: int, codec: Codec, table: Table) -> None:
    """Adds a row on one masked sum over all `clients`."""
    session, masks, meter = of_cohort(clients), MaskedSums(), Meter()
    limits = Limits(clients, size=clients)
    policy = masks.within(limits)
    channel = MaskedChannel(session, codec, policy, limits, wire=meter)
    leaving = summed(channel, session, codec.length)
    meter.close()
    name = f"flat, {clients:,} clients, {policy.graph(clients).degree} neighbours"
    table.add_row(name, *meter.cells(leaving), f"{meter.server:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regions", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--flat", type=int, nargs="*", default=[1000, 2000])
    parser.add_argument("--length", type=int, default=10_000)
    arguments = parser.parse_args()
    most = max(*arguments.flat, *(each * arguments.size for each in arguments.regions))
    codec = Codec.finest(1.0, 1.0, arguments.length, BITS, most, 2.0**30)
    title = f"{arguments.length:,} numbers of {BITS} bits; one client in {LOST} drops out"
    columns = ("sum", "kB up", "kB down", "ms of a client", "s of a server or coordinator")
    table = Table(*columns, title=title)
    for regions in arguments.regions:
        regional(regions, arguments.size, codec, table)
    for clients in arguments.flat:
        flat(clients, codec, table)
    masks = MaskedSums()
    planned = (f"{each / 1e3:.1f}" for each in (masks.upload(codec, most), masks.download(most)))
    table.add_row(f"flat, {most:,} clients, as planned", *planned, "", "")
    console = Console(width=110)
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"peak memory {peak:.2f} GB, processor time {time.process_time():.0f} s")


if __name__ == "__main__":
    main()
