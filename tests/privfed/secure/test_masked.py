"""Masked sums: exact or aborted, never wrong, whoever drops out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_sums import STREAMS, Fixed, codec, played, rows, sent, session
from scipy import stats

from privfed.core.streams import Streams
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Wire
from privfed.secure.identities import client_identity
from privfed.secure.limits import SENDS, Leaves, Limits, leaving
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.graph import graph_seed
from privfed.secure.masked.messages import wire
from privfed.secure.masked.policy import Policy
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted


@given(
    st.integers(2, 12),
    st.sampled_from([8, 11, 16, 20, 32, 40, 62]),
    st.integers(1, 12),
    st.sampled_from([None, 2, 4]),
    st.data(),
)
@settings(max_examples=150)
def test_a_sum_is_exact_or_aborted_whoever_drops_out(clients, bits, threshold, degree, data):
    leaves = data.draw(st.lists(st.sampled_from(list(Leaves)), min_size=clients, max_size=clients))
    encoder = Codec.finest(1.0, 1.0, 3, bits, clients, 2.0**20)
    of, policy = session(clients, leaves), Fixed(min(threshold, clients), degree)
    whole = rows(encoder, clients, seed=clients)
    found = outcome(of, encoder, policy, whole)
    assert (found is not None) == _enough(of, policy)
    if found is not None:
        here = np.isin(of.leaves, SENDS)
        assert found == (whole[here].sum(0).tolist(), here.sum())


def outcome(of, encoder, policy, whole):
    """The sum and the survivors' count; None where it aborts."""
    try:
        channel = MaskedChannel(of, encoder, policy)
        sent(channel, of, whole)
        total, survivors = channel.total()
    except Aborted:
        return None
    return total.tolist(), survivors


def _enough(of, policy):
    """Whether at each step every client that shared its secrets keeps enough who hold them."""
    graph = policy.graph(len(of.clients))
    gone = dict(zip(of.clients.tolist(), of.leaves.tolist(), strict=True))
    seed = graph_seed(of)
    near = {who: graph.neighbours(seed, tuple(gone), who) for who in gone}
    shared = {who for who in gone if gone[who] != Leaves.BEFORE_SHARING}
    sends = {who for who in gone if gone[who] in SENDS}
    stays = {who for who in gone if gone[who] == Leaves.NEVER}
    every = all(
        sum(who in left for who in graph.holders(me, near[me])) >= graph.threshold
        for me in shared
        for left in (shared, sends, stays)
    )
    return every and len(sends) >= 2 and len(stays) >= graph.threshold


def test_arithmetic_aborts_where_the_protocol_does_and_sums_alike():
    for seed in range(12):
        leaves = leaving(0.4, Streams(seed, True).at("dropout/0", 1, np.arange(12)), 12)
        of = session(12, leaves)
        part = MaskedSums(threshold=0.5)
        outcomes = []
        for arithmetic in (False, True):
            summation = part.over(Limits(50, 0, arithmetic))
            accumulator = summation.open(of, 5, Encoding(1.0, 2.0**20))
            whole = rows(codec(), 12)
            try:
                expected = sent(accumulator._channel, of, whole)
                total, survivors = accumulator._channel.total()
                assert np.array_equal(total, expected)
                outcomes.append((total.tolist(), survivors))
            except Aborted:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]


def test_a_sparse_graph_of_many_clients_sums_exactly_with_dropouts():
    policy = Policy(0.8, 0.0, "curious")
    assert not policy.graph(230).complete
    leaves = leaving(0.05, STREAMS.at("dropout/0", 9, np.arange(230)), 230)
    of, encoder = session(230, leaves), codec(capacity=230)
    channel = MaskedChannel(of, encoder, policy)
    expected = sent(channel, of, rows(encoder, 230))
    total, _ = channel.total()
    assert np.array_equal(total, expected)


def test_masked_rows_of_constants_look_uniform():
    """Over many sessions the words that the server sees of a constant row are uniform."""
    seen = []

    class Seeing(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Masked):
                seen.append(np.frombuffer(message.words, "<u4"))
            return data

    encoder = codec(length=40)
    for _ in range(150):
        channel = MaskedChannel(session(3), encoder, Fixed(2), wire=Seeing())
        sent(channel, session(3), np.full((3, 40), 7))
    words = np.concatenate(seen)
    for shift in (0, 8, 16, 24):
        counts = np.bincount((words >> shift) & 0xFF, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert len(set(words.tolist())) > 0.999 * len(words)


def test_memory_is_flat_in_the_cohort():
    """Between rows the server holds one sum: no row stays anywhere."""
    of, encoder = session(12), codec(length=100_000)
    channel = MaskedChannel(of, encoder, Fixed(7))
    for client in of.clients.tolist()[:10]:
        channel.send(client, np.ones(encoder.length, dtype=np.int64))
    held = [
        name
        for part in (channel, channel.server, *channel.clients.values())
        for name, value in vars(part).items()
        if len(value if isinstance(value, dict | bytes | np.ndarray) else ()) >= encoder.length
    ]
    assert held == ["_sum"]
    assert channel._rows == {}


def test_too_few_senders_for_the_runs_minimum_abort_with_messages():
    leaves = [Leaves.BEFORE_MASKING, 0, 0, 0, 0, 0, 0]
    of, encoder = session(7, leaves), codec()
    for minimum in (6, 7):
        channel = MaskedChannel(of, encoder, Fixed(4), Limits(50, minimum))
        sent(channel, of, rows(encoder, 7))
        if minimum == 6:
            assert channel.total()[1] == 6
        else:
            with pytest.raises(Aborted, match="too few clients sent"):
                channel.total()


def test_a_server_whose_session_has_ended_says_so():
    of, encoder = session(6, [Leaves.BEFORE_SHARING] * 5 + [0]), codec()
    with pytest.raises(Aborted):
        MaskedChannel(of, encoder, Fixed(4))
    channel, clients = played()
    channel.total()
    for late in (channel.server.proceed, channel.server.total):
        with pytest.raises(Aborted, match="has ended"):
            late()
    with pytest.raises(Aborted, match="has ended"):
        channel.server.handle(clients[0], wire.Vote(channel.server._context, clients[0], b"s" * 64))


def test_a_sealed_text_of_another_length_stops_nobody():
    """One byte more would spoil the records of every inbox that the text lies in."""

    class Longer(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if client == 8 and isinstance(message, wire.Shares):
                sealed = tuple((who, text + b"0") for who, text in message.sealed)
                return wire.encode(replace(message, sealed=sealed).signed(client_identity(8)))
            return data

    of, encoder = session(8), codec()
    channel = MaskedChannel(of, encoder, Fixed(5), wire=Longer())
    sent(channel, of, rows(encoder, 8))
    assert [fault for fault in channel.faults if "have the wrong length" in fault]
    assert channel.total()[1] == 7


def test_a_roster_beyond_the_capacity_is_refused():
    of, encoder = session(6), codec()
    channel = MaskedChannel(of, encoder, Fixed(4))
    assert not channel.faults
    with pytest.raises(Aborted, match=r"expected at most 5, the capacity"):
        MaskedChannel(of, encoder, Fixed(4), Limits(5))


def test_layers_come_off_by_the_count_of_those_whom_nobody_garbled():
    """A client that could not open one sender's shares counts it as gone; the others are enough."""
    of, layers = session(8, [Leaves.BEFORE_MASKING, *[0] * 7]), Layers(50.0, 0.3)
    encoder, limits = codec(), Limits(8, tolerance=0.3)
    sums, opened = [], set()

    class Seeing(Wire):
        def __init__(self, spoils):
            self.spoils = spoils

        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Unmask):
                opened.add(tuple((who, number) for who, number, _ in message.layers))
            if self.spoils and client == 13 and isinstance(message, wire.Inbox):
                _, (second, text), *rest = message.sealed
                garbled = (message.sealed[0], (second, bytes(len(text))), *rest)
                return wire.encode(replace(message, sealed=garbled))
            return data

    for spoils in (False, True):
        channel = MaskedChannel(of, encoder, Fixed(5), limits, layers, Seeing(spoils))
        sent(channel, of, rows(encoder, 8))
        assert channel.faults == []
        sums.append(channel.total()[0].tolist())
    assert sums[0] == sums[1]
    first = of.senders.tolist()[:4]  # with one of two gone, half of eight lose the layer
    assert opened == {tuple((who, 1) for who in first), ()}
