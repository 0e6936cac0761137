"""A second client, which shares no code with the first, takes part in sums with it."""

import contextlib
import functools
from dataclasses import dataclass

import numpy as np
import pytest
from masked_sums import Fixed, codec, rows
from second_client import LABELS, Refusal, SecondClient

from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.expected import Expected
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.summation import Aborted

CLIENTS, SECONDS, DROPPED = tuple(range(3, 43, 5)), (8, 13, 28), 18
POLICIES = {"complete": Fixed(6), "circle": Fixed(2, 4)}


@dataclass
class Played:
    """What came of a session: faults by name, and the sum that is right."""

    server: MaskingServer
    faults: list[str]
    expected: np.ndarray

    def total(self):
        words, survivors = self.server.total()
        return words.tolist(), survivors


def played(policy, bits=20, dropped=DROPPED, seconds=SECONDS):
    """A session of eight clients up to the last answer; `dropped` sends no row."""
    encoder, limits = codec(11, bits), Limits(50, 7)
    expected = Expected(4, 1, b"h" * 32, encoder)
    directory, whole = client_directory(CLIENTS), rows(encoder, len(CLIENTS))
    invitation = expected.invitation(b"s" * 32, policy, limits, None)
    server = MaskingServer(invitation, CLIENTS, directory, policy, b"g" * 32, limits)

    def shape(clients):
        graph = policy.graph(clients)
        return graph.degree, graph.threshold, max(graph.survivors, limits.least(clients))

    def made(who, row):
        if who in seconds:
            key = client_identity(who)
            expects = invitation.body()[32:]
            return SecondClient(who, key, directory, shape, expects, row.tolist()).handle
        us = (who, client_identity(who), directory, policy, expected, lambda: row, limits)
        return functools.partial(_answer, MaskingClient(*us))

    clients = dict(zip(CLIENTS, map(made, CLIENTS, whole), strict=True))
    faults, sent = [], dict.fromkeys(CLIENTS, invitation)
    for step in range(5):
        for who, message in sent.items():
            if step < 2 or who != dropped:
                try:
                    server.handle(who, decode(clients[who](encode(message))))
                except (Aborted, Refusal) as refused:
                    faults.append(f"{who}: {refused}")
        sent = server.proceed() if step < 4 else {}
    here = np.array([who != dropped for who in CLIENTS])
    return Played(server, faults, whole[here].sum(0) % 2**bits)


def _answer(client, data):
    return encode(client.handle(decode(data)))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("bits", [16, 20, 33])
@pytest.mark.parametrize("dropped", [18, 13], ids=["of ours", "second"])
def test_sums_of_both_kinds_of_clients_are_exact(policy, bits, dropped):
    sums = played(policy, bits, dropped)
    assert sums.faults == []
    assert sums.total() == (sums.expected.tolist(), 7)


REFUSED = {
    "invitation": ["8: wrong session"],
    "keys": ["8: wrong signature"],
    "roster": ["8: too few", "8 garbled shares"],
    "message": ["8: wrong signature"],
    "commitment": ["8 wrong dealing"],
    "share": ["8: too few", "8 garbled shares"],
    "acknowledged": ["8: wrong hashes"],
    "survivors": ["8: inconsistent"],
    "channel": ["8: too few", "8 garbled shares"],
}


@pytest.mark.parametrize("label, refused", REFUSED.items(), ids=REFUSED)
def test_a_byte_of_a_label_is_missed_by_name(label, refused, monkeypatch):
    _change(label, monkeypatch)
    sums = played(POLICIES["complete"], dropped=None, seconds=(8,))
    with contextlib.suppress(Aborted):
        sums.total()
    faults = [":".join(fault.split(":")[:2]) for fault in sums.faults]
    culprits = [f"{culprit.client} {culprit.reason}" for culprit in sums.server.culprits]
    assert faults + culprits == refused


@pytest.mark.parametrize("label", ["self", "pair"])
def test_masks_of_other_labels_are_as_a_wrong_row(label, monkeypatch):
    """Nobody sees a row, so nobody sees that it has another mask than its secrets give."""
    _change(label, monkeypatch)
    sums = played(POLICIES["complete"], dropped=None, seconds=(8,))
    assert sums.faults == []
    assert sums.total()[0] != sums.expected.tolist()


def _change(label, monkeypatch):
    first, *rest = LABELS[label]
    monkeypatch.setitem(LABELS, label, bytes([first ^ 1, *rest]))


def test_every_label_is_tried():
    assert REFUSED.keys() | {"self", "pair"} == LABELS.keys()
