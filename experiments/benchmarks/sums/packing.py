"""What packing rows takes beside a copy of them, and a sum of small rows beside its cryptography.

    python -m experiments.benchmarks.sums.packing [--lengths 1000000 20000000] [--clients 100]

Each width is packed, and added to a sum, beside a copy of the same words, the bits of each number
spread out and gathered (as an earlier version did it), and SHA-256 of the packed bytes, which a
signature on them takes anyhow; all take turns, and a line has medians. A small sum is one in
messages, bytes to bytes, of which nobody drops out. Its least are so many checks of signatures and
key agreements as the protocol has, each as fast as it is alone. Clients apart have checked and
agreed on nothing together, as in processes of their own; together they do each once, as in a
simulation.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from privfed.privacy.codec import Codec
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.expected import Expected
from privfed.secure.masked.graph import Policy
from privfed.secure.masked.messages.wire import FromServer, decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.packing import PackedRows, Words
from privfed.secure.primitives import KeyPair, random_key, signing_key, verified

WIDTHS = (12, 16, 20, 31, 32, 48, 61)
SPREAD = 1 << 15
"""Numbers whose bits are spread out at once."""


def spread(words: Words, bits: int) -> list[NDArray[np.uint8]]:
    """The packed bits of `words`, of so many at once, as they are spread out and gathered."""
    packed = []
    for start in range(0, len(words), SPREAD):
        block = words[start : start + SPREAD]
        each = np.unpackbits(block.view(np.uint8), bitorder="little").reshape(len(block), -1)
        packed.append(np.packbits(each[:, :bits], bitorder="little"))
    return packed


def medians(ways: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Milliseconds of this thread that each takes, in turns."""
    taken = defaultdict(list)
    for _ in range(turns):
        for name, way in ways.items():
            began = time.thread_time()
            way()
            taken[name].append(1e3 * (time.thread_time() - began))
    return {name: statistics.median(times) for name, times in taken.items()}


def packing(length: int, bits: int, turns: int) -> dict[str, float]:
    """Milliseconds of packing and adding a row `[length]`, and of what they stand beside."""
    rows = PackedRows(length, bits)
    words = np.random.default_rng(0).integers(0, 2**bits, length, np.uint64).astype(rows.word)
    packed, copy, total = bytes(rows.pack(words)), words.copy(), rows.zeros()
    ways = {
        "copy": lambda: np.copyto(copy, words),
        "pack": lambda: rows.pack(words),
        "add": lambda: rows.add(total, packed),
        "spread": lambda: spread(words, bits),
        "hash": lambda: hashlib.sha256(packed).digest(),
    }
    return medians(ways, turns)


def small_sum(clients: int, length: int, apart: bool) -> tuple[float, float]:
    """Milliseconds of one client, the median, and of the server in all, of this thread."""
    ids = tuple(range(clients))
    policy, limits = Policy(0.6, 0.1, "curious", 0, clients), Limits(clients, size=clients)
    expected = Expected(1, 0, bytes(32), Codec.finest(1.0, 1.0, length, 20, clients, 2.0**30))
    directory, row = client_directory(ids), np.ones(length, dtype=np.int64)
    invitation = expected.invitation(bytes(random_key()), policy, limits, None)
    server = MaskingServer(invitation, ids, directory, policy, bytes(32), limits)
    parties = {
        me: MaskingClient(me, client_identity(me), directory, policy, expected, lambda: row, limits)
        for me in ids
    }
    taken: dict[int, float] = defaultdict(float)
    at_server, began = 0.0, time.thread_time()

    def ask(sent: Mapping[int, FromServer]) -> None:
        nonlocal at_server, began
        for me, message in sent.items():
            data = encode(message)
            if apart:
                verified.cache_clear()
                KeyPair.agree_apart()
            at_server, began = at_server + time.thread_time() - began, time.thread_time()
            answer = encode(parties[me].handle(decode(data)))
            taken[me], began = taken[me] + time.thread_time() - began, time.thread_time()
            if apart:
                verified.cache_clear()
            server.handle(me, decode(answer))

    ask(dict.fromkeys(ids, server.invitation))
    for _ in range(4):
        ask(server.proceed())
    words, survivors = server.total()
    at_server += time.thread_time() - began
    if survivors != clients or not np.all(words == clients):
        raise RuntimeError("the sum is wrong")
    return 1e3 * statistics.median(taken.values()), 1e3 * at_server


def least(clients: int) -> tuple[float, float]:
    """Milliseconds of one client's, and the server's, signatures and key agreements alone."""
    key, pair, other = signing_key(os.urandom(32)), KeyPair(random_key()), KeyPair(random_key())
    text, public = bytes(48), key.public_key().public_bytes_raw()
    signature = key.sign(text)
    KeyPair.agree_apart()
    count = 200
    began = time.thread_time()
    for _ in range(count):
        verified.__wrapped__(public, signature, text)
    checking = 1e3 * (time.thread_time() - began) / count
    began = time.thread_time()
    for _ in range(count):
        pair.agree(other.public)
    agreeing = 1e3 * (time.thread_time() - began) / count
    threshold = Policy(0.6, 0.1, "curious", 0, clients).graph(clients).threshold
    client = (clients - 1 + threshold) * checking + 2 * (clients - 1) * agreeing
    return client, clients * (5 * checking + 2 * agreeing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1_000_000, 20_000_000])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--turns", type=int, default=15)
    asked = parser.parse_args()
    console = Console(width=110)
    for length in asked.lengths:
        table = Table(title=f"rows of {length:,}, one thread, ms; in brackets: times a copy")
        for name in ("bits", "copy", "pack", "add to a sum", "bits spread out", "SHA-256"):
            table.add_column(name, justify="right")
        for bits in WIDTHS:
            of = packing(length, bits, asked.turns)
            beside = [
                f"{of[name]:.2f} ({of[name] / of['copy']:.1f})"
                for name in ("pack", "add", "spread")
            ]
            table.add_row(str(bits), f"{of['copy']:.2f}", *beside, f"{of['hash']:.2f}")
        console.print(table)
    table = Table(title=f"a sum over {asked.clients} clients of 100 numbers, one thread, ms")
    for name in ("", "a client", "the server"):
        table.add_column(name, justify="right" if name else "left")
    for name, apart in (("apart", True), ("together", False)):
        runs = [small_sum(asked.clients, 100, apart) for _ in range(3)]
        table.add_row(name, *(f"{statistics.median(each):.1f}" for each in zip(*runs, strict=True)))
    table.add_row("least, apart", *(f"{each:.1f}" for each in least(asked.clients)))
    console.print(table)


if __name__ == "__main__":
    main()
