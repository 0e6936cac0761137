"""Clients who lie to a server of masked sums: they change no sum, and who stops one is named."""

from dataclasses import replace

import numpy as np
import pytest
from byzantine_clients import DEVIATIONS, ByzantineBehaviour, Trial, drawn, idealise, played
from lanes import every_case
from masked_sums import Fixed, session

from privfed.privacy.noise.shares import Layers
from privfed.secure.identities import client_directory
from privfed.secure.limits import Limits
from privfed.secure.masked import evidence, unmasking
from privfed.secure.masked.evidence import WrongDealing, WrongShare, proves

DIRECTORY = client_directory(session(12).clients.tolist())


class Broken(AssertionError):
    """A promise that was not kept."""


def judge(trial, outcome):
    """The sum of all who sent, or a culprit; each with a proof, or more complaints than liars."""
    if outcome.total != outcome.expected:
        raise Broken("a wrong sum")
    if outcome.total is None and not outcome.culprits:
        raise Broken(f"nobody is named: {outcome.why}")
    byzantine = trial.policy.byzantine
    for culprit in outcome.culprits:
        if culprit.client not in trial.byzantine:
            raise Broken(f"an honest client is named: {culprit.reason}")
        if not proves(culprit, DIRECTORY) and culprit.complaints <= byzantine:
            raise Broken("named without a proof")
    return outcome


def tried(seeds):
    """Rounds until a sum comes out, of each trial, without those named before: at most one each."""
    rounds = dict.fromkeys(seeds, 0)
    for seed in seeds:
        trial, named = drawn(seed), set()
        for _ in range(len(trial.byzantine) + 1):
            rounds[seed] += 1
            without = replace(trial, leave={**trial.leave, **dict.fromkeys(named, 1)})
            outcome = judge(without, played(without))
            if outcome.total is not None:
                break
            if not {culprit.client for culprit in outcome.culprits} - named:
                raise Broken("nobody new is named")
            named |= {culprit.client for culprit in outcome.culprits}
        else:
            raise Broken("no progress")
    return rounds.values()


@pytest.fixture
def ideal(monkeypatch):
    idealise(monkeypatch)


@pytest.mark.parametrize("sessions", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_a_sum_comes_out_or_a_liar_is_named_and_the_next_round_goes_on(ideal, sessions):
    rounds = tried(range(sessions))
    assert 0.2 < sum(count > 1 for count in rounds) / sessions < 0.7


def test_so_it_is_with_the_real_primitives():
    assert sum(count > 1 for count in tried(range(12))) > 1


@pytest.mark.slow
def test_so_it_is_in_five_thousand_trials(ideal):
    assert sum(count > 1 for count in tried(range(100, 5100))) > 1000


def trial(deviations, clients=8, threshold=4, byzantine=2, layers=None, leave=None, seed=0):
    """A sum of which the first `byzantine` clients tell these lies, each to anybody at random."""
    rng, ids = np.random.default_rng(seed), session(clients).clients.tolist()
    who = {client: ByzantineBehaviour(deviations, rng) for client in ids[:byzantine]}
    limits = Limits(50, tolerance=layers.tolerance if layers else 1.0)
    policy = Fixed(threshold, byzantine=max(byzantine, 1))
    return Trial(clients, policy, who, leave or {}, layers, limits)


REASONS = {
    "wrong shares": {"wrong share"},
    "other layers": {"wrong share"},
    "wrong seed": {"wrong dealing"},
    "wrong layers": {"wrong dealing"},
    "inconsistent seed": {"wrong dealing"},
    "inconsistent layer": {"wrong dealing"},
    "wrong hashes": {"garbled shares"},
    "garbled texts": {"garbled shares"},
}


@every_case("lie", DEVIATIONS)
def test_each_lie_alone(lie):
    """What it is called, where it is called anything: who only stays away is not named."""
    layers = Layers(50.0, 0.5)
    reasons = set()
    for seed in range(4):
        one = trial((lie,), byzantine=1, layers=layers, seed=seed)
        reasons |= {culprit.reason for culprit in judge(one, played(one)).culprits}
    assert reasons == REASONS.get(lie, set())


@pytest.mark.parametrize("lie", ["wrong key", "inconsistent key"])
def test_a_wrong_mask_key_is_proved_where_its_client_sends_no_row(lie):
    one = trial((lie, "no Masked"), byzantine=1)
    assert [culprit.reason for culprit in judge(one, played(one)).culprits] == ["wrong dealing"]


def test_as_many_wrong_shares_as_are_not_needed_are_corrected():
    """Of eight replies with a threshold of five, three are all wrong."""
    one = trial(("wrong shares",), threshold=5, byzantine=3)
    for byzantine_client in one.byzantine.values():
        byzantine_client.some = set
    outcome = judge(one, played(one))
    assert outcome.total is not None
    assert {culprit.client for culprit in outcome.culprits} == set(one.byzantine)


def test_inconsistent_dealings_are_corrected_as_far_as_a_word_can_be():
    """Of eight shares two are wrong, and four give the seed."""
    one = trial(("inconsistent seed",), byzantine=1)
    for wrong, comes in ((2, True), (3, False)):
        next(iter(one.byzantine.values())).some = lambda places, wrong=wrong: set(places[:wrong])
        outcome = judge(one, played(one))
        assert (outcome.total is not None) == comes
        assert len(outcome.culprits) == 1


def complainers(byzantine=2, policy=None):
    """As many as may lie complain about all others, and deal so badly that the round aborts."""
    one = trial(("complaints", "wrong seed"), byzantine=byzantine)
    for byzantine_client in one.byzantine.values():
        byzantine_client.some = set
    return replace(one, policy=policy or one.policy)


@every_case(
    ("byzantine", "policy"),
    [
        pytest.param(2, None, id="fewer-than-open"),
        pytest.param(4, Fixed(3, byzantine=4), id="as-many-as-open"),
        pytest.param(4, Fixed(2, degree=4, byzantine=4), id="as-many-neighbours-as-open"),
    ],
)
def test_as_many_complaints_as_there_may_be_liars_name_nobody(byzantine, policy):
    """Also where these are enough to open a secret, as clients that are hostile may be."""
    one = complainers(byzantine, policy)
    culprits = judge(one, played(one)).culprits
    assert {culprit.reason for culprit in culprits} == {"wrong dealing"}


def test_of_a_sum_that_comes_out_no_complaints_name_anybody(monkeypatch):
    """More than there may be liars would else leave honest clients out, in a round without harm."""
    a_complaint_too_few(monkeypatch)
    one = trial(("complaints",))
    for byzantine_client in one.byzantine.values():
        byzantine_client.some = set
    assert judge(one, played(one)).culprits == ()


def test_a_complaint_about_more_than_may_lie_keeps_no_layer():
    """Else one client would leave every layer of everybody's noise in the sum."""
    complaining = trial(("complaints",), byzantine=1, layers=Layers(50.0, 0.5))
    ((client, byzantine_client),) = complaining.byzantine.items()
    byzantine_client.some = set
    outcome = judge(complaining, played(complaining))
    assert {client, *outcome.server._complaints[client]} == outcome.server._senders
    assert (outcome.total is not None, outcome.server._gone) == (True, 0)


def a_complaint_too_few(monkeypatch):
    whole = evidence.Blame.count
    monkeypatch.setattr(
        evidence.Blame,
        "count",
        lambda self, lists: whole(replace(self, corrupt=self.corrupt - 1), lists),
    )


def proofs_of_nothing(monkeypatch):
    """Any share is taken for a wrong one."""
    monkeypatch.setattr(unmasking, "share_hash", lambda *_: b"")


def any_hash(monkeypatch):
    """A share is not compared with the hash that its dealer signed."""
    monkeypatch.setattr(unmasking, "hash_of", lambda *_: b"")
    proofs_of_nothing(monkeypatch)


def anything(monkeypatch):
    """Whatever shares give is taken for the secret."""
    monkeypatch.setattr(unmasking, "gives_its_secret", lambda *_: True)


@every_case(
    "fault, deviations",
    [
        (a_complaint_too_few, ("complaints", "wrong seed")),
        (proofs_of_nothing, ("no Vote",)),
        (any_hash, ("wrong shares",)),
        (anything, ("wrong seed",)),
    ],
)
def test_the_judge_finds_a_server_with_a_fault(monkeypatch, fault, deviations):
    fault(monkeypatch)
    one = trial(deviations)
    for byzantine_client in one.byzantine.values():
        byzantine_client.some = set
    outcome = played(one)
    with pytest.raises(Broken):
        judge(one, outcome)


# --- proofs ---


@pytest.fixture(scope="module")
def proved():
    """Two proofs, and the server that made them."""
    one = trial(("wrong shares", "inconsistent seed"), byzantine=1)
    wrong_dealing = played(one)
    other = trial(("wrong shares",), byzantine=1)
    return wrong_dealing, played(other)


def test_a_proof_is_of_one_client_round_exchange_and_reason(proved):
    for outcome in proved:
        (culprit,) = outcome.culprits
        assert proves(culprit, DIRECTORY)
        others = (
            replace(culprit, client=8),
            replace(culprit, round=2),
            replace(culprit, exchange=1),
            replace(culprit, reason="garbled shares"),
            replace(culprit, proof=culprit.proof[:-1]),
            replace(culprit, proof=culprit.proof + b"x"),
            replace(culprit, proof=b""),
        )
        assert not any(proves(other, DIRECTORY) for other in others)
        assert not proves(culprit, {})


def test_no_byte_of_a_proof_may_be_another(proved):
    for outcome in proved:
        (culprit,) = outcome.culprits
        for at in range(0, len(culprit.proof), 7):
            changed = culprit.proof[:at] + bytes([culprit.proof[at] ^ 1]) + culprit.proof[at + 1 :]
            assert not proves(replace(culprit, proof=changed), DIRECTORY)


def framed(outcome, who):
    """All that a lying server could show of an honest client, with what it signed."""
    server = outcome.server
    roster, agreed = server._blame.roster, server._members.agreed
    dealing, unmask = server._dealings[who], server._unmasks[who]
    shown = replace(roster, keys=(server._keys[who],))
    handed = unmasking.handed(server._dealings, who)
    others = tuple((dealer, bytes(len(hashes))) for dealer, hashes in handed)
    shares = [
        (helper, value)
        for helper, answer in server._unmasks.items()
        for dealer, which, value in answer.shares
        if (dealer, which) == (who, 0)
    ][: roster.threshold]
    wrong = tuple((helper, value ^ 1) for helper, value in shares)
    stranger = next(other for other in server._keys if other != who)
    yield WrongShare(unmask, handed), shown
    yield WrongShare(unmask, others), shown
    yield WrongShare(replace(unmask, seeds=((stranger, 5),)), handed), shown
    yield WrongDealing(dealing, 0, tuple(shares)), shown
    yield WrongDealing(dealing, 1, tuple(shares)), shown
    yield WrongDealing(dealing, 0, wrong), shown
    yield WrongDealing(dealing, 0, tuple(shares[1:])), shown
    yield WrongDealing(dealing, 0, ()), replace(shown, threshold=0)
    yield WrongDealing(dealing, 0, tuple(shares[1:])), replace(shown, threshold=len(shares) - 1)
    yield WrongDealing(dealing, 0, tuple(shares)), replace(shown, clients=shown.clients[::-1])
    yield WrongDealing(dealing, 0, tuple(shares)), roster
    yield WrongDealing(replace(dealing, commitment=bytes(32)), 0, tuple(shares)), shown
    assert agreed == roster.agreed()


def test_nobody_proves_that_an_honest_client_lies(proved):
    for outcome in proved:
        honest = outcome.server._unmasks.keys() - {culprit.client for culprit in outcome.culprits}
        assert len(honest) == 7
        for who in honest:
            for number, (proof, roster) in enumerate(framed(outcome, who)):
                assert not proof.holds(roster, DIRECTORY), number


def test_a_share_of_another_session_under_the_same_invitation_proves_nothing():
    """A replayed invitation: what a client signed in two sessions does not go together."""
    one = trial(())
    first, second = played(one), played(one)
    who = one.of.clients[3].item()
    roster = replace(first.server._blame.roster, keys=(first.server._keys[who],))
    dealing, answers = second.server._dealings[who], second.server._unmasks
    shares = [(helper, dict(answer.seeds)[who]) for helper, answer in answers.items()][
        : roster.threshold
    ]
    assert not WrongDealing(dealing, 0, tuple(shares)).holds(roster, DIRECTORY)
    handed = unmasking.handed(first.server._dealings, who)
    assert not WrongShare(answers[who], handed).holds(roster, DIRECTORY)
