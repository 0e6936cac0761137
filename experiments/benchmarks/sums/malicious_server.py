"""The cost of one masked sum against a malicious server, in messages, per client and server.

    python -m experiments.benchmarks.sums.malicious_server [--clients 1000] \
        [--length 100000] [--complete]

Processor time, on one thread. Every client answers real messages, bytes to bytes, and reuses no
signature check of another client. One client in ten drops out after key exchange. `--complete` uses
the complete graph instead of the random one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from privfed.privacy.codec import Codec
from privfed.secure.channel import Wire
from privfed.secure.limits import Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.policy import Policy
from privfed.secure.primitives import verified
from privfed.secure.summation import Session

LOST = 10
"""One client in this many drops out."""
BITS = 32
STEPS = ("advertise", "share keys", "mask a row", "vote", "unmask")


class Meter(Wire):
    """Measures processor seconds from a message's arrival to its answer, and counts bytes."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = defaultdict(list)
        self.bytes: dict[bool, dict[int, int]] = {way: defaultdict(int) for way in (True, False)}
        self._arrived = 0.0

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        if upward:
            self.seconds[client].append(time.process_time() - self._arrived)
        self.bytes[upward][client] += len(data)
        if not upward:
            verified.cache_clear()  # a separate client has checked no signature yet
            self._arrived = time.process_time()
        return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--length", type=int, default=100_000)
    parser.add_argument("--threshold", type=float, default=0.75)
    parser.add_argument("--colluders", type=float, default=0.1)
    parser.add_argument("--complete", action="store_true")
    arguments = parser.parse_args()
    clients, meter = arguments.clients, Meter()
    policy = Policy(arguments.threshold, arguments.colluders, "malicious", size=clients)
    policy = replace(policy, layered=arguments.complete)
    ids = np.arange(clients)
    leaves = np.where(ids % LOST == LOST - 1, int(Leaves.BEFORE_MASKING), int(Leaves.NEVER))
    codec = Codec.finest(1.0, 1.0, arguments.length, BITS, clients, 2.0**30)
    staying = ids[leaves == Leaves.NEVER].tolist()
    row = np.ones(arguments.length, dtype=np.int64)
    began = time.process_time()
    session = Session(1, 0, bytes(32), ids, leaves)
    limits = Limits(clients, size=clients)
    channel = MaskedChannel(session, codec, policy, limits, wire=meter)
    for client in staying:
        channel.send(client, row)
    total, survivors = channel.total()
    elapsed = time.process_time() - began
    if survivors != len(staying) or not np.all(total == survivors):
        raise RuntimeError("the sum is wrong")
    graph = policy.graph(clients)
    title = (
        f"{clients:,} clients, d = {arguments.length:,}, {BITS} bits, {graph.degree} neighbours, "
        f"threshold {graph.threshold}, {len(staying)} of at least {graph.survivors} stay"
    )
    table = Table("what", "median", title=title)
    for name, seconds in zip(
        STEPS, zip(*map(meter.seconds.get, staying), strict=True), strict=True
    ):
        table.add_row(f"a client: {name}", f"{1e3 * statistics.median(seconds):.1f} ms")
    seconds = [sum(meter.seconds[client]) for client in staying]
    table.add_row("a client: all", f"{1e3 * statistics.median(seconds):.1f} ms")
    spent = sum(sum(seconds) for seconds in meter.seconds.values())
    table.add_row("the server, with the carrying of messages", f"{elapsed - spent:.1f} s")
    for upward, name in ((True, "up"), (False, "down")):
        sizes = [meter.bytes[upward][client] for client in staying]
        table.add_row(f"a client: {name}", f"{statistics.median(sizes) / 1e3:.1f} kB")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
