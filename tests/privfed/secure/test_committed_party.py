"""Parties of a masked sum that are killed at any moment go on, or have dropped out; never twice."""

import contextlib
import functools
import random
from dataclasses import replace

import pytest
from committed_parties import STEPS, Killed, Setting, Site, everybody, played
from lanes import every_case

from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage
from privfed.secure.masked import client as masking_client
from privfed.secure.masked.client_state import BadState
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.messages import wire
from privfed.secure.masked.shamir import share
from privfed.secure.summation import Aborted

LAYERED = Setting(layers=Layers(50.0, 0.25, 1))
ROW, MASKED = 3, 4
"""The commits before the row is asked for, and with the masked row."""
LOST = {(ROW, "after"), (MASKED, "before")}
MOMENTS = [(commit, when) for commit in range(1, 7) for when in ("before", "after")]
MOMENTS += [(name, "answered") for name in STEPS]


def seeded(monkeypatch):
    """The same secrets in the same order, in this test alone."""
    rng = random.Random(5)
    drawn = functools.partial(share, below=rng.randrange)
    monkeypatch.setattr(masking_client, "random_key", lambda: bytearray(rng.randbytes(32)))
    monkeypatch.setattr(masking_client, "share", drawn)


@every_case("leave", [(), ((8, "Inbox"),), ((8, "Survivors"),), ((8, "Roster"),)])
@every_case("setting", [Setting(), LAYERED], ids=["bare", "layers"])
def test_parties_that_are_rebuilt_before_every_message_say_the_same(monkeypatch, setting, leave):
    """All messages and the noised sum, bit for bit."""
    outcomes = []
    for dies in ({}, {site: {"always": 1} for site in setting.ids}):
        seeded(monkeypatch)
        sites = everybody(setting, dies)
        outcomes.append(played(setting, sites, leave))
        masks = [(8, "Roster"), (8, "Inbox")]
        assert sites[8].rows == (not set(masks) & set(leave))
        assert all(site.rows == 1 for site in sites.values() if site.me != 8)
    first, second = outcomes
    assert first.total is not None
    assert first == second
    assert not first.faults


@every_case("commit, when", MOMENTS, ids=str)
@every_case("setting", [Setting(), LAYERED], ids=["bare", "layers"])
def test_a_party_that_is_killed_goes_on_or_has_dropped_out(setting, commit, when):
    """Alone, and with another that drops out: then too few are left where its row was lost."""
    lost = (commit, when) in LOST
    for leave in ((), ((23, "Inbox"),)):
        sites = everybody(setting, {8: {commit: when}})
        outcome = played(setting, sites, leave)
        assert sites[8].deaths == 1
        assert sites[8].rows == (0 if (commit, when) == (ROW, "after") else 1)
        gone = {who for who, _ in leave} | ({8} if lost else set())
        assert ["row lost" in str(fault) for fault in outcome.faults[:1]] == [True] * lost
        if len(gone) == 2:
            assert outcome.total is None
            continue
        stay = [who for who in setting.ids if who not in gone]
        assert outcome.survivors == len(stay)
        if not setting.layers:
            assert outcome.total == setting.sum_of(stay).tolist()


def test_layers_that_are_taken_off_are_the_same_whoever_was_killed():
    """The noise of who went on is what it would have been."""
    calm = played(LAYERED, everybody(LAYERED), [(23, "Inbox")])
    dies = {3: {2: "after"}, 8: {"Roster": 1}, 13: {MASKED: "after"}, 18: {5: "before", 6: "after"}}
    sites = everybody(LAYERED, dies)
    stormy = played(LAYERED, sites, [(23, "Inbox")])
    assert sum(site.deaths for site in sites.values()) == 5
    assert stormy.total == calm.total is not None


def test_a_repeated_question_has_the_same_answer_in_every_life():
    answers = []

    def again(site, question):
        first = site.party.handle(question)
        assert site.started().handle(question) == first
        site.party = site.started()
        commits = site.party.commits
        answers.append(site.party.handle(question))
        assert (site.party.commits, len(site.states)) == (commits, commits)

    sites = everybody(LAYERED)
    outcome = played(LAYERED, sites, between=again)
    assert [*outcome.answers.values()] == answers
    assert len(answers) == 25
    assert all(site.rows == 1 for site in sites.values())


def others(site, question):
    """Other messages of the same step, which a party that did not answer yet might take."""
    message = wire.decode(question)
    match message:
        case wire.Invitation():
            yield replace(message, session=b"t" * 32)
        case wire.Roster():
            yield replace(message, seed=b"t" * 32)
        case wire.Inbox():
            yield replace(message, sealed=message.sealed[1:])
        case wire.Survivors():
            yield from (
                replace(message, clients=tuple(c for c in message.clients if c != gone))
                for gone in message.clients
                if gone != site.me
            )
        case wire.Votes():
            yield replace(message, votes=message.votes[1:])


def test_another_question_of_a_step_that_was_answered_is_refused_and_changes_nothing():
    refused = 0

    def other(site, question):
        nonlocal refused
        site.party = None
        for message in others(site, question):
            for party in (site.started(), site.party or site.started()):
                site.party = party
                with pytest.raises(BadMessage, match="answered already"):
                    party.handle(wire.encode(message))
                refused += 1
        for nonsense in (b"", question[:-1], b"PS9" + question):
            with pytest.raises(BadMessage, match="wrong"):
                site.party.handle(nonsense)
        assert len(site.states) == site.party.commits

    sites = everybody(Setting())
    outcome = played(Setting(), sites, between=other)
    assert refused == 2 * (5 + 5 + 5 + 20 + 5)
    assert outcome.total == Setting().sum_of(Setting().ids).tolist()


def test_questions_of_former_steps_are_refused_and_harm_nobody():
    asked = {}

    def former(site, question):
        for earlier in asked.setdefault(site.me, []):
            with pytest.raises(BadMessage, match="answered already"):
                site.party.handle(earlier)
        asked[site.me].append(question)

    outcome = played(Setting(), everybody(Setting()), between=former)
    assert outcome.total == Setting().sum_of(Setting().ids).tolist()


def test_who_refused_a_message_has_left_in_every_life():
    """A roster that the server changed; the true one comes too late."""
    setting, site = Setting(), Site(Setting(), 8)
    outcome = played(setting, everybody(setting))
    site.ask(outcome.questions[8, "Invitation"])
    last, true = site.states[-1], outcome.questions[8, "Roster"]
    with pytest.raises(BadMessage, match="wrong nonce"):
        site.ask(true)  # of other keys than this life's
    for party in (site.party, site.started()):
        with pytest.raises(BadMessage, match="answered already"):
            party.handle(true)
        assert party.handle(outcome.questions[8, "Invitation"]), "what left may go again"
    assert len(site.states[-1]) < len(last), "without secrets"


def test_an_ended_party_answers_nothing_in_any_life():
    """Neither what it answered last nor another step: its state says so to whoever reads it."""
    setting = Setting()
    sites = everybody(setting)
    outcome = played(setting, sites)
    for step in range(len(STEPS)):
        site = Site(setting, 8)
        for name in STEPS[: step + 1]:
            with contextlib.suppress(Aborted):  # of other keys than this life's
                site.ask(outcome.questions[8, name])
        site.party.end()
        restored = site.started()
        assert restored.commits == site.party.commits == len(site.states)
        for party in (site.party, restored):
            for name in STEPS:
                with pytest.raises(BadMessage, match="answered already"):
                    party.handle(outcome.questions[8, name])


def test_a_party_whose_state_is_not_stored_answers_nothing():
    setting = Setting()
    invitation, full = wire.encode(setting.server().invitation), [True]
    stored = []

    def store(data):
        if full:
            raise OSError("no space")
        stored.append(data)

    party = CommittedParty(setting.client(8, None), store)
    with pytest.raises(OSError, match="no space"):
        party.handle(invitation)
    full.clear()
    with pytest.raises(BadMessage, match="cut off"):
        party.handle(invitation)
    assert not stored
    assert CommittedParty(setting.client(8, None), store).handle(invitation)
    assert len(stored) == 1


def test_a_row_that_fails_ends_the_session_for_good():
    class Failing(Site):
        def _row(self):
            super()._row()
            raise ValueError("no row")

    setting = Setting()
    sites = {**everybody(setting), 8: Failing(setting, 8)}
    failed = []

    def ask(question):
        try:
            return Site.ask(sites[8], question)
        except ValueError as error:
            failed.append(error)
            raise BadMessage("failed", "its row") from None

    sites[8].ask = ask
    outcome = played(setting, sites)
    assert outcome.total == setting.sum_of(set(setting.ids) - {8}).tolist()
    assert len(failed) == sites[8].rows == 1
    with pytest.raises(BadMessage, match="answered already"):
        sites[8].started().handle(outcome.questions[8, "Inbox"])


def test_an_old_state_votes_again_unless_its_owner_wrote_down_how_far_it_came():
    """What nobody can prevent who holds nothing but the copy: so nothing restores one."""
    setting = Setting()
    sites = everybody(setting)
    outcome = played(setting, sites)
    site, survivors = sites[8], wire.decode(outcome.questions[8, "Survivors"])
    fewer = wire.encode(replace(survivors, clients=survivors.clients[:-1]))
    old, answered = site.states[MASKED - 1], MASKED + 1
    client = setting.client(8, None, old)
    with pytest.raises(BadState, match="stale: the state has 4 commits, but at least 5"):
        CommittedParty(client, [].append, answered)
    vote = wire.decode(CommittedParty(client, [].append, MASKED).handle(fewer))
    first = wire.decode(outcome.answers[8, "Survivors"])
    assert vote.signature != first.signature
    party = CommittedParty(setting.client(8, None, site.states[answered - 1]), [].append, answered)
    with pytest.raises(BadMessage, match="answered already"):
        party.handle(fewer)


def test_the_moments_above_are_all_there_are():
    """A party that lives through a sum commits six times, and its states are one after another."""
    site = everybody(Setting())[8]
    played(Setting(), {**everybody(Setting()), 8: site})
    assert len(site.states) == len(set(site.states)) == 6
    with pytest.raises(Killed):
        Site(Setting(), 8, {1: "before"}).started().handle(
            wire.encode(Setting().server().invitation)
        )
