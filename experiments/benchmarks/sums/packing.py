"""The cost of packing rows next to NumPy's own passes, and of small sums next to cryptography.

    python -m experiments.benchmarks.sums.packing [--lengths 1000000 20000000] [--clients 100]

A row of numbers of b bits in words of W bits is packed, and added to a sum directly from a message.
Each is shown next to the cost without packing, with the ratio in brackets: a copy of the words to
separate memory, as in a message, and `total += words`. These move 2 W and 3 W bits per number;
packing moves W + b and adding 2 W + b. They are one pass over the words. NumPy shifts, masks or
adds in separate passes and has no operation that does two of these. If g numbers fill m words,
packing takes 3 + (m - 3) / g passes over as many bytes as the words have, and adding 2 + (2 m - 3)
/ g. Adding takes m / g more if words in a message are not aligned. "Passes" are the cost of the
comparison plus all passes but the first in the processor's cache: a lower bound for packing,
however fast the memory is. SHA-256 of the packed bytes is needed for a signature in any case. All
are measured in turn, and a line has medians.

A small sum is one in messages, bytes to bytes, without dropouts. Its lower bound is the protocol's
number of signature checks and key agreements, each as fast as alone. Separate clients share no
checks and agreements, as in separate processes; joint clients do each once, as in a simulation.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from privfed.privacy.codec import Codec
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.messages.rows import Masked
from privfed.secure.masked.messages.wire import FromServer, decode, encode
from privfed.secure.masked.policy import Expected, Policy
from privfed.secure.masked.server import MaskingServer
from privfed.secure.packing import PackedRows
from privfed.secure.primitives import KeyPair, random_key, signing_key, verified

WIDTHS = (12, 16, 20, 31, 32, 48, 61)
PASS_BYTES = 1 << 17
"""Number of bytes of a pass that stays in the cache."""


def passes(bits: int) -> tuple[float, float]:
    """Returns the passes of packing, and of adding, over as many bytes as the words have."""
    size = PackedRows(0, bits).word.itemsize
    lanes = 8 * size // math.gcd(8 * size, bits)
    words = lanes * bits // (8 * size)
    copied = words if len(encode(Masked(bytes(32), 0, b""))) % size else 0
    return 3 + (words - 3) / lanes, 2 + (2 * words - 3 + copied) / lanes


def in_cache(word: np.dtype[np.unsignedinteger]) -> float:
    """Returns milliseconds of a pass over a megabyte in the cache: the mean of a shift and an
    addition.
    """
    words, others = np.ones((2, PASS_BYTES // word.itemsize), word)
    shift = np.array(1, word)

    def both() -> None:
        for _ in range(50):
            np.left_shift(words, shift, others)
            np.add(words, others, others)

    return medians({"both": both}, 9)["both"] / 100 / (PASS_BYTES / 1e6)


def medians(ways: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Returns this thread's median milliseconds of each way, measured in turn."""
    taken = defaultdict(list)
    for _ in range(turns):
        for name, way in ways.items():
            began = time.thread_time()
            way()
            taken[name].append(1e3 * (time.thread_time() - began))
    return {name: statistics.median(times) for name, times in taken.items()}


def packing(length: int, bits: int, turns: int) -> dict[str, float]:
    """Returns milliseconds of packing and adding a row `[length]`, and of their comparisons."""
    rows = PackedRows(length, bits)
    words = np.random.default_rng(0).integers(0, 2**bits, length, np.uint64).astype(rows.word)
    packed, total = rows.pack(words), rows.zeros()
    message = memoryview(encode(Masked(bytes(32), 0, packed)))
    ways = {
        "copy": lambda: words.copy(),
        "pack": lambda: rows.pack(words),
        "sum": lambda: np.add(total, words, total),
        "add": lambda: rows.add(total, message[-rows.size :]),
        "hash": lambda: hashlib.sha256(packed).digest(),
    }
    taken = medians(ways, turns)
    for way, beside, count in zip(("pack", "add"), ("copy", "sum"), passes(bits), strict=True):
        cached = (count - 1) * words.nbytes / 1e6 * in_cache(rows.word)
        taken[f"passes of {way}"] = taken[beside] + cached
    return taken


def line(bits: int, of: Mapping[str, float]) -> list[str]:
    """Returns a line of the table of packing, from its milliseconds."""
    cells = [str(bits)]
    for way, beside in (("pack", "copy"), ("add", "sum")):
        times = f"{of[way]:.2f} ({of[way] / of[beside]:.1f})"
        cells += [f"{of[beside]:.2f}", times, f"{of[f'passes of {way}']:.2f}"]
    return [*cells, f"{of['hash']:.2f}"]


def small_sum(clients: int, length: int, apart: bool) -> tuple[float, float]:
    """Returns milliseconds of one client, the median, and of the server in total, on this
    thread.
    """
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
                KeyPair.clear_agreements()
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
    """Returns milliseconds of a client's, and the server's, signatures and key agreements alone."""
    key, pair, other = signing_key(os.urandom(32)), KeyPair(random_key()), KeyPair(random_key())
    text, public = bytes(48), key.public_key().public_bytes_raw()
    signature = key.sign(text)
    KeyPair.clear_agreements()
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
    arguments = parser.parse_args()
    console = Console(width=110)
    for length in arguments.lengths:
        title = f"rows of {length:,}, one thread, ms"
        table = Table(title=title)
        for name in ("bits", "copy", "pack", "passes", "sum", "add", "passes", "SHA-256"):
            table.add_column(name, justify="right")
        for bits in WIDTHS:
            table.add_row(*line(bits, packing(length, bits, arguments.turns)))
        console.print(table)
    table = Table(title=f"a sum over {arguments.clients} clients of 100 numbers, one thread, ms")
    for name in ("", "a client", "the server"):
        table.add_column(name, justify="right" if name else "left")
    for name, apart in (("apart", True), ("together", False)):
        runs = [small_sum(arguments.clients, 100, apart) for _ in range(3)]
        table.add_row(name, *(f"{statistics.median(each):.1f}" for each in zip(*runs, strict=True)))
    table.add_row("least, apart", *(f"{each:.1f}" for each in least(arguments.clients)))
    console.print(table)


if __name__ == "__main__":
    main()
