"""The cost that layers of noise add to a masked sum, and the cost of each operation of a sum.

    python -m experiments.benchmarks.sums.layered [--clients 20] [--length 1000000]

The same sum runs with and without layers, in turn: a client's answer to its inbox, and all of the
server's work with rows and shares. Then the operations by which `privfed.secure` estimates a sum
are measured one by one, next to the assumed costs. Processor time of one thread, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.secure_sums import STEPS, Stopwatch
from privfed.core.streams import Keys, Streams
from privfed.privacy.clipping import clip_rows
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import WASTE, Layers
from privfed.privacy.noise.table_sampler import skellam_table
from privfed.secure.homomorphic.protocol import Bfv, Ckks
from privfed.secure.identities import client_identity, verifying_key
from privfed.secure.limits import Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.layered_noise import CipherUniforms
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.masked.shamir import share
from privfed.secure.operations import UNIT_SECONDS
from privfed.secure.primitives import Expander, KeyPair, derive, random_key, seal, verified
from privfed.secure.summation import Session

VARIANCE = 3500.0**2
"""Variance of the noise, in squared steps, for the finest grid of distributed noise."""
TURNS = 5


class ProcessorWatch(Stopwatch):
    """Counts processor time, without other programs on the machine."""

    clock = staticmethod(time.process_time)


def masked(clients: int, length: int, layers: Layers | None) -> tuple[float, float]:
    """Returns seconds of a client's masking (median), and of everything else from the first row
    on.
    """
    codec = Codec.finest(1.0, 1.0, length, 32, clients, 2.0**30)
    limits, watch = Limits(clients, size=clients), ProcessorWatch()
    session = Session(1, 0, bytes(32), np.arange(clients), streams=Streams(0))
    policy = MaskedSums().within(limits)
    channel = MaskedChannel(session, codec, policy, limits, layers, watch)
    watch.taken.clear()
    row = np.ones(length, dtype=np.int64)
    began = time.process_time()
    for client in range(clients):
        channel.send(client, row)
    channel.total()
    wall = time.process_time() - began
    by_clients = sum(map(sum, watch.taken.values()))
    return statistics.median(watch.taken[STEPS[1]]), wall - by_clients


def compared(clients: int, length: int) -> Table:
    layers = Layers(VARIANCE, 0.2, 0, WASTE)
    masked(3, 1000, layers)
    for number in range(1, layers.count(clients) + 1):  # tables are built only once
        skellam_table(layers.layer(clients, number).variance).draw(Keys(None), 1 << 15)
    skellam_table(layers.base(clients).variance).draw(Keys(None), 1 << 15)
    taken = defaultdict(list)
    for _ in range(TURNS):
        for name, noise in (("masks", None), ("layers", layers)):
            taken[name].append(masked(clients, length, noise))
    table = Table(title=f"{clients} clients x {length:,}, 32 bits, {layers.count(clients)} layers")
    for name in ("", "masks alone", "with layers", "ratio of pairs"):
        table.add_column(name, justify="right" if name else "left")
    for which, party in enumerate(("client", "server")):
        plain, layered = ([each[which] for each in taken[name]] for name in ("masks", "layers"))
        ratios = [more / less for less, more in zip(plain, layered, strict=True)]
        times = (f"{1e3 * statistics.median(each):.1f} ms" for each in (plain, layered))
        table.add_row(party, *times, f"{statistics.median(ratios):.2f}")
    return table


def units(length: int) -> dict[str, float]:
    """Returns the measured seconds of one operation of each kind."""
    expander, key, pair = Expander(length, 32), bytes(random_key()), KeyPair(random_key())
    words, row = expander.zeros(), np.zeros(length, np.uint32)
    identity, other = client_identity(1), KeyPair(random_key()).public
    table = skellam_table(VARIANCE / 20)
    places = tuple(range(1, 21))
    packed = bytes(expander.pack(row))

    def drawn() -> None:
        for part, noise in table.blocks(CipherUniforms(key), length):
            words[part] += noise.astype(np.uint32)

    def passed() -> None:
        signature = identity.sign(packed)
        verified.cache_clear()
        verified(verifying_key(identity), signature, packed)
        unpacked = expander.unpack(expander.pack(row))
        if unpacked is not None:
            np.add(words, unpacked, out=words)

    def signed() -> None:
        verified.cache_clear()
        verified(verifying_key(identity), identity.sign(key), key)

    size = length * 4
    return {
        "encoded": median(lambda: encoded_rows(length)) / length,
        "masked": median(lambda: expander.apply(words, key)) / size,
        "packed": median(passed) / size,
        "drawn": median(drawn) / length,
        "fresh": median(lambda: table.draw(Keys(None), length)) / length,
        "agreements": median(lambda: pair.agree(other)),
        "derived": median(lambda: derive(key, key, b"self")),
        "sealed": median(lambda: seal(key, bytes(100), key)),
        "signatures": median(signed) / 2,
        "products": median(lambda: share(key, 12, places)) / (12 * len(places)),
        "exact_blocks": encrypted(Bfv()),
        "approximate_blocks": encrypted(Ckks()),
    }


def median(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(9):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def encoded_rows(length: int) -> None:
    """Encodes and sums one row without cryptography."""
    limits = Limits(2, arithmetic=True, size=2)
    session = Session(1, 0, bytes(32), np.arange(2), streams=Streams(0))
    opened = MaskedSums().over(limits).open(session, length, Encoding(1.0))
    opened.add(np.array([0]), clip_rows(torch.zeros(1, length), 1.0))


def encrypted(protocol: Bfv | Ckks) -> float:
    """Returns seconds of one row's block: encrypted, signed, checked and added."""
    codec = Codec.finest(1.0, 1.0, 2048, protocol.bits, 8, 2.0**10)
    session = Session(1, 0, bytes(32), np.arange(8), streams=Streams(0))
    channel = protocol.channel(session, codec, Limits(8, size=8))
    clients = iter(range(8))
    row = np.ones(2048, dtype=np.int64)
    began = time.process_time()
    for client in clients:
        channel.send(client, row)
    return (time.process_time() - began) / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--length", type=int, default=1_000_000)
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(compared(arguments.clients, arguments.length))
    table = Table(title="one operation, measured and counted on")
    for name in ("", "measured", "counted on", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for kind, measured in units(arguments.length).items():
        counted = UNIT_SECONDS[kind]
        table.add_row(kind, f"{measured:.2e} s", f"{counted:.2e} s", f"{measured / counted:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
