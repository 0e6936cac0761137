"""Masked sums on a random graph: what goes through, and what client and server refuse by name."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from lanes import every_case
from masked_sums import codec, rows, sent, session, signed, tampering

from privfed.privacy.noise.shares import Layers
from privfed.secure.limits import SENDS, Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.graph import RandomGraph
from privfed.secure.masked.messages import wire
from privfed.secure.summation import Aborted

CLIENTS = 12


@dataclass(frozen=True)
class Dense:
    """A random graph on which nearly all are neighbours, so that hardly anybody has too few."""

    survivors: int = 8
    degree: int = CLIENTS - 2

    def counted_of(self, clients):
        return clients

    def corrupt(self, clients):
        return 1

    def graph(self, clients):
        return RandomGraph(clients, self.degree, 3, self.survivors, isolated=1)


def played(leaves=(), wire=None, limits=None, layers=None, policy=None):
    of, encoder = session(CLIENTS, leaves), codec()
    limits = limits or Limits(CLIENTS)
    channel = MaskedChannel(of, encoder, policy or Dense(), limits, layers, wire)
    return channel, sent(channel, of, rows(encoder, CLIENTS))


def test_a_sum_goes_through_whoever_drops_out():
    leaves = [0, 0, Leaves.BEFORE_SHARING, Leaves.BEFORE_MASKING, Leaves.BEFORE_UNMASKING, *[0] * 7]
    channel, expected = played(leaves)
    total, survivors = channel.total()
    assert channel.faults == []
    assert np.array_equal(total, expected)
    assert survivors == np.isin(leaves, SENDS).sum() == 10


@every_case("minimum, goes", [(0, True), (7, True), (8, False)])
def test_one_vote_more_is_asked_for_than_the_limits_do(minimum, goes):
    """As one voter may be in no sum: eight of them, for seven; the ninth is missing."""
    leaves = [Leaves.BEFORE_UNMASKING] * 4 + [0] * 8
    channel, expected = played(leaves, limits=Limits(CLIENTS, minimum))
    if goes:
        assert np.array_equal(channel.total()[0], expected)
        return
    with pytest.raises(Aborted, match="too few clients agreed on the survivors"):
        channel.total()


def attested(**changes):
    return lambda m: signed(m, attestation=replace(m.attestation, **changes))


UP = {
    "nothing": lambda m: signed(m, attestation=None),
    "in another's name": attested(sender=13),
    "somebody left out": attested(left_out=(13,)),
    "unsigned": attested(signature=bytes(64)),
}


@every_case("change", UP.values(), ids=UP.keys())
def test_a_server_refuses_what_neighbours_would_not_take(change):
    channel, expected = played(wire=tampering(wire.Masked, change))
    total, survivors = channel.total()
    assert channel.faults[0].startswith("not attested")
    assert survivors == CLIENTS - 1
    assert np.array_equal(total, expected - rows(codec(), CLIENTS)[1])


def changed(message, **changes):
    """The first attestation, with such fields."""
    first, *others = message.attested
    return replace(message, attested=(replace(first, **changes), *others))


DOWN = {
    "one is missing": (
        wire.Survivors,
        lambda m: replace(m, attested=m.attested[1:]),
        "not attested",
    ),
    "one twice": (
        wire.Survivors,
        lambda m: replace(m, attested=m.attested[:1] + m.attested[:-1]),
        "not attested",
    ),
    "this client left out": (
        wire.Survivors,
        lambda m: changed(m, left_out=(8,)),
        "not attested",
    ),
    "forged": (wire.Survivors, lambda m: changed(m, left_out=(999,)), "not attested"),
    "votes of neighbours alone": (
        wire.Votes,
        lambda m: replace(m, votes=m.votes[:7]),
        "too few",
    ),
}


@every_case("kind, change, fault", DOWN.values(), ids=DOWN.keys())
def test_a_client_refuses_what_does_not_prove_that_its_neighbours_masked_with_it(
    kind, change, fault
):
    channel, expected = played(wire=tampering(kind, change, upward=False))
    total, survivors = channel.total()
    assert channel.faults[0].startswith(fault)
    assert survivors == CLIENTS, "its row was sent, and others take its mask off"
    assert np.array_equal(total, expected)


def test_who_has_too_few_neighbours_leaves_at_once():
    with pytest.raises(Aborted, match=r"shared their keys.*fewer neighbours than are needed"):
        played(policy=Dense(degree=0))


def test_clients_refuse_noise_in_layers_on_it():
    layers = Layers(50.0, 0.25)
    with pytest.raises(Aborted, match="no proof on a random graph"):
        played(layers=layers)


def test_a_voters_state_is_its_bytes():
    channel, _ = played()
    client = channel.clients[8]
    client.handle(channel.server.proceed()[8])
    data = client.to_bytes()
    made = (client._identity, client._directory, client._policy, client._expected)
    again = MaskingClient.from_bytes(data, *made, client._row, client._limits)
    assert again.to_bytes() == data
    assert again._survivors.attested == client._survivors.attested != ()
