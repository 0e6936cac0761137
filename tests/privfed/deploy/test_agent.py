"""A site's answers to whoever asks: its coordinator alone, and nothing beside fixed words."""

from dataclasses import replace

import pytest
from faulty_loopback import DescriptionRequest, Watched
from hospitals import hospitals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.declaration import Declaration
from privfed.deploy.messages.envelope import (
    Envelope,
    Greeter,
    Kind,
    Reply,
    answered,
    greeting,
    read_answer,
)
from privfed.deploy.site import joining
from privfed.secure.frames import BadMessage

RUN = b"r" * 32


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("agent") / "sites")


@pytest.fixture
def agent(made):
    return made.agent(0)


def receipts(made, site=0):
    return made.folder(site).receipts.read_bytes()


def test_a_site_is_recognised_by_its_answer_to_a_greeting(made):
    for site in range(made.count):
        hello = made.greeter.hello()
        assert made.greeter.site_of(hello, made.agent(site).answer(hello)) == site


def test_greetings_are_never_the_same(made):
    assert made.greeter.hello() != made.greeter.hello()


def test_an_answer_to_a_greeting_says_nothing_of_another_one(made, agent):
    hello, other = made.greeter.hello(), made.greeter.hello()
    answer = agent.answer(hello)
    assert made.greeter.site_of(other, answer) is None  # replayed
    for at in range(1, len(answer)):
        forged = answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]
        assert made.greeter.site_of(hello, forged) is None
    for cut in (b"", answer[:-1], answer + b"x", answer[:1], bytes([9]) + answer[1:]):
        assert made.greeter.site_of(hello, cut) is None
    declined = answered(Reply.DECLINED, answer[1:])
    assert made.greeter.site_of(hello, declined) is None


def test_a_key_of_nobody_is_no_site(made):
    stranger, hello = SiteKey.draw("h0"), made.greeter.hello()
    assert made.greeter.site_of(hello, answered(Reply.ANSWERED, greeting(stranger, hello))) is None


def test_a_site_greets_its_own_coordinator_alone(made, agent):
    for other in (
        Greeter(made.federation, SiteKey.draw("c").identity),
        Greeter(replaced(made.federation), made.key.identity),
    ):
        assert agent.answer(other.hello()) == bytes([Reply.UNSIGNED])


def replaced(federation):
    return federation.model_copy(update={"name": "others"})


@pytest.mark.parametrize("kind", Kind)
def test_unsigned_messages_and_those_of_another_federation_are_not_read(made, agent, kind):
    federation = bytes.fromhex(made.federation.digest())
    wrong = (
        Envelope(federation, RUN, kind, b"body"),
        Envelope(federation, RUN, kind, b"body").signed(SiteKey.draw("c").identity),
        Envelope(b"f" * 32, RUN, kind, b"body").signed(made.key.identity),
        replace(Envelope(federation, RUN, kind, b"body").signed(made.key.identity), body=b"other"),
        replace(Envelope(federation, RUN, kind, b"body").signed(made.key.identity), run=b"q" * 32),
    )
    for envelope in wrong:
        assert agent.answer(envelope.encode()) == bytes([Reply.UNSIGNED])
    for other in Kind:
        if other != kind:
            signed = Envelope(federation, RUN, kind, b"body").signed(made.key.identity)
            assert agent.answer(replace(signed, kind=other).encode()) == bytes([Reply.UNSIGNED])


@pytest.mark.parametrize("kind", [Kind.QUESTION, Kind.STEP])
def test_a_run_that_was_not_declared_is_unknown(made, agent, kind):
    assert agent.answer(made.signed(kind, RUN, b"")) == bytes([Reply.MALFORMED])


def test_a_declaration_of_another_run_is_malformed(made, agent):
    declaration, _ = made.declaration()
    message = made.signed(Kind.DECLARATION, RUN, declaration.encode())
    assert agent.answer(message) == bytes([Reply.MALFORMED])
    assert not (made.folder(0).state / RUN.hex()).exists()


def test_a_declaration_has_one_byte_form(made):
    declaration, _ = made.declaration()
    again = Declaration.decode(declaration.encode())
    assert (again.opening, again.text, again.examples) == (
        declaration.opening,
        declaration.text,
        declaration.examples,
    )
    assert again.run == declaration.run
    assert again.encode() == declaration.encode()
    assert again.terms == declaration.terms
    for cut in range(0, len(declaration.encode()), 97):
        with pytest.raises(BadMessage):
            Declaration.decode(declaration.encode()[:cut])


def test_the_opening_of_another_run_is_declined(made, agent):
    """The first line of a ledger cites the run file, and that of another run cites another."""
    first, _ = made.declaration()
    second, _ = made.declaration("client.epochs=3")
    mixed = replace(first, opening=second.opening)
    message = made.signed(Kind.DECLARATION, mixed.run, mixed.encode())
    assert read_answer(agent.answer(message)) == (Reply.DECLINED, b"run")
    edited = replace(first, text=first.text.replace("slowdown = 7.0", "slowdown = 8.0"))
    assert edited.text != first.text
    message = made.signed(Kind.DECLARATION, edited.run, edited.encode())
    assert read_answer(agent.answer(message)) == (Reply.DECLINED, b"run")
    garbled = replace(first, opening=first.opening.replace(b'"open"', b'"oper"'))
    with pytest.raises(BadMessage):
        _ = garbled.run
    message = made.signed(Kind.DECLARATION, first.run, garbled.encode())
    assert agent.answer(message) == bytes([Reply.MALFORMED])


def test_a_restarted_agent_rejoins_from_disk(made):
    agents = [made.agent(site) for site in range(made.count)]
    declared = []

    class Noting(Loopback):
        def send(self, site, data, deadline):
            if Envelope.decode(data).kind == Kind.DECLARATION:
                declared.append(site)
            super().send(site, data, deadline)

    sites = {site: agent.answer for site, agent in enumerate(agents)}
    asking = DescriptionRequest(made, Noting(sites))
    asking.play()
    for site in range(made.count):
        sites[site] = made.agent(site).answer
    asking.play()  # nobody is told again
    assert sorted(declared) == [0, 1, 2]


def test_four_runs_are_in_memory_and_the_others_are_to_be_declared_again(made, agent):
    """Nor is their table read as they are asked: how long that takes would show."""
    runs = []
    for _ in range(6):
        declaration, _ = made.declaration()
        message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
        assert read_answer(agent.answer(message)) == (Reply.ANSWERED, declaration.run)
        runs.append(declaration.run)
        assert [*agent.parties][-len(runs) :] == runs[-4:]
        assert len(agent.parties) <= 4
    for run in runs[:2]:
        assert agent.answer(made.signed(Kind.STEP, run, b"")) == bytes([Reply.MALFORMED])
    assert {*made.agent(0).parties} == {*runs[-4:]}  # after a restart
    party = agent.parties[runs[-1]]
    assert agent.answer(message) == bytes([Reply.ANSWERED]) + runs[-1]
    assert agent.parties[runs[-1]] is party  # the same words again change nothing


@pytest.fixture(scope="module")
def joined(made):
    """An agent amid a run whose first round is over, and the messages of that round."""
    messages = []

    def ask(site, number, data):
        if site == 0:
            messages.append(data)
        return agents[site].answer(data)

    agents = [made.agent(site) for site in range(made.count)]
    asking = DescriptionRequest(made, Watched([agent.answer for agent in agents], ask))
    asking.play()
    return agents[0], asking, messages


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300))
def test_random_bytes_have_a_fixed_answer(made, joined, data):
    before = receipts(made)
    assert joined[0].answer(data) in (bytes([Reply.UNSIGNED]), bytes([Reply.MALFORMED]))
    assert receipts(made) == before


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from([Kind.QUESTION, Kind.STEP, Kind.DECLARATION]),
    body=st.binary(max_size=300),
    data=st.data(),
)
def test_garbage_that_the_coordinator_signed_has_a_fixed_answer(made, joined, kind, body, data):
    """Also what begins as a message that it sent: no receipt is written, and nobody is drawn."""
    agent, asking, messages = joined
    if data.draw(st.booleans()):
        sent = Envelope.decode(data.draw(st.sampled_from(messages))).body
        at = data.draw(st.integers(0, len(sent) - 1))
        body = sent[:at] + data.draw(st.sampled_from([b"", body, sent[at + 1 :]]))
        if body == sent:
            return
    before = receipts(made)
    answer = agent.answer(made.signed(kind, asking.declaration.run, body))
    reply, word = read_answer(answer)
    assert reply in (Reply.MALFORMED, Reply.DECLINED)
    assert word in ((b"",) if reply == Reply.MALFORMED else (b"round", b"question", b"ledger"))
    assert receipts(made) == before


def test_a_failure_quotes_nothing(made, agent, monkeypatch):
    declaration, _ = made.declaration()

    def failing(*_):
        raise ValueError("patient p17 has 3 rows")

    monkeypatch.setattr(joining, "bare_setup", failing)
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    assert agent.answer(message) == bytes([Reply.FAILED])
