"""Masked sums: exact or aborted, never wrong; and nothing but the sum is learned."""

from contextlib import suppress
from dataclasses import dataclass, fields, make_dataclass, replace
from math import comb, floor, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privfed.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import DiscreteGaussianShare, Layers, SkellamShare
from privfed.secure import agreement
from privfed.secure.dropout import SENDS, Leaves, leaving
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked import messages as wire
from privfed.secure.masked.channel import MaskedChannel, Wire
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.derived_keys import channel_key, pair_key, self_key
from privfed.secure.masked.expected import Expected
from privfed.secure.masked.graph import Graph, Policy, graph_seed, neighbours, recoverable
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.masked.sealed_shares import between, read_shares, share_text
from privfed.secure.masked.shamir import PRIME, reconstruct
from privfed.secure.primitives import Expander, KeyPair, unseal
from privfed.secure.summation import Aborted, Session
from privfed.streams import Keys, Streams

STREAMS = Streams(3, simulated=True)


@dataclass(frozen=True)
class Fixed:
    """A graph whatever its safety: to try shapes that a policy would not choose so small."""

    threshold: int
    degree: int | None = None
    survivors: int = 0

    def graph(self, clients):
        degree = clients - 1 if self.degree is None else min(self.degree, clients - 1)
        threshold = min(self.threshold, degree + (degree == clients - 1))
        return Graph(clients, degree, threshold, self.survivors)


def codec(length=5, bits=32, capacity=50):
    return Codec.finest(1.0, 1.0, length, bits, capacity, 2.0**30)


def session(clients=6, leaves=(), round=1):
    ids = 3 + 5 * np.arange(clients)
    return Session(round, 0, b"h" * 32, ids, np.array(leaves, dtype=np.int64), STREAMS)


def rows(encoder, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-encoder.largest, encoder.largest + 1, size=(count, encoder.length))


def sent(channel, of, whole):
    """Send the rows of those who do, and return their sum."""
    leaves = of.leaves if len(of.leaves) else np.zeros(len(of.clients), dtype=np.int64)
    here = np.isin(leaves, SENDS)
    for client, row in zip(of.clients[here].tolist(), whole[here], strict=True):
        channel.send(client, row)
    return whole[here].sum(0)


@given(
    st.integers(2, 12),
    st.sampled_from([8, 11, 16, 20, 32, 40, 62]),
    st.integers(1, 12),
    st.sampled_from([None, 2, 4]),
    st.data(),
)
@settings(max_examples=150, deadline=None)
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
    near = {who: neighbours(seed, tuple(gone), graph.degree, who) for who in gone}
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


# --- what is refused, by name ---


def tampering(kind, change, upward=True, victim=8):
    """A wire that changes messages of `kind` to or from one client."""

    class Tampered(Wire):
        def carry(self, client, data, going_up):
            message = wire.decode(data)
            if client != victim or going_up is not upward or not isinstance(message, kind):
                return data
            changed = change(message)
            return changed if isinstance(changed, bytes) else wire.encode(changed)

    return Tampered()


def resigned(message, **changes):
    """A client's keys, changed and signed by itself."""
    changed = replace(message, **changes)
    return replace(changed, signature=client_identity(changed.sender).sign(changed.text))


def signed(message, sender=8, **changes):
    """A client's message, changed, in a name, and signed by the client itself."""
    changed = replace(message, sender=sender, **changes)
    return replace(changed, signature=client_identity(8).sign(changed.text))


def listing(message, clients):
    """A roster of these, each with its nonce."""
    nonces = dict(zip(message.clients, message.nonces, strict=True))
    listed = tuple(nonces.get(client, bytes(32)) for client in clients)
    return replace(message, clients=clients, nonces=listed)


SIGNATURE = "wrong signature"
BITS = 21  # so that a row of five numbers ends within a byte
SHORT = "wrong length"
LOW_ORDER = bytes(32)

UP = {
    "unknown id": (wire.Advertise, lambda m: replace(m, sender=999), "wrong sender"),
    "another's id": (wire.Advertise, lambda m: replace(m, sender=28), "wrong sender"),
    "keys in another's name": (wire.Advertise, lambda m: signed(m, 28), "wrong sender"),
    "a row in another's name": (wire.Masked, lambda m: signed(m, 28), "wrong sender"),
    "shares in another's name": (wire.Shares, lambda m: signed(m, 28), "wrong sender"),
    "an unsigned row": (wire.Masked, lambda m: replace(m, words=bytes(len(m.words))), SIGNATURE),
    "unsigned shares": (wire.Shares, lambda m: replace(m, commitment=b"c" * 32), SIGNATURE),
    "unsigned help": (wire.Unmask, lambda m: replace(m, seeds=m.seeds[1:]), SIGNATURE),
    "unsigned keys": (wire.Advertise, lambda m: replace(m, mask=b"x" * 32), "wrong signature"),
    "low-order key": (wire.Advertise, lambda m: resigned(m, mask=LOW_ORDER), "low-order key"),
    "one key twice": (wire.Advertise, lambda m: resigned(m, mask=m.channel), "duplicate key"),
    "too short": (wire.Advertise, lambda m: wire.encode(m)[:-1], SHORT),
    "too long": (wire.Advertise, lambda m: wire.encode(m) + b"x", SHORT),
    "nothing": (wire.Advertise, lambda m: b"", SHORT),
    "other format": (wire.Advertise, lambda m: b"PS9" + wire.encode(m)[3:], "wrong format"),
    "unknown type": (wire.Advertise, lambda m: b"PS2\x63" + wire.encode(m)[4:], "wrong type"),
    "other session": (wire.Advertise, lambda m: replace(m, context=b"c" * 32), "wrong session"),
    "out of turn": (
        wire.Advertise,
        lambda m: wire.Vote(m.context, m.sender, b"s" * 64),
        "wrong type",
    ),
    "from a server": (wire.Advertise, lambda m: wire.Survivors(m.context, (3,)), "wrong type"),
    "shares for others": (
        wire.Shares,
        lambda m: signed(m, sealed=((999, m.sealed[0][1]), *m.sealed[1:])),
        "wrong receivers",
    ),
    "shares for fewer": (wire.Shares, lambda m: signed(m, sealed=m.sealed[1:]), "wrong receivers"),
    "shares for itself": (
        wire.Shares,
        lambda m: signed(m, sealed=((8, m.sealed[0][1]), *m.sealed[1:])),
        "wrong receivers",
    ),
    "count beyond the end": (
        wire.Shares,
        lambda m: wire.encode(m)[: 4 + 32 + 64 + 8 + 64 + 4] + b"\xff\xff\xff\xff",
        SHORT,
    ),
    "short row": (wire.Masked, lambda m: signed(m, words=m.words[:-1]), SHORT),
    "long row": (wire.Masked, lambda m: signed(m, words=m.words * 2), SHORT),
    "beyond the modulus": (
        wire.Masked,
        lambda m: signed(m, words=b"\xff" * len(m.words)),
        "wrong modulus",
    ),
    "other survivors": (wire.Vote, lambda m: replace(m, signature=b"s" * 64), "inconsistent"),
    "both secrets": (
        wire.Unmask,
        lambda m: signed(m, keys=(*m.keys, (m.seeds[0][0], 5))),
        "wrong shares",
    ),
    "a seed twice": (
        wire.Unmask,
        lambda m: signed(m, seeds=(*m.seeds, m.seeds[0])),
        "wrong shares",
    ),
    "outside the field": (
        wire.Unmask,
        lambda m: signed(m, seeds=((m.seeds[0][0], PRIME), *m.seeds[1:])),
        "wrong shares",
    ),
}


@pytest.mark.parametrize("kind, change, fault", UP.values(), ids=UP.keys())
def test_a_clients_malformed_message_is_refused_by_name_and_harms_nobody_else(kind, change, fault):
    """It counts as dropped; the others' sum is exact."""
    of, encoder = session(6), codec(bits=BITS)
    channel = MaskedChannel(of, encoder, Fixed(4), wire=tampering(kind, change))
    whole = rows(encoder, 6)
    sent(channel, of, whole)
    total, survivors = channel.total()
    assert channel.faults[0].startswith(fault), channel.faults
    drops = kind in (wire.Advertise, wire.Shares, wire.Masked)
    assert survivors == (5 if drops else 6)
    assert np.array_equal(total, whole.sum(0) - (whole[1] if drops else 0))


@pytest.mark.parametrize("which", ["channel", "mask"])
def test_a_public_key_of_another_client_is_refused(which):
    """Who signs another's key as its own cannot use it, but would be sent what is sealed for it."""

    class Copying(Wire):
        first = None

        def carry(self, client, data, upward):
            message = wire.decode(data)
            if not isinstance(message, wire.Advertise):
                return data
            self.first = self.first or message
            return data if client != 8 else wire.encode(copied(message, self.first))

    def copied(message, other):
        return resigned(message, **{which: getattr(other, which)})

    of, encoder = session(6), codec()
    channel = MaskedChannel(of, encoder, Fixed(4), wire=Copying())
    whole = rows(encoder, 6)
    sent(channel, of, whole)
    total, survivors = channel.total()
    assert channel.faults == ["duplicate key: a public key that is in use already"]
    assert survivors == 5
    assert np.array_equal(total, whole.sum(0) - whole[1])


def test_shares_are_sealed_with_a_key_of_their_session():
    of = session(3)
    channel = MaskedChannel(of, codec(), Fixed(2))
    (one, two, _), agreed = of.clients.tolist(), channel.server._members.agreed
    secret = channel.clients[two]._secrets[one]
    ((sender, sealed), _) = channel._inboxes[two].sealed
    assert sender == one
    text = unseal(channel_key(agreed, secret, one, two), sealed, between(agreed, sender, two))
    assert read_shares(text, one, two, 2)
    keys = {channel_key(c, secret, *way) for c in (agreed, b"o" * 32) for way in ((1, 2), (2, 1))}
    assert len(keys) == 4, "each session and each direction has its own"


def _swapped(message):
    first, second, *others = message.sealed
    return replace(message, sealed=((first[0], second[1]), (second[0], first[1]), *others))


DOWN = {
    "another round": (wire.Invitation, lambda m: replace(m, round=2), "wrong round"),
    "another exchange": (wire.Invitation, lambda m: replace(m, exchange=1), "wrong exchange"),
    "another model": (wire.Invitation, lambda m: replace(m, model_hash=b"x" * 32), "wrong model"),
    "another modulus": (wire.Invitation, lambda m: replace(m, bits=30), "wrong bits"),
    "another length": (wire.Invitation, lambda m: replace(m, length=4), "wrong length"),
    "not of its context": (
        wire.Invitation,
        lambda m: wire.encode(m)[:4] + b"c" * 32 + wire.encode(m)[36:],
        "wrong session",
    ),
    "other settings": (
        wire.Invitation,
        lambda m: replace(m, agreement=b"a" * 32),
        "wrong agreement",
    ),
    "another nonce of mine": (
        wire.Roster,
        lambda m: replace(m, nonces=(m.nonces[0], b"n" * 32, *m.nonces[2:])),
        "wrong nonce",
    ),
    "another nonce of a neighbour's": (
        wire.Roster,
        lambda m: replace(m, nonces=(b"n" * 32, *m.nonces[1:])),
        "wrong nonce",
    ),
    "no invitation": (wire.Invitation, lambda m: wire.Survivors(m.context, (3,)), "wrong type"),
    "weaker threshold": (wire.Roster, lambda m: replace(m, threshold=2), "wrong threshold"),
    "fewer neighbours": (wire.Roster, lambda m: replace(m, degree=2), "wrong threshold"),
    "without me": (wire.Roster, lambda m: listing(m, m.clients[2:]), "wrong roster"),
    "out of order": (wire.Roster, lambda m: listing(m, m.clients[::-1]), "wrong roster"),
    "a key missing": (wire.Roster, lambda m: replace(m, keys=m.keys[1:]), "wrong neighbours"),
    "keys twice": (
        wire.Roster,
        lambda m: replace(m, keys=(m.keys[0], *m.keys[:-1])),
        "wrong neighbours",
    ),
    "another's keys": (
        wire.Roster,
        lambda m: replace(m, keys=(replace(m.keys[0], mask=b"x" * 32), *m.keys[1:])),
        "wrong signature",
    ),
    "equal keys": (
        wire.Roster,
        lambda m: replace(m, keys=(replace(m.keys[0], mask=m.keys[1].mask), *m.keys[1:])),
        "duplicate key",
    ),
    "shares of a stranger": (
        wire.Inbox,
        lambda m: replace(m, sealed=((999, m.sealed[0][1]), *m.sealed[1:])),
        "wrong senders",
    ),
    "shares twice": (
        wire.Inbox,
        lambda m: replace(m, sealed=(m.sealed[0], *m.sealed)),
        "wrong senders",
    ),
    "hardly any shares": (wire.Inbox, lambda m: replace(m, sealed=m.sealed[:2]), "too few"),
    "survivors without me": (
        wire.Survivors,
        lambda m: replace(m, clients=tuple(c for c in m.clients if c != 8)),
        "wrong survivors",
    ),
    "unknown survivors": (
        wire.Survivors,
        lambda m: replace(m, clients=(*m.clients, 999)),
        "wrong survivors",
    ),
    "few survivors": (wire.Survivors, lambda m: replace(m, clients=m.clients[:3]), "too few"),
    "unknown clients": (
        wire.Roster,
        lambda m: listing(m, (*m.clients, 999)),
        "wrong roster",
    ),
    "few votes": (wire.Votes, lambda m: replace(m, votes=m.votes[:3]), "too few"),
    "a vote twice": (
        wire.Votes,
        lambda m: replace(m, votes=(m.votes[0], *m.votes[:-1])),
        "wrong voters",
    ),
    "a forged vote": (
        wire.Votes,
        lambda m: replace(m, votes=(replace(m.votes[0], signature=b"s" * 64), *m.votes[1:])),
        "inconsistent",
    ),
    "replayed survivors": (
        wire.Votes,
        lambda m: wire.Survivors(m.context, (3, 8, 13, 18)),
        "wrong type",
    ),
}


@pytest.mark.parametrize("kind, change, fault", DOWN.values(), ids=DOWN.keys())
def test_a_client_refuses_what_a_server_may_not_say_and_answers_nothing_more(kind, change, fault):
    of, encoder = session(6), codec(bits=BITS)
    channel = MaskedChannel(of, encoder, Fixed(4), wire=tampering(kind, change, upward=False))
    whole = rows(encoder, 6)
    sent(channel, of, whole)
    total, survivors = channel.total()
    assert channel.faults[0].startswith(fault), channel.faults
    victim = channel.clients[8]
    assert not any(hasattr(victim, name) for name in ("_held", "_pair", "_channel", "_keys"))
    assert not any(getattr(victim, "_seed", b""))
    assert np.array_equal(total, whole.sum(0) - (whole[1] if survivors == 5 else 0))


def test_garbled_shares_stop_nobody_while_enough_others_hold_theirs():
    of, encoder = session(6), codec()
    channel = MaskedChannel(of, encoder, Fixed(4), wire=tampering(wire.Inbox, _swapped, False))
    expected = sent(channel, of, rows(encoder, 6))
    total, _ = channel.total()
    assert channel.faults == []
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("which", ["seeds", "keys"])
def test_wrong_shares_abort_and_never_make_a_wrong_sum(which):
    """One holder lies about its share: the commitment, or the public key, does not fit."""

    def change(message):
        pairs = [(who, value ^ 1) for who, value in getattr(message, which)]
        return signed(message, **{which: tuple(pairs)})

    leaves = [0, 0, 0, 0, 0, Leaves.BEFORE_MASKING]
    of, encoder = session(6, leaves), codec()
    channel = MaskedChannel(of, encoder, Fixed(4), wire=tampering(wire.Unmask, change))
    sent(channel, of, rows(encoder, 6))
    with pytest.raises(Aborted, match=r"do not fit|put together"):
        channel.total()


def test_a_message_is_taken_once():
    of, encoder = session(4), codec()
    replayed = []

    class Replaying(Wire):
        def carry(self, client, data, upward):
            if upward:
                replayed.append(data)
            return data

    channel = MaskedChannel(of, encoder, Fixed(2), wire=Replaying())
    whole = rows(encoder, 4)
    for client, row in zip(of.clients.tolist(), whole, strict=True):
        channel.send(client, row)
        with pytest.raises(BadMessage, match="unknown sender"):
            channel.server.handle(client, wire.decode(replayed[-1]))
    total, _ = channel.total()
    assert np.array_equal(total, whole.sum(0))
    other = MaskedChannel(session(4, round=2), encoder, Fixed(2))
    with pytest.raises(BadMessage, match="wrong session"):
        other.server.handle(client, wire.decode(replayed[-1]))


def test_secrets_are_forgotten_when_a_session_ends():
    of, encoder = session(4), codec()
    channel = MaskedChannel(of, encoder, Fixed(3))
    sent(channel, of, rows(encoder, 4))
    client = channel.clients[3]
    seed, secret = client._seed, client._mask_secret
    channel.total()
    assert not any(seed)
    assert not any(secret)
    assert not {"_held", "_pair", "_channel", "_secrets", "_row"} & vars(client).keys()
    with pytest.raises(BadMessage, match="wrong type"):
        client.handle(wire.Survivors(client._context, tuple(of.clients.tolist())))


# --- who learns what ---


def unmasked_by_a_liar(threshold, policy=None):
    """A server tells three of six that a victim survived and three that it did not."""
    of, encoder, captured = session(6), codec(), {}

    class Seeing(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Masked):
                captured[client] = message.words
            return data

    channel = MaskedChannel(of, encoder, policy or Fixed(threshold), wire=Seeing())
    whole = rows(encoder, 6)
    sent(channel, of, whole)
    server, clients = channel.server, of.clients.tolist()
    victim, groups = clients[0], (clients[:3], clients[3:])
    server.proceed()
    shares = {True: {}, False: {}}
    for alive, group in zip((True, False), groups, strict=True):
        said = tuple(who for who in clients if alive or who != victim)
        survivors = wire.Survivors(server._context, said)
        votes = tuple(channel.clients[who].handle(survivors) for who in group)
        for who in group:
            answer = channel.clients[who].handle(wire.Votes(server._context, votes))
            pairs = dict(answer.seeds if alive else answer.keys)
            shares[alive][server._members.places[who]] = pairs[victim]
    threshold = server._members.graph.threshold
    seed, secret = (reconstruct(shares[alive], threshold) for alive in (True, False))
    expander = Expander(encoder.length, encoder.bits)
    row = np.frombuffer(captured[victim], "<u4").copy()
    expander.apply(row, self_key(server._members.agreed, seed), subtract=True)
    pair = KeyPair(secret)
    for other in clients[1:]:
        shared = pair.agree(server._keys[other].mask)
        key = pair_key(server._members.agreed, shared, victim, other)
        expander.apply(row, key, subtract=other < victim)
    return encoder.unwrap(row.astype("u8")), whole[0]


def test_a_lying_server_unmasks_a_client_at_half_the_cohort():
    found, row = unmasked_by_a_liar(3)
    assert np.array_equal(found, row)


@pytest.mark.parametrize("policy", [Fixed(4), Policy(0.6, 0.1, "lying")])
def test_above_half_a_lying_server_learns_nothing(policy):
    with pytest.raises(BadMessage, match="too few"):
        unmasked_by_a_liar(4, policy)


def test_below_the_threshold_shares_are_worth_nothing():
    """t - 1 holders of a client's seed: any other seed fits them as well."""
    of, encoder = session(5), codec()
    channel = MaskedChannel(of, encoder, Fixed(4))
    held = [channel.clients[who] for who in of.clients.tolist()]
    sent(channel, of, rows(encoder, 5))
    shares = {channel.server._members.places[c.me]: c._held[3][0] for c in held[1:4]}
    with pytest.raises(ValueError, match="3 shares"):
        reconstruct(shares, 4)
    found = {reconstruct({**shares, 60: guess}, 4) for guess in range(1, 40)}
    assert len(found) > 30


# --- the graph ---


@pytest.mark.parametrize("clients", [2, 3, 4, 10, 57, 200])
@pytest.mark.parametrize("threshold, colluders", [(0.6, 0.1), (0.67, 0.0), (0.9, 0.3), (1.0, 0.5)])
def test_thresholds_of_the_complete_graph(clients, threshold, colluders):
    policy, corrupt = Policy(threshold, colluders, "lying"), int(colluders * clients + 1e-9)
    if corrupt + 2 > clients:
        with pytest.raises(Aborted, match="so many that may collude"):
            policy.graph(clients)
        return
    graph = policy.graph(clients)
    assert graph.complete
    assert corrupt + 2 <= graph.threshold <= clients
    assert 2 * graph.threshold > clients + corrupt
    assert graph.threshold >= threshold * clients - 1e-9


@pytest.mark.parametrize("clients", [201, 333, 600])
@pytest.mark.parametrize("threshold, colluders", [(0.6, 0.1), (0.9, 0.05), (2 / 3, 1 / 3)])
def test_a_sparse_graph_is_the_smallest_that_keeps_the_four_conditions(
    clients, threshold, colluders
):
    """Bell et al. 2020, by SciPy's own distributions and exact factorials."""
    graph = Policy(threshold, colluders, "curious").graph(clients)
    a, d = floor(colluders * clients + 1e-9), floor((1 - threshold) * clients + 1e-9)

    def kept(k):
        cut = clients * (clients - k - 1) / 2 * comb(a + d, k) / comb(clients, k)
        if cut and log2(cut) >= -41:
            return None
        x = np.arange(k + 1)
        over = stats.hypergeom.sf(x, clients, a, k)
        under = stats.hypergeom.cdf(x - 1, clients, clients - d, k)
        t1 = x[over <= 2.0**-41 / clients][0]
        t2 = x[under <= 2.0**-20 / clients][-1]
        return max(int(t1) + 1, 2) if t1 < t2 else None

    smallest = next(k for k in range(2, clients, 2) if kept(k))
    assert (graph.degree, graph.threshold) == (smallest, kept(smallest))


def test_everybody_is_a_neighbour_of_its_neighbours_and_has_as_many():
    clients = tuple(range(5, 60))
    near = {who: neighbours(b"s" * 32, clients, 8, who) for who in clients}
    assert all(len(others) == 8 and me not in others for me, others in near.items())
    assert all(me in near[other] for me in clients for other in near[me])
    assert any(neighbours(b"t" * 32, clients, 8, who) != near[who] for who in clients)


@pytest.mark.parametrize(
    "keys, said",
    [
        ({"threshold": 0.1, "colluders": 0.2}, "would be enough to unmask"),
        ({"threshold": 0.5, "threat": "lying"}, "expected more than"),
        ({"neighbours": 20, "threat": "lying"}, "no proof against a server that lies"),
        ({"neighbours": 7}, "even number"),
    ],
)
def test_keys_without_a_proof_are_refused(keys, said):
    with pytest.raises(Refused, match=said):
        MaskedSums(**keys).over(Limits(100))


def test_too_few_neighbours_abort():
    with pytest.raises(Aborted, match="neighbours = 4"):
        MaskedSums(neighbours=4).policy(300).graph(300)


def test_on_a_sparse_graph_a_client_insists_on_enough_survivors_of_all():
    """Its own neighbours are enough to unmask it, and a sum of them alone tells more of it."""
    of, encoder = session(9), codec()
    channel = MaskedChannel(of, encoder, Fixed(2, 4, survivors=8))
    sent(channel, of, rows(encoder, 9))
    channel.server.proceed()
    me, context = of.clients.tolist()[0], channel.server._context
    near = tuple(sorted((me, *channel.server._members.near[me])))
    assert len(near) == 5
    with pytest.raises(BadMessage, match="fewer survivors than the threshold"):
        channel.clients[me].handle(wire.Survivors(context, near))


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


# --- what two reviews found ---


def played(policy=None, clients=7, limits=None, **keys):
    of, encoder = session(clients), codec()
    channel = MaskedChannel(
        of, encoder, policy or Fixed(4), **({"limits": limits} if limits else {})
    )
    sent(channel, of, rows(encoder, clients))
    return channel, of.clients.tolist()


def votes_of(channel, voters, survivors):
    """Each voter's true signature on `survivors`."""
    text = wire.Survivors(channel.server._context, survivors).vote_text(
        channel.server._members.agreed
    )
    context = channel.server._context
    return tuple(wire.Vote(context, who, client_identity(who).sign(text)) for who in voters)


def test_valid_votes_for_other_survivors_are_inconsistent():
    """Not garbage, but what other clients truly signed: for a set without the victim."""
    channel, clients = played()
    channel.server.proceed()
    whole, less = tuple(clients), tuple(clients[:-1])
    client = channel.clients[clients[1]]
    client.handle(wire.Survivors(channel.server._context, whole))
    mixed = (*votes_of(channel, clients[:3], whole), *votes_of(channel, clients[3:4], less))
    with pytest.raises(BadMessage, match="inconsistent"):
        client.handle(wire.Votes(channel.server._context, mixed))


def test_votes_under_another_roster_are_inconsistent():
    channel, clients = played()
    channel.server.proceed()
    whole = tuple(clients)
    text = wire.Survivors(channel.server._context, whole).vote_text(b"another roster's hash")
    client = channel.clients[clients[1]]
    client.handle(wire.Survivors(channel.server._context, whole))
    context = channel.server._context
    forged = tuple(wire.Vote(context, who, client_identity(who).sign(text)) for who in clients[:4])
    with pytest.raises(BadMessage, match="inconsistent"):
        client.handle(wire.Votes(context, forged))


def test_a_survivor_that_never_shared_is_refused():
    leaves = [Leaves.BEFORE_SHARING, 0, 0, 0, 0, 0, 0]
    of, encoder = session(7, leaves), codec()
    channel = MaskedChannel(of, encoder, Fixed(4))
    sent(channel, of, rows(encoder, 7))
    channel.server.proceed()
    client = channel.clients[of.clients.tolist()[3]]
    with pytest.raises(BadMessage, match="never shared"):
        client.handle(wire.Survivors(channel.server._context, tuple(of.clients.tolist())))


def test_votes_of_others_than_neighbours_do_not_count():
    of, encoder = session(9), codec()
    channel = MaskedChannel(of, encoder, Fixed(2, 4))
    sent(channel, of, rows(encoder, 9))
    channel.server.proceed()
    me, whole = of.clients.tolist()[0], tuple(of.clients.tolist())
    strangers = [who for who in whole if who not in channel.server._members.near[me]]
    channel.clients[me].handle(wire.Survivors(channel.server._context, whole))
    with pytest.raises(BadMessage, match="wrong voters"):
        channel.clients[me].handle(
            wire.Votes(channel.server._context, votes_of(channel, strangers, whole))
        )


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


def test_a_made_up_small_cohort_is_refused_by_everybody():
    """Of a victim and a colluder, say: clients know how many are expected."""
    small, large = Policy(0.6, 0.1, "lying"), Policy(0.6, 0.1, "lying", size=20)
    assert small.graph(2).threshold == 2
    for clients in (2, 11):
        with pytest.raises(Aborted, match="cohort that was expected"):
            large.graph(clients)
    assert large.graph(12).threshold >= 2 + large.corrupt(12) == 4


def test_the_share_of_survivors_is_kept_on_sparse_graphs_too():
    """Else a neighbourhood of survivors that is cut off would be a sum of its own."""
    policy = Policy(0.9, 0.0, "curious", size=300)
    graph = policy.graph(300)
    assert not graph.complete
    assert graph.survivors == 270
    near = {me: neighbours(b"s" * 32, tuple(range(300)), graph.degree, me) for me in range(300)}
    everybody = set(range(300))
    assert recoverable(graph, near, everybody, set(range(270)) | set(range(270, 300)))
    assert not recoverable(graph, near, everybody, set(range(0, 300, 2)))
    stops = MaskedSums(threshold=0.9, colluders=0.0).over(Limits(300, size=300)).stops
    assert stops(300, 0.5) == 1.0


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


@pytest.mark.parametrize("threat", ["curious", "lying"])
@pytest.mark.parametrize(
    "clients, colluders", [(3, 0.34), (5, 0.2), (10, 0.1), (150, 0.1), (300, 0.1), (10, 0.4)]
)
def test_safety_from_lies_is_promised_where_it_is_proved(threat, clients, colluders):
    """In whole clients, for every cohort that clients would accept."""
    part = MaskedSums(threshold=0.6, colluders=colluders, threat=threat)
    policy = part.policy(clients)
    graphs = []
    for count in range(2, clients + 1):
        with suppress(Aborted):
            graphs.append(policy.graph(count))
    if not graphs or graphs[-1].clients != clients:
        with pytest.raises(Aborted, match="withstands a lying server"):
            part.promise(clients)
        return
    corrupt = floor(colluders * clients + 1e-9)
    assert corrupt >= 1
    proved = all(g.complete and 2 * g.threshold > g.clients + corrupt for g in graphs)
    said = part.promise(clients)
    assert ("also if it lies" in said) == proved
    assert ("if it follows the protocol" in said) != proved
    assert f"at most {corrupt} of them" in said


def test_five_of_whom_one_colludes_are_promised_nothing_against_lies():
    """Three give a secret back: 6 > 6 is false; and a lying server unmasks one of them."""
    part = MaskedSums(threshold=0.6, colluders=0.2)
    assert part.policy(5).graph(5).threshold == 3
    assert "if it follows the protocol" in part.promise(5)
    assert "also if it lies" in MaskedSums(threshold=0.8, colluders=0.2).promise(5)


def test_a_server_that_may_draw_more_than_the_complete_graph_has_no_promise_if_it_lies():
    part = MaskedSums()
    assert "also if it lies" in part.promise(150, Limits(200, size=150))
    assert "if it follows the protocol" in part.promise(150, Limits(600, size=150))
    assert "of 1000 clients 600 have to stay" in part.promise(1000)
    assert MaskedSums(threat="lying").policy(500).graph(500).complete


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
    sums, gone = [], set()

    class Seeing(Wire):
        def __init__(self, spoils):
            self.spoils = spoils

        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Unmask):
                gone.add(message.gone)
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
    assert gone == {1, 2}


# --- what both sides have to agree on ---

SETTINGS = {
    "codec": codec(),
    "policy": Policy(0.6, 0.1, "lying"),
    "limits": Limits(10, 2, tolerance=0.3),
    "layers": Layers(400.0, 0.3),
}
OTHERWISE = {
    "clip": {"codec": replace(codec(), clip=2.0)},
    "step": {"codec": replace(codec(), step=codec().step * 2)},
    "reach": {"codec": replace(codec(), reach=2.0)},
    "noise": {"codec": replace(codec(), noise=SkellamShare(9.0))},
    "kind of noise": {"codec": replace(codec(), noise=DiscreteGaussianShare(3.0))},
    "threshold": {"policy": Policy(0.61, 0.1, "lying")},
    "colluders": {"policy": Policy(0.6, 0.0, "lying")},
    "threat": {"policy": Policy(0.6, 0.1, "curious")},
    "size": {"policy": Policy(0.6, 0.1, "lying", size=6)},
    "admitted": {"policy": Policy(0.6, 0.1, "lying", admitted=6)},
    "admitted, solved for": {"limits": Limits(10, 2, tolerance=0.3, admitted=6)},
    "minimum": {"limits": Limits(10, 3, tolerance=0.3)},
    "capacity": {"limits": Limits(11, 2, tolerance=0.3)},
    "tolerance": {"limits": Limits(10, 2, tolerance=0.4)},
    "hostile": {"limits": Limits(10, 2, tolerance=0.3, hostile=1)},
    "a layer's variance": {"layers": Layers(152.0, 0.3)},
    "layers' tolerance": {"layers": Layers(400.0, 0.2)},
    "no layers": {"layers": None},
}


def guest(settings, session=b"s" * 32):
    """A client with such settings, and what it is invited with by a server that has others."""
    policy, limits, layers = (settings[name] for name in ("policy", "limits", "layers"))
    expected = Expected(1, 0, b"h" * 32, settings["codec"])
    noise = ClientNoise(layers, Keys(b"k" * 32, secret=True)) if layers else None
    directory = {who: client_identity(who).public_key().public_bytes_raw() for who in (3, 8)}
    row = np.zeros(5, dtype=np.int64)
    client = MaskingClient(
        3, client_identity(3), directory, policy, expected, row.copy, limits, noise
    )
    return client, expected.invitation(session, policy, limits, layers)


def test_who_is_configured_alike_is_invited():
    _, invitation = guest(SETTINGS)
    client, _ = guest(dict(SETTINGS))
    assert client.handle(invitation).context == invitation.context


@pytest.mark.parametrize("other", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_who_is_configured_otherwise_completes_no_sum(other):
    _, invitation = guest(SETTINGS)
    client, theirs = guest({**SETTINGS, **other})
    assert theirs.context != invitation.context
    with pytest.raises(BadMessage, match="wrong agreement: the server is configured") as refused:
        client.handle(invitation)
    for compared in (Policy, Limits):
        assert all(field.name in str(refused.value) for field in fields(compared))


def test_another_version_completes_no_sum(monkeypatch):
    facts = {"clip": 1.0, "noise": None}
    here = agreement.agreement(**facts)
    assert (
        here == agreement.agreement(noise=None, clip=np.float64(1)) != agreement.agreement(clip=1)
    )
    monkeypatch.setattr(agreement, "PROTOCOL", 3)
    assert agreement.agreement(**facts) != here
    with pytest.raises(TypeError, match="no form that two parties could compare"):
        agreement.agreement(of=object())


NAMESAKE = make_dataclass("SkellamShare", [("variance", float)], frozen=True)


@pytest.mark.parametrize(
    "one, other",
    [
        (NAMESAKE(4.0), SkellamShare(4.0)),
        ({"SkellamShare": {"variance": 4.0}}, SkellamShare(4.0)),
        ({"number": "4"}, 4),
        (("number", "4"), 4),
        ({"bytes": "04"}, b"\x04"),
        ("4", 4),
        ({1: 2}, {"1": 2}),
        ({"a": 1}, (("a", 1),)),
        ((1, 2), (2, 1)),
        ((), None),
        ((1, (2,)), (1, 2)),
    ],
    ids=str,
)
def test_what_differs_has_another_hash(one, other):
    assert agreement.agreement(of=one) != agreement.agreement(of=other)
    assert agreement.agreement(of=one) == agreement.agreement(of=one)


@dataclass
class Changing:
    variance: float = 4.0


def test_what_may_change_cannot_be_agreed_on():
    with pytest.raises(TypeError, match="a Changing may change after two parties compared it"):
        agreement.agreement(of=Changing())


def test_a_replayed_invitation_begins_another_session():
    """No roster is of two sessions of a client, so no vote or share is."""
    of, encoder = session(4), codec()
    channel = MaskedChannel(of, encoder, Fixed(3))
    me, former = of.clients.tolist()[0], channel.server
    keys = tuple(former._keys[who] for who in sorted(former._keys))
    clients, nonces = tuple(one.sender for one in keys), tuple(one.nonce for one in keys)
    roster = wire.Roster(former._context, clients, nonces, 3, 3, former._graph_seed, keys[1:])
    assert roster.agreed() == former._members.agreed
    again = MaskedChannel(of, encoder, Fixed(3)).clients[me]
    fresh = MaskingClient(me, again._identity, again._directory, *again_of(again))
    advertised = fresh.handle(former.invitation)
    assert advertised.context == former._context
    assert advertised.nonce != keys[0].nonce
    with pytest.raises(BadMessage, match="wrong nonce"):
        fresh.handle(roster)


def again_of(client):
    return client._policy, client._expected, lambda: np.zeros(5, dtype=np.int64), client._limits


def test_a_share_text_is_bound_to_sender_and_receiver():
    text = share_text(3, 8, (5, 6))
    assert read_shares(text, 3, 8, 2) == (5, 6)
    assert read_shares(text, 8, 3, 2) is None
    assert read_shares(text, 3, 8, 3) is None
    assert read_shares(share_text(3, 8, (PRIME, 6)), 3, 8, 2) is None
