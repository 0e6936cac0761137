"""Sums over sites in real messages: their numbers, their noise, and where they abort."""

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
import torch
from masked_sums import tampering

from privfed.core.streams import Streams
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.privacy.noise.shares import SkellamShare
from privfed.privacy.setting import SiteNoise
from privfed.secure.homomorphic.protocol import Bfv
from privfed.secure.limits import SENDS, Leaves, Limits
from privfed.secure.masked import channel as masked_channel
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import wire
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted, Session

LENGTH, STEP, CLIP = 4, 0.125, 1.0
ROWS = 12
"""How many clients' rows there are, dealt over sites."""
SHARED = Leaves.BEFORE_MASKING


def session(sites, leaves=(), seed=3):
    site_of = np.arange(ROWS) % sites
    streams = Streams(seed, simulated=True)
    leaves = np.array(leaves, dtype=np.int64)
    return Session(1, 0, b"h" * 32, np.arange(sites), leaves, streams, sites=site_of)


def limits(noise, arithmetic=False):
    n = noise.sites
    return Limits(
        n, noise.minimum, arithmetic, size=n, sites=n, colluders=noise.colluders, rows=ROWS
    )


def added(of, noise, protocol, share=None, arithmetic=False):
    """The accumulator of a session after all rows of clients whose site sends were added."""
    encoding = Encoding(CLIP, step=STEP, noise=share)
    accumulator = protocol.over(limits(noise, arithmetic)).open(of, LENGTH, encoding)
    ids = np.array([c for c in range(ROWS) if of.sites[c] in of.senders], dtype=np.int64)
    values = torch.cos(torch.arange(ROWS * LENGTH, dtype=torch.float64)).reshape(ROWS, LENGTH)
    accumulator.add(ids, BoundedRows(torch.nn.functional.normalize(values)[ids], CLIP))
    return accumulator


def outcome(*arguments, **keys):
    try:
        closed = added(*arguments, **keys).close()
    except Aborted:
        return None
    return closed.total.tolist(), closed.survivors


def patterns(sites):
    """All ways to drop out; of five sites for some of those who do it."""
    if sites < 5:
        yield from map(np.array, product(Leaves, repeat=sites))
        return
    for number, leaves in enumerate(combinations_with_replacement(Leaves, sites)):
        yield np.roll(leaves, number)


@pytest.mark.parametrize(
    ("noise", "threshold"),
    [(SiteNoise(4, 3, 1), 3), pytest.param(SiteNoise(5, 3, 1), 2, marks=pytest.mark.slow)],
)
def test_arithmetic_is_what_messages_do_whoever_drops_out(noise, threshold):
    """Also the noise: each site's share follows from the same stream."""
    protocol = MaskedSums(threshold=threshold / noise.sites, colluders=1 / noise.sites)
    assert protocol.least_sites(noise.sites) == threshold
    share, opened, aborted = SkellamShare(30.0), 0, 0
    for leaves in patterns(noise.sites):
        of = session(noise.sites, leaves)
        sums = [outcome(of, noise, protocol, share, arithmetic) for arithmetic in (False, True)]
        assert sums[0] == sums[1]
        sent, stayed = np.isin(leaves, SENDS).sum(), (leaves == Leaves.NEVER).sum()
        enough = sent >= noise.minimum and stayed >= max(threshold, noise.minimum)
        assert (sums[0] is not None) == enough
        opened, aborted = opened + enough, aborted + (not enough)
        if enough:
            assert sums[0][1] == sent
    assert opened >= 3
    assert aborted >= 10


def remaining_noise(of, layers, missing):
    """The noise that all who sent keep: base and the layers that stay."""
    sites, total, senders = len(of.clients), 0, of.senders.tolist()
    for site, staying in layers.keeping(sites, missing, senders).items():
        noise = ClientNoise(layers, of.layer_keys(site))
        total = total + noise.draw(sites, noise.seeds(sites)[:staying], LENGTH)
    return total


@pytest.mark.parametrize("noise", [SiteNoise(4, 3, 1), SiteNoise(5, 3, 2)])
def test_layers_come_off_by_how_many_pinned_sites_are_missing(noise):
    protocol = MaskedSums(threshold=noise.minimum / noise.sites, colluders=0.0)
    layers = noise.layers(200.0, "discrete_gaussian")
    for missing in range(noise.sites - noise.minimum + 1):
        of = session(noise.sites, [SHARED] * missing + [Leaves.NEVER] * (noise.sites - missing))
        total, _ = outcome(of, noise, protocol, layers)
        bare, _ = outcome(of, noise, protocol)
        found = (np.array(total) - np.array(bare)) / STEP
        assert np.array_equal(found, remaining_noise(of, layers, missing))
    assert outcome(session(4, [SHARED, SHARED, 0, 0]), SiteNoise(4, 3, 1), protocol, layers) is None


@pytest.mark.parametrize("layered", [False, True])
def test_a_smaller_roster_is_one_with_more_sites_missing(monkeypatch, layered):
    """A site whose keys never come: thresholds and layers are those of all pinned sites."""
    noise = SiteNoise(5, 4, 1)
    share: Share = noise.layers(200.0, "discrete_gaussian") if layered else SkellamShare(30.0)
    lost = tampering(wire.Advertise, lambda message: b"", victim=0)
    protocol, graphs = MaskedSums(threshold=0.6, threat="malicious", colluders=0.2), []
    honest = masked_channel.MaskingClient._checked_graph

    def checked(client, roster):
        graphs.append(honest(client, roster))
        return graphs[-1]

    monkeypatch.setattr(masked_channel, "Wire", lambda: lost)
    monkeypatch.setattr(masked_channel.MaskingClient, "_checked_graph", checked)
    of = session(5)
    accumulator = added(of, noise, protocol, share)
    closed = accumulator.close()
    assert closed.survivors == 4
    assert {(graph.clients, graph.threshold, graph.survivors) for graph in graphs} == {(4, 4, 4)}
    assert protocol.least_sites(5) == 4, "2 t > n + k, of pinned n"
    if layered:
        gone = session(5, [SHARED, *[Leaves.NEVER] * 4])
        monkeypatch.undo()
        bare, _ = outcome(gone, noise, protocol)
        found = (closed.total.numpy() - np.array(bare)) / STEP
        assert np.array_equal(found, remaining_noise(gone, share, 1))


def test_homomorphic_sums_by_sites_are_those_of_arithmetic():
    pytest.importorskip("tenseal")
    noise, share = SiteNoise(4, 2, 1), SkellamShare(30.0)
    for leaves in ((), (SHARED, 0, 0, 0), (SHARED, SHARED, SHARED, 0)):
        of = session(4, leaves)
        sums = [outcome(of, noise, Bfv(), share, arithmetic) for arithmetic in (False, True)]
        assert sums[0] == sums[1]
        assert (sums[0] is None) == (len(leaves) > 0 and leaves[1] == SHARED)


def test_a_site_with_nobody_drawn_adds_its_share():
    """So that who sees its noise learns nothing of its clients."""
    noise, share, of = SiteNoise(3, 3, 1), SkellamShare(30.0), session(3)
    encoding = Encoding(CLIP, step=STEP, noise=share)
    empty = MaskedSums().over(limits(noise)).open(of, LENGTH, encoding).close().total.numpy()
    keys = of.streams.at("noise/site/0", 1, of.clients).each()
    drawn = sum(share.draw(site_keys, LENGTH) for site_keys in keys)
    assert np.array_equal(empty / STEP, drawn)


def test_memory_is_one_row_a_site():
    """However many clients' rows were added, nobody holds more than a sum for each site."""
    of, noise = session(3), SiteNoise(3, 3, 1)
    accumulator = added(of, noise, MaskedSums(), SkellamShare(30.0), arithmetic=True)
    sums = accumulator._channel
    assert {site: row.shape for site, row in sums._sums.items()} == dict.fromkeys(
        range(3), (LENGTH,)
    )
    held = [name for name, value in vars(sums).items() if isinstance(value, np.ndarray)]
    assert held == ["_site_of"]
