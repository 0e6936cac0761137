"""Who lies to a committee is proved to by its own messages, and nobody who does not lie ever is."""

import contextlib
from dataclasses import replace

import pytest
from committee_sums import Changing, channel, garbled, named, spoiled
from masked_sums import codec, rows, sent

from privfed.secure.committee.evidence import (
    UnusableDealing,
    WrongOpening,
    committee_accusation,
    proves_violation,
)
from privfed.secure.committee.messages import Contribution, Disclosure, SignedDealing
from privfed.secure.frames import Reader
from privfed.secure.identities import client_identity
from privfed.secure.summation import Aborted


def other_secrets(message):
    """A dealing whose shares give other secrets than it commits to."""
    corrections = bytes(len(message.dealt.corrections))
    return replace(message, dealt=replace(message.dealt, corrections=corrections))


BYZANTINE = 13
"""A member in rounds 1 and 2; 23 is one in round 1."""

DEVIATIONS = {"wrong share": (Disclosure, spoiled), "wrong dealing": (Contribution, other_secrets)}


class Answers(Changing):
    """Also remembers what arrived of whom."""

    def __init__(self, *lie):
        super().__init__(*lie)
        self.messages = {}

    def carry(self, client, data, upward):
        arrived = super().carry(client, data, upward)
        if upward:
            self.messages[client, type(self.read(arrived))] = self.read(arrived)
        return arrived


def played(reason=None, round=1):
    """A sum with a client that lies, and what was answered."""
    lie = (*DEVIATIONS[reason], {BYZANTINE}) if reason else ()
    wire = Answers(*lie)
    ready = ended(wire, round=round)
    return ready, wire.messages


def ended(wire, **keys):
    """A sum that was opened or has aborted."""
    ready, of = channel(wire=wire, **keys)
    sent(ready, of, rows(codec(), len(of.clients)))
    with contextlib.suppress(Aborted):
        ready.total()
    return ready


@pytest.fixture(scope="module", params=DEVIATIONS)
def accused(request):
    ready, _ = played(request.param)
    (culprit,) = ready.server.culprits
    return culprit, ready.server._terms


def test_a_lie_is_proved_to_who_knows_the_run(accused):
    culprit, terms = accused
    assert (culprit.client, culprit.round, culprit.exchange) == (BYZANTINE, 1, 0)
    assert proves_violation(culprit, terms)
    assert proves_violation(culprit, replace(terms, round=7, model_hash=bytes(32)))


def test_nothing_else_is_proved_with_it(accused):
    culprit, terms = accused
    others = (
        replace(culprit, client=23),
        replace(culprit, round=2),
        replace(culprit, exchange=1),
        *(
            replace(culprit, reason=reason)
            for reason in (*DEVIATIONS, "garbled shares")
            if reason != culprit.reason
        ),
        replace(culprit, proof=culprit.proof[:-1]),
        replace(culprit, proof=culprit.proof + b"x"),
        replace(culprit, proof=b""),
    )
    assert not any(proves_violation(other, terms) for other in others)
    policy = replace(terms.policy, members=7)  # by which the members have other places
    assert not proves_violation(culprit, replace(terms, policy=policy))
    assert not proves_violation(culprit, replace(terms, book=replace(terms.book, run=bytes(32))))


def test_a_proof_with_a_changed_byte_is_none(accused):
    culprit, terms = accused
    for at in range(0, len(culprit.proof), 41):
        changed = culprit.proof[:at] + bytes([culprit.proof[at] ^ 1]) + culprit.proof[at + 1 :]
        assert not proves_violation(replace(culprit, proof=changed), terms)


def test_no_run_of_messages_of_honest_clients_proves_a_lie():
    """Those of one sum with each other, with other survivors, and with those of another sum."""
    (ready, here), (_, there) = (played(round=round) for round in (1, 2))
    server = ready.server
    kinds = [kind for who, kind in here if who == BYZANTINE]
    assert {Contribution, Disclosure} <= {*kinds}
    ballot, disclosure = (here[BYZANTINE, kind] for kind in kinds[1:])
    other = there.get((BYZANTINE, Disclosure), disclosure)
    survivors = server._survivors
    dealing = here[BYZANTINE, Contribution].dealing
    dealt = replace(dealing.dealt, corrections=b"")  # no server takes so little
    short = replace(dealing, dealt=dealt).signed(client_identity(BYZANTINE))
    texts = {
        place: dict(here[member, Disclosure].shares)[BYZANTINE]
        for place, member in enumerate(server._members, start=1)
    }
    four, moved = tuple(texts.items())[:4], tuple(zip((2, 1, 3, 4), texts.values(), strict=False))
    claims = [
        (WrongOpening(ballot, disclosure), survivors),
        (WrongOpening(ballot, disclosure), survivors[1:]),
        (WrongOpening(ballot, replace(other, context=ballot.context)), survivors),
        (WrongOpening(ballot, here[23, Disclosure]), survivors),
        (WrongOpening(ballot, spoiled(disclosure)), survivors),
        (UnusableDealing(dealing, four), survivors),
        (UnusableDealing(dealing, moved), survivors),
        (UnusableDealing(dealing, four[:3]), survivors),
        (UnusableDealing(replace(dealing, dealt=here[23, Contribution].dealt), four), survivors),
        (UnusableDealing(there[BYZANTINE, Contribution].dealing, four), survivors),
        (UnusableDealing(short, four), survivors),
    ]
    for evidence, names in claims:
        assert not proves_violation(
            committee_accusation(evidence, server.call, names), server._terms
        )


def test_a_dealing_is_signed_with_its_row_and_shown_without(monkeypatch):
    ready, answers = played()
    message = answers[BYZANTINE, Contribution]
    public = ready.server._terms.book.identities[BYZANTINE]
    assert message.signed_by(public)
    body = message.dealing.body()
    shown = SignedDealing.read(message.context, Reader(body))
    assert shown == message.dealing
    assert shown.signed_by(public)
    assert message.words not in body
    for changed in ({"words": bytes(len(message.words))}, {"sealed": message.sealed[1:]}):
        assert not replace(message, **changed).signed_by(public)


def test_who_is_proved_to_lie_is_accused_before_its_round_ends():
    heard = []
    for kind, change in (*DEVIATIONS.values(), (Contribution, garbled(3))):
        ended(Changing(kind, change, {BYZANTINE}), accuse=heard.append)
    assert [culprit.reason for culprit in heard] == [*DEVIATIONS, "garbled shares"]
    assert [bool(culprit.proof) for culprit in heard] == [True, True, False]
    assert {culprit.client for culprit in heard} == {BYZANTINE}


@pytest.mark.parametrize("count", [2, 3])
def test_hostile_clients_may_complain_beside_those_who_collude(count):
    """Of 9 clients 1 may collude and 1 is hostile: two complaints name nobody."""
    ready = ended(Changing(Contribution, garbled(count), {BYZANTINE}), byzantine=1)
    assert named(ready) == ({BYZANTINE: "garbled shares"} if count == 3 else {})
