"""What client and server of a masked sum refuse, by name, and what that leaves of the sum."""

from dataclasses import replace

import numpy as np
import pytest
from lanes import every_case
from masked_sums import Fixed, codec, rows, sent, session, signed, tampering

from privfed.secure.channel import Wire
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.messages import wire
from privfed.secure.masked.messages.sealed_shares import between, channel_key, read_shares
from privfed.secure.masked.shamir import PRIME
from privfed.secure.primitives import unseal


def resigned(message, **changes):
    """A client's keys, changed and signed by itself."""
    changed = replace(message, **changes)
    return replace(changed, signature=client_identity(changed.sender).sign(changed.text))


def listing(message, clients):
    """A roster of these, each with its nonce."""
    nonces = dict(zip(message.clients, message.nonces, strict=True))
    listed = tuple(nonces.get(client, bytes(32)) for client in clients)
    return replace(message, clients=clients, nonces=listed)


SIGNATURE = "wrong signature"


COMPLAINTS = "wrong complaints"


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
    "unknown type": (wire.Advertise, lambda m: b"PS4\x63" + wire.encode(m)[4:], "wrong type"),
    "other session": (wire.Advertise, lambda m: replace(m, context=b"c" * 32), "wrong session"),
    "out of turn": (
        wire.Advertise,
        lambda m: wire.Vote(m.context, m.sender, b"s" * 64),
        "wrong type",
    ),
    "from a server": (wire.Advertise, lambda m: wire.Survivors(m.context, (3,)), "wrong type"),
    "shares for clients other": (
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
    "hashes for fewer": (wire.Shares, lambda m: signed(m, hashes=m.hashes[1:]), "wrong hashes"),
    "hashes of more layers": (
        wire.Shares,
        lambda m: signed(m, hashes=tuple((who, each + bytes(16)) for who, each in m.hashes)),
        "wrong hashes",
    ),
    "a complaint twice": (wire.Masked, lambda m: signed(m, complaints=(3, 3)), COMPLAINTS),
    "a complaint about itself": (wire.Masked, lambda m: signed(m, complaints=(8,)), COMPLAINTS),
    "help for other hashes": (
        wire.Unmask,
        lambda m: signed(m, acknowledged=bytes(32)),
        "wrong hashes",
    ),
    "short row": (wire.Masked, lambda m: signed(m, words=m.words[:-1]), SHORT),
    "long row": (wire.Masked, lambda m: signed(m, words=bytes(m.words) * 2), SHORT),
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


@every_case("kind, change, fault", UP.values(), ids=UP.keys())
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
    assert channel.faults == ["duplicate key: a public key is in use already"]
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
    "duplicate keys": (
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
    "hashes of fewer": (wire.Inbox, lambda m: replace(m, hashes=m.hashes[1:]), "wrong senders"),
    "shares of a stranger": (
        wire.Inbox,
        lambda m: replace(m, sealed=((999, m.sealed[0][1]), *m.sealed[1:])),
        "wrong senders",
    ),
    "duplicate shares": (
        wire.Inbox,
        lambda m: replace(m, sealed=(m.sealed[0], *m.sealed)),
        "wrong senders",
    ),
    "hardly any shares": (
        wire.Inbox,
        lambda m: replace(m, sealed=m.sealed[:2], hashes=m.hashes[:2]),
        "too few",
    ),
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


@every_case("kind, change, fault", DOWN.values(), ids=DOWN.keys())
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
