"""The cost of masked sums for client and server, next to Flower's SecAgg+ primitives.

    python -m experiments.benchmarks.secure_sums [--clients 100] [--length 1000000] [--peers]

Flower's steps combine its own primitives as its client and its server do, without network or files.
Ours are complete answers to real messages, bytes to bytes, with signatures and a consistency check
that Flower lacks. One client in ten drops out after key exchange. Flower's modules come from the
environment of `rounds --peers`; without it only ours is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.peers.environments import DEFAULT, FLOWER, Environment, Unavailable
from privfed.privacy.codec import Codec
from privfed.secure.channel import Wire
from privfed.secure.limits import Leaves
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.messages.roster import Roster
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode
from privfed.secure.primitives import Expander, KeyPair, verified
from privfed.secure.summation import Session

LOST = 10
"""One client in this many drops out."""
STEPS = ("share keys", "mask a row", "unmask the sum")


@dataclass(frozen=True)
class Given:
    """A graph of a given degree, whatever its security."""

    degree: int

    def graph(self, clients: int) -> Graph:
        return Graph(clients, self.degree, int(0.6 * (self.degree + 1)))

    def counted_of(self, clients: int) -> int:
        return clients


class Stopwatch(Wire):
    """Measures the time from a message's arrival at a client to its answer, by `clock`."""

    clock = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)
        self._pending: tuple[str, float] = ("", 0.0)

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        if upward:
            self.taken[self._pending[0]].append(self.clock() - self._pending[1])
        else:
            names = {Roster.kind: STEPS[0], Inbox.kind: STEPS[1]}
            verified.cache_clear()  # a separate client has checked no signature
            KeyPair.clear_agreements()  # and agreed on no key yet
            self._pending = (names.get(decode(data).kind, ""), self.clock())
        return data


def ours(clients: int, length: int, degree: int) -> dict[str, float]:
    """Returns seconds of each step: medians over the clients, and the server's one unmasking."""
    ids = np.arange(clients)
    leaves = np.where(ids % LOST == LOST - 1, int(Leaves.BEFORE_MASKING), int(Leaves.NEVER))
    codec = Codec.finest(1.0, 1.0, length, 32, clients, 2.0**30)
    watch = Stopwatch()
    policy: Any = Given(degree)
    session = Session(1, 0, bytes(32), ids, leaves)
    channel = MaskedChannel(session, codec, policy, wire=watch)
    row = np.ones(length, dtype=np.int64)
    for client in ids[leaves == Leaves.NEVER].tolist():
        channel.send(client, row)
    channel._delivery.ask(channel._proceed(), Leaves.BEFORE_UNMASKING)
    channel._delivery.ask(channel._proceed(), Leaves.BEFORE_UNMASKING)
    began = time.perf_counter()
    words, _ = channel.server.total()
    unmasking = time.perf_counter() - began
    if not np.all(words == np.count_nonzero(leaves == Leaves.NEVER)):
        raise RuntimeError("the sum is wrong")
    medians = {step: statistics.median(watch.taken[step]) for step in STEPS[:2]}
    return {**medians, STEPS[2]: unmasking}


def flowers(clients: int, length: int, degree: int) -> dict[str, float]:
    """Returns seconds of Flower's primitives: one client's, and the server's with its dropouts."""
    from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
    from flwr.common.secure_aggregation.crypto import shamir
    from flwr.common.secure_aggregation.crypto import symmetric_encryption as symmetric
    from flwr.common.secure_aggregation.secaggplus_utils import (
        pseudo_rand_gen,
        share_keys_plaintext_concat,
    )
    from flwr.supercore.primitives import asymmetric as keys

    modulus, threshold = 1 << 32, int(0.6 * (degree + 1))
    key, _ = keys.generate_key_pairs()
    _, other = keys.generate_key_pairs()
    private, public = keys.private_key_to_bytes(key), keys.public_key_to_bytes(other)
    seed, taken = os.urandom(32), {}

    def agreed() -> bytes:
        pair = keys.bytes_to_private_key(private), keys.bytes_to_public_key(public)
        return bytes(symmetric.generate_shared_key(*pair))

    def masked(total: list[Any], of: bytes) -> list[Any]:
        return list(
            arithmetic.parameters_addition(total, pseudo_rand_gen(of, modulus, [(length,)]))
        )

    began = time.perf_counter()
    seeds = shamir.create_shares(seed, threshold, degree + 1)
    secrets = shamir.create_shares(private, threshold, degree + 1)
    for at in range(degree):
        text = share_keys_plaintext_concat(1, at, seeds[at], secrets[at])
        symmetric.encrypt(agreed(), text)
    taken[STEPS[0]] = time.perf_counter() - began

    total = [np.ones(length, dtype=np.int64)]
    began = time.perf_counter()
    total = masked(total, seed)
    for _ in range(degree):
        total = masked(total, agreed())
    arithmetic.parameters_mod(total, modulus)
    taken[STEPS[1]] = time.perf_counter() - began

    dropped = clients // LOST
    began = time.perf_counter()
    for _ in range(clients - dropped):
        total = masked(total, shamir.combine_shares(seeds[:threshold]))
    for _ in range(dropped):
        shamir.combine_shares(secrets[:threshold])
        for _ in range(degree * (LOST - 1) // LOST):
            total = masked(total, agreed())
    arithmetic.parameters_mod(total, modulus)
    taken[STEPS[2]] = time.perf_counter() - began
    return taken


def generator(length: int, masks: int) -> float:
    """Returns the lower bound for masking: as many streams of the cipher, added."""
    expander = Expander(length, 32)
    words = expander.zeros()
    began = time.perf_counter()
    for number in range(masks):
        expander.apply(words, number.to_bytes(32, "little"))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--neighbours", type=int, nargs="*", default=[0, 30], help="0: all")
    parser.add_argument("--peers", nargs="?", type=Path, const=DEFAULT, help="see rounds")
    arguments = parser.parse_args()
    console = Console(width=110)
    if arguments.peers:
        try:
            sys.path.append(str(Environment.of(FLOWER, arguments.peers).packages))
        except Unavailable as reason:
            console.print(f"{FLOWER.name} is skipped: {reason}")
    peer = importlib.util.find_spec("flwr") is not None
    table = Table(title=f"n = {arguments.clients}, d = {arguments.length:,}, 32 bits, one thread")
    columns = ("neighbours", "step", "privfed", "generator alone", "Flower's primitives", "ratio")
    for name in columns:
        table.add_column(name, justify="left" if name == "step" else "right")
    for degree in arguments.neighbours:
        k = min(degree or arguments.clients, arguments.clients - 1)
        measured = ours(arguments.clients, arguments.length, k)
        beside = flowers(arguments.clients, arguments.length, k) if peer else {}
        for step in STEPS:
            least = generator(arguments.length, k + 1) if step == STEPS[1] else None
            shown = [f"{1e3 * measured[step]:.1f} ms", f"{1e3 * least:.1f} ms" if least else ""]
            if peer:
                shown += [f"{1e3 * beside[step]:.1f} ms", f"{beside[step] / measured[step]:.1f} x"]
            else:
                shown += ["not installed", ""]
            table.add_row(str(k), step, *shown)
    console.print(table)


if __name__ == "__main__":
    main()
