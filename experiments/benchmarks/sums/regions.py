"""The cost of sums over regions, in messages, per client, coordinator and server.

    python -m experiments.benchmarks.sums.regions [--regions 10 30 100] [--size 100] \
        [--flat 1000 2000] [--length 10000]

Processor time, on one thread. Regions have the same size, so that cohorts grow with their number.
Flat sums have one session, whose graph is sparse above 200 clients; for the largest cohort of
regions, a flat sum's bytes are those that the plan of a run states. Every client answers real
messages, bytes to bytes, and reuses no signature check or key agreement of another client. One
client in twenty drops out after key exchange.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import time
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.sums.malicious_server import BITS, Meter
from privfed.privacy.codec import Codec
from privfed.secure.channel import Channel
from privfed.secure.limits import SENDS, Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.regional.channel import RegionalChannel
from privfed.secure.regional.protocol import RegionalSums
from privfed.secure.summation import Session

LOST = 20
"""One client in this many drops out."""


def played(channel: Channel, session: Session, length: int) -> None:
    """Sends a row of ones for each client that sends, and checks the sum."""
    row = np.ones(length, dtype=np.int64)
    for client in session.senders.tolist():
        channel.send(client, row)
    total, survivors = channel.total()
    if survivors != session.sending or not np.all(total == survivors):
        raise RuntimeError("the sum is wrong")


def of_cohort(clients: int) -> Session:
    """Returns the session of a cohort of which one client in `LOST` drops out."""
    ids = np.arange(clients)
    gone = ids % (LOST + 1) == LOST
    leaves = np.where(gone, int(Leaves.BEFORE_MASKING), int(Leaves.NEVER))
    return Session(1, 0, bytes(32), ids, leaves)


def sizes(meter: Meter, parties: Iterable[int]) -> list[str]:
    """Returns the cells of a table: median bytes up and down, and seconds, of `parties`."""
    parties = list(parties)
    up, down = ([meter.bytes[way][party] for party in parties] for way in (True, False))
    seconds = [sum(meter.seconds[party]) for party in parties]
    return [
        *(f"{statistics.median(each) / 1e3:.1f}" for each in (up, down)),
        f"{1e3 * statistics.median(seconds):.1f}",
    ]


def regional(regions: int, size: int, codec: Codec, table: Table) -> None:
    """Adds rows on a sum over `regions` regions of `size` clients each, and its top session."""
    session, part = of_cohort(regions * size), RegionalSums(regions=regions)
    limits = Limits(regions * size, size=regions * size)
    region, masks = part.region_limits(limits), part.masks
    below, above = Meter(), Meter()

    def opened(limits: Limits, meter: Meter, each: Session) -> Channel:
        return MaskedChannel(each, codec, masks.within(limits), limits, wire=meter)

    began = time.process_time()
    channel = RegionalChannel(
        session,
        regions,
        part.least_regions,
        functools.partial(opened, region, below),
        functools.partial(opened, part.top_limits(limits), above),
    )
    played(channel, session, codec.length)
    elapsed = time.process_time() - began
    staying = session.clients[np.isin(session.leaves, SENDS)].tolist()
    spent = sum(map(sum, (*below.seconds.values(), *above.seconds.values())))
    table.add_row(f"{regions} regions of {size}", *sizes(below, staying), f"{elapsed - spent:.1f}")
    table.add_row("  a coordinator, at the top", *sizes(above, above.seconds), "")


def flat(clients: int, codec: Codec, table: Table) -> None:
    """Adds a row on one masked sum over all `clients`."""
    session, masks, meter = of_cohort(clients), MaskedSums(), Meter()
    limits = Limits(clients, size=clients)
    began = time.process_time()
    played(
        MaskedChannel(session, codec, masks.within(limits), limits, wire=meter),
        session,
        codec.length,
    )
    elapsed = time.process_time() - began
    spent = sum(map(sum, meter.seconds.values()))
    table.add_row(
        f"flat, {clients:,} clients, {masks.within(limits).graph(clients).degree} neighbours",
        *sizes(meter, session.senders.tolist()),
        f"{elapsed - spent:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regions", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--flat", type=int, nargs="*", default=[1000, 2000])
    parser.add_argument("--length", type=int, default=10_000)
    arguments = parser.parse_args()
    most = max(*arguments.flat, *(each * arguments.size for each in arguments.regions))
    codec = Codec.finest(1.0, 1.0, arguments.length, BITS, most, 2.0**30)
    table = Table(
        "sum",
        "kB up",
        "kB down",
        "ms of a client",
        "s of servers",
        title=f"{arguments.length:,} numbers of {BITS} bits; one client in {LOST} drops out",
    )
    for regions in arguments.regions:
        regional(regions, arguments.size, codec, table)
    for clients in arguments.flat:
        flat(clients, codec, table)
    masks = MaskedSums()
    stated = (masks.upload(codec, most) / 1e3, masks.download(most) / 1e3)
    table.add_row(
        f"flat, {most:,} clients, as planned", *(f"{each:.1f}" for each in stated), "", ""
    )
    console = Console(width=110)
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
