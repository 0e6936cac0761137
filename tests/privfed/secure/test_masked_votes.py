"""Who learns what of a masked sum: secrets below the threshold, and votes that do not agree."""

import numpy as np
import pytest
from masked_sums import Fixed, codec, played, rows, sent, session

from privfed.secure.channel import Wire
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.limits import Leaves
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.messages import wire
from privfed.secure.masked.messages.sealed_shares import pair_key, read_shares, self_key, share_text
from privfed.secure.masked.policy import Policy
from privfed.secure.masked.shamir import PRIME, reconstruct
from privfed.secure.primitives import Expander, KeyPair


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


@pytest.mark.parametrize("policy", [Fixed(4), Policy(0.6, 0.1, "malicious")])
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
    with pytest.raises(BadMessage, match="clients that sent no shares"):
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
