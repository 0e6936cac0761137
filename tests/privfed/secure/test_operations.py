"""What is estimated of a sum is what is really done: operations are counted as they run."""

import functools
from collections import Counter

import numpy as np
import pytest

from privfed.core.streams import Streams
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers, SkellamShare
from privfed.privacy.noise.table_sampler import DistributionTable
from privfed.secure.channel import Channel, Wire
from privfed.secure.homomorphic.protocol import Bfv, Ckks
from privfed.secure.homomorphic.schemes import BfvScheme, CkksScheme
from privfed.secure.limits import Limits
from privfed.secure.masked import client, shamir, unmasking
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.messages import sealed_shares
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.operations import UNIT_SECONDS, Operations
from privfed.secure.primitives import Expander, KeyPair, SignedMessage, verified
from privfed.secure.summation import Session

LENGTH = 50
LAYERS = Layers(400.0, 0.34)
PROTOCOLS = {
    "complete": (MaskedSums(), 9, None, False),
    "sparse": (MaskedSums(colluders=0.0, threshold=0.5, neighbours=44), 60, None, False),
    "layers": (MaskedSums(), 12, LAYERS, False),
    "shares": (MaskedSums(), 7, SkellamShare(9.0), False),
    "arithmetic": (MaskedSums(), 12, LAYERS, True),
    "bfv": (Bfv(), 3, None, False),
    "ckks": (Ckks(), 3, None, False),
}


class Scale(Wire):
    """Weighs what passes."""

    def __init__(self):
        self.up, self.down = Counter(), Counter()

    def carry(self, client, data, upward):
        (self.up if upward else self.down)[client] += len(data)
        return data


@pytest.fixture
def counted(monkeypatch):
    """Operations by kind, as they run."""
    done = Counter()

    def count(where, name, kind, much=lambda *arguments: 1):
        original = getattr(where, name)

        def counting(*arguments, **named):
            done[kind] += much(*arguments)
            return original(*arguments, **named)

        monkeypatch.setattr(where, name, counting)

    count(Expander, "apply", "masked", lambda self, total, *_: total.nbytes)
    count(Expander, "pack", "packed", lambda self, _: self.size)
    count(KeyPair, "agree", "agreements", lambda pair, public: public not in pair._agreed)
    count(sealed_shares, "derive", "derived")
    count(client, "seal", "sealed")
    count(client, "unseal", "sealed")
    count(SignedMessage, "signed", "signatures")
    count(client.MaskingClient, "_vote", "signatures")
    verified.cache_clear()
    count(client, "share", "products", lambda _, threshold, places: threshold * len(places))
    count(unmasking, "reconstruct", "products", lambda _, threshold: threshold)
    weights = shamir._weights.__wrapped__

    def weighed(places):
        done["products"] += 2 * len(places) * (len(places) - 1)
        return weights(places)

    monkeypatch.setattr(shamir, "_weights", functools.lru_cache(weighed))
    count(DistributionTable, "draw", "fresh", lambda self, keys, much: much)
    blocks = DistributionTable.blocks

    def drawn(self, source, much):
        done["drawn"] += much
        return blocks(self, source, much)

    monkeypatch.setattr(DistributionTable, "blocks", drawn)
    for scheme, kind in ((BfvScheme, "exact_blocks"), (CkksScheme, "approximate_blocks")):
        count(scheme, "encrypt", kind)
    return done


@pytest.fixture
def scale(monkeypatch):
    scale, original = Scale(), MaskedChannel.__init__

    def weighing(self, *arguments, **named):
        original(self, *arguments, **named | {"wire": scale})

    monkeypatch.setattr(MaskedChannel, "__init__", weighing)
    return scale


@pytest.mark.parametrize("protocol, clients, noise, arithmetic", PROTOCOLS.values(), ids=PROTOCOLS)
def test_estimates_count_the_operations_that_run(
    counted, scale, protocol, clients, noise, arithmetic
):
    tolerance = noise.tolerance if isinstance(noise, Layers) else 1.0
    summation = protocol.over(Limits(clients, 0, arithmetic, tolerance, clients))
    session = Session(1, 0, bytes(32), np.arange(clients), streams=Streams(0, simulated=True))
    step = {"step": 0.01} if noise else {}
    opened = summation.open(session, LENGTH, Encoding(1.0, noise=noise, **step))
    channel: Channel = opened._channel
    for one in range(clients):
        row = np.ones(LENGTH, dtype=np.int64)
        if isinstance(noise, SkellamShare):
            row += noise.draw(session.layer_keys(one), LENGTH)
        channel.send(one, row)
    channel.total()
    parts = summation.operations(LENGTH, clients, noise)
    estimated = {kind: sum(getattr(part, kind) for part in parts) for kind in UNIT_SECONDS}
    done = {**counted, "encoded": clients * LENGTH}
    done["signatures"] = counted["signatures"] + verified.cache_info().misses
    done["drawn"] = counted["drawn"] - counted["fresh"]  # these draws are blocks, too
    both = {kind: (estimated[kind], done.get(kind, 0)) for kind in UNIT_SECONDS}
    far = {kind: pair for kind, pair in both.items() if max(pair) > 1.5 * min(pair)}
    assert not far, "estimated, and done"
    if scale.up:
        for wire, told in ((scale.up, summation.upload), (scale.down, summation.download)):
            sent = sum(wire.values()) / clients
            guess = told(LENGTH, clients, noise) if wire is scale.up else told(clients, noise)
            assert max(sent, guess) <= 1.5 * min(sent, guess)


def test_seconds_are_operations_times_what_each_takes():
    assert Operations(masked=1e9).seconds == pytest.approx(1e9 * UNIT_SECONDS["masked"])
    plain = MaskedSums().over(Limits(20, size=20))
    layered = plain.seconds(100_000, 20, LAYERS) - plain.seconds(100_000, 20)
    assert layered > 20 * 100_000 * (1 + 2 * LAYERS.count(20)) * UNIT_SECONDS["drawn"] * 0.99
