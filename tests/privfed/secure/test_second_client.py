"""A second client, which shares no code with the first, takes part in sums with it."""

import contextlib
from dataclasses import dataclass, replace

import pytest
import second_client
from lanes import every_case, mostly_slow
from masked_sums import Fixed
from mixed_sums import CLIENTS, SECONDS, Table, settings, shape_of
from second_client import LABELS, Refusal

from privfed.privacy.noise.shares import Layers
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.graph import RandomGraph
from privfed.secure.masked.messages import wire
from privfed.secure.masked.messages.roster import Attestation
from privfed.secure.masked.messages.wire import encode
from privfed.secure.masked.policy import Policy
from privfed.secure.summation import Aborted

GONE = {18: 1, 13: 2, 23: 2, 28: 3, 53: 4}
"""From which step on a client is silent: 1 is shares, 2 rows, 3 votes, 4 unmasking."""


@dataclass(frozen=True)
class Drawn(Fixed):
    """A random graph on which nearly all are neighbours, so that nobody has too few."""

    def graph(self, clients):
        degree = clients - 2
        return RandomGraph(clients, degree, self.threshold, self.survivors, isolated=1)


COMPLETE, CIRCLE, RANDOM = Fixed(6, byzantine=1), Fixed(2, 6), Drawn(3, survivors=9)
LAYERS = Layers(50.0, 0.45, kind="discrete_gaussian")
SUMS = {
    "complete": (COMPLETE, 20, None),
    "circle": (CIRCLE, 16, None),
    "random": (RANDOM, 33, None),
    "complete, with layers": (COMPLETE, 33, LAYERS),
    "circle, with layers": (CIRCLE, 20, replace(LAYERS, colluders=1, waste=0.05)),
}


@every_case("policy, bits, layers", SUMS.values(), ids=SUMS)
@every_case("seconds", [SECONDS, CLIENTS], ids=["some", "all"])
def test_sums_are_exact_whoever_drops_out(policy, bits, layers, seconds):
    table = Table(policy, bits, layers, seconds).play(GONE)
    assert table.faults == []
    assert table.total() == table.sum(GONE)


CROWD = tuple(range(201))
POLICIES = {
    "complete": (Policy(0.6, 0.1, "malicious", size=20), CLIENTS, GONE),
    "circle": (Policy(0.7, 0.1, "curious", neighbours=14), CROWD[:30], {4: 2, 5: 3}),
    "random": (Policy(0.9, 0.02, "malicious"), CROWD, {4: 2, 5: 3}),
}


@pytest.mark.parametrize("name", mostly_slow(POLICIES, "complete", "circle"))
def test_sums_of_a_policy_are_exact(name):
    policy, everybody, gone = POLICIES[name]
    limits = Limits(300, 7, tolerance=0.4, size=policy.size)
    table = Table(policy, seconds=everybody[2:8], everybody=everybody, limits=limits).play(gone)
    assert table.faults == []
    assert table.total() == table.sum(gone)


KEYS = [
    {"threshold": 0.6, "colluders": 0.1, "threat": "malicious"},
    {"threshold": 0.9, "colluders": 0.02, "threat": "malicious", "size": 30},
    {"threshold": 0.9, "colluders": 0.02, "threat": "malicious", "layered": True},
    {"threshold": 0.7, "colluders": 0.1, "threat": "curious", "admitted": 9},
    {"threshold": 0.56, "colluders": 0.29, "threat": "curious", "size": 50},
    {"threshold": 0.7, "colluders": 0.07, "threat": "curious", "layered": True},
]


@every_case("keys", KEYS, ids=range(len(KEYS)))
def test_what_settings_make_of_a_cohort_is_the_pages(keys):
    """Also where a fraction of n is a whole number but for the last bits of a double."""
    policy, limits = Policy(**keys), Limits(220, 7, tolerance=0.3)
    layers = second_client.Layers(50.0, 0.1) if policy.layered else None
    page = settings(policy, limits, layers)
    for n in (*range(1, 60), *range(199, 222, 2)):
        try:
            ours = shape_of(policy.graph(n), limits, layers) if n <= limits.capacity else None
        except Aborted:
            ours = None
        try:
            assert page.shape(n) == ours
        except Refusal:
            assert ours is None


def spoilt(who, message):
    """The shares of 3 for 8, garbled on their way."""
    if who != 8 or not isinstance(message, wire.Inbox):
        return message
    (sender, text), *others = message.sealed
    return replace(message, sealed=((sender, bytes([text[0] ^ 1]) + text[1:]), *others))


@pytest.mark.parametrize("layers", [None, LAYERS], ids=["plain", "layers"])
def test_garbled_shares_are_complained_about_and_count_as_gone(layers):
    table = Table(COMPLETE, layers=layers, seconds=CLIENTS).play(change=spoilt)
    assert (table.faults, table.server._complaints[8]) == ([], (3,))
    assert table.total() == table.sum(garbled=1)


def forged(message, **changes):
    first, *others = message.attested
    return {"attested": (replace(first, **changes), *others)}


DEVIATIONS = {
    "another round": (COMPLETE, wire.Invitation, lambda m: {"round": 5}, "wrong sum"),
    "a lower threshold": (COMPLETE, wire.Roster, lambda m: {"threshold": 2}, "wrong threshold"),
    "a neighbour less": (CIRCLE, wire.Roster, lambda m: {"keys": m.keys[1:]}, "wrong neighbours"),
    "unsigned keys": (RANDOM, wire.Roster, lambda m: {"keys": unsigned(m.keys)}, "wrong signature"),
    "an old nonce": (COMPLETE, wire.Roster, lambda m: {"nonces": renewed(m.nonces)}, "wrong nonce"),
    "few shares": (COMPLETE, wire.Inbox, lambda m: few(m, 4), "too few"),
    "no hashes": (COMPLETE, wire.Inbox, lambda m: {"hashes": ()}, "wrong senders"),
    "not a survivor": (COMPLETE, wire.Survivors, lambda m: {"clients": (3,)}, "wrong survivors"),
    "clients that sent no shares": (
        COMPLETE,
        wire.Survivors,
        lambda m: {"clients": CLIENTS},
        "wrong survivors",
    ),
    "others attested": (
        RANDOM,
        wire.Survivors,
        lambda m: {"clients": m.clients[:4]},
        "not attested",
    ),
    "one not attested": (
        RANDOM,
        wire.Survivors,
        lambda m: {"attested": m.attested[1:]},
        "not attested",
    ),
    "left out": (RANDOM, wire.Survivors, lambda m: forged(m, left_out=(8,)), "not attested"),
    "not left out": (RANDOM, wire.Survivors, lambda m: forged(m, left_out=(99,)), "not attested"),
    "few votes": (RANDOM, wire.Votes, lambda m: {"votes": m.votes[:8]}, "too few"),
    "no vote": (COMPLETE, wire.Votes, lambda m: {"votes": unsigned(m.votes)}, "inconsistent"),
}


def unsigned(messages):
    return (replace(messages[0], signature=bytes(64)), *messages[1:])


def renewed(nonces):
    return (bytes(32), *nonces[1:])


def few(inbox, most):
    return {"sealed": inbox.sealed[:most], "hashes": inbox.hashes[:most]}


@every_case("policy, kind, lie, fault", DEVIATIONS.values(), ids=DEVIATIONS)
def test_what_the_page_refuses_is_refused(policy, kind, lie, fault):
    def change(who, message):
        lies = who == 8 and isinstance(message, kind)
        return replace(message, **lie(message)) if lies else message

    table = Table(policy, seconds=(8,)).play({18: 1}, change)
    assert table.faults == [f"8: {fault}"]


def test_whom_a_neighbour_left_out_casts_no_vote():
    table = Table(RANDOM, seconds=CLIENTS)

    def change(who, message):
        if who != 8 or not isinstance(message, wire.Survivors):
            return message
        (first, *others), agreed = message.attested, table.server._members.agreed
        text = Attestation.text(agreed, first.sender, (8,))
        word = Attestation(first.sender, (8,), client_identity(first.sender).sign(text))
        return replace(message, attested=(word, *others))

    assert table.play(change=change).faults == ["8: not attested"]


def test_layers_come_off_by_no_fewer_than_a_client_counts_itself():
    """Told that nobody is gone, it tells seeds of layers as if it had not been told."""

    def change(who, message):
        return replace(message, gone=0) if isinstance(message, wire.Votes) else message

    table = Table(COMPLETE, layers=LAYERS, seconds=CLIENTS).play(GONE, change)
    assert table.faults == []
    assert table.total() == table.sum(GONE)


def test_who_has_refused_or_ended_answers_nothing_more():
    table = Table(COMPLETE).play()
    with pytest.raises(Refusal, match="wrong type"):
        table.clients[8](encode(table.invitation))
    table = Table(COMPLETE)
    for message in (encode(table.invitation)[:-1], encode(table.invitation)):
        with pytest.raises(Refusal):
            table.clients[8](message)


REFUSED = {
    "invitation": (COMPLETE, None, ["8: wrong session"]),
    "keys": (COMPLETE, None, ["8: wrong signature"]),
    "roster": (COMPLETE, None, ["8: too few", "8 garbled shares"]),
    "message": (COMPLETE, None, ["8: wrong signature"]),
    "commitment": (COMPLETE, None, ["8 wrong dealing"]),
    "share": (COMPLETE, None, ["8: too few", "8 garbled shares"]),
    "acknowledged": (COMPLETE, None, ["8: wrong hashes"]),
    "masked with": (RANDOM, None, ["8: not attested"]),
    "survivors": (COMPLETE, None, ["8: inconsistent"]),
    "channel": (COMPLETE, None, ["8: too few", "8 garbled shares"]),
    "layer": (COMPLETE, LAYERS, ["8 wrong dealing"]),
}


@every_case("label, missed", REFUSED.items(), ids=REFUSED)
def test_a_byte_of_a_label_is_missed_by_name(label, missed, monkeypatch):
    policy, layers, refused = missed
    _change(label, monkeypatch)
    table = Table(policy, layers=layers, seconds=(8,)).play()
    with contextlib.suppress(Aborted):
        table.total()
    faults = [":".join(fault.split(":")[:2]) for fault in table.faults]
    culprits = [f"{culprit.client} {culprit.reason}" for culprit in table.server.culprits]
    assert faults + culprits == refused


WRONG_ROWS = {"self": None, "pair": None, "layer draws": LAYERS}


@every_case("label, layers", WRONG_ROWS.items(), ids=WRONG_ROWS)
def test_masks_and_layers_of_other_labels_are_as_a_wrong_row(label, layers, monkeypatch):
    """Nobody sees a row, so nobody sees that it has another mask than its secrets give."""
    _change(label, monkeypatch)
    table = Table(COMPLETE, layers=layers, seconds=(8,)).play()
    assert table.faults == []
    assert table.total() != table.sum()


def _change(label, monkeypatch):
    first, *rest = LABELS[label]
    monkeypatch.setitem(LABELS, label, bytes([first ^ 1, *rest]))


def test_every_label_is_tried():
    """Two are in `vectors.json` alone: on other graphs, and with other ties, most is the same."""
    assert REFUSED.keys() | WRONG_ROWS.keys() | {"graph", "layer ties"} == LABELS.keys()
