"""A federation over a loop-back carrier: sites answer by bytes alone, as the simulator sums."""

import contextlib
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hospitals import POLICY, data_text, hospitals
from lanes import every_case, mostly_slow
from small import model

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.core.errors import Busy, Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.core.vector import Layout
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.coordinate import Reach
from privfed.deploy.coordinator.coordinator import Coordinator
from privfed.deploy.coordinator.sum_session import start_session
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.agent import agent_of, open_member
from privfed.deploy.site.run_party import FixedTime, RunParty
from privfed.deploy.site.site_work import SiteWork
from privfed.round.round import run_round
from privfed.run.population import load_empty
from privfed.run.prepare import prepare
from privfed.run.train import resume, train
from privfed.run.world import Elsewhere, shared_world
from privfed.secure.frames import Reader, sized
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.primitives import KeyPair, random_key
from privfed.secure.summation import Aborted
from privfed.store.run_directory import RunDirectory

SITES, PATIENTS, ROUNDS = 5, 40, 4
KEYS_OF_SITES = {f"h{site}": SiteKey.draw(f"h{site}") for site in range(SITES)}
KEY_OF_COORDINATOR = SiteKey.draw("coordinator")
FEDERATION = FederationFile(
    name="stays",
    coordinator=str(KEY_OF_COORDINATOR.public),
    sites={name: str(key.public) for name, key in KEYS_OF_SITES.items()},
)
REQUIRED = """[require]
protocols = ["masks", "none"]
mechanisms = ["skellam", "discrete_gaussian", "gaussian", "local_gaussian"]"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One table of all patients, and one of each hospital's."""
    return hospitals(tmp_path_factory.mktemp("tables") / "sites", SITES, PATIENTS)


def config(tables, name, *keys):
    return tables.config("run.randomness=seeded", "run.seed=3", *keys, table=name)


class Books:
    """A ledger and a release store in memory."""

    def charge(self, round, event):
        return (round, event)

    def write(self, charge, released, state):
        pass


def played(setup, world, rounds=ROUNDS):
    """The models after each round, and what clients' last evaluation released."""
    state, models = setup.initial_state(), []
    for round in range(1, rounds + 1):
        state = run_round(round, setup.algorithm_in(round), state, world)
        released = state.evaluation.get("released", torch.zeros(0))
        models.append(torch.cat([state.params, released]))
    return models


def policy(epsilon):
    """What sites here allow: also sums that the coordinator sees."""
    stated = POLICY.replace("epsilon = 1e300", f"epsilon = {epsilon}")
    return stated.replace("[require]", REQUIRED)


def member(tables, path, site, epsilon=1e300):
    """One site, as its process opens it: what it knows lies in the folder `path`."""
    folder, name = SiteFolder(path), f"h{site}"
    if not path.exists():
        folder.begin(name)
        folder.key.unlink()
        KEYS_OF_SITES[name].write(folder.key)
        folder.policy.write_text(policy(epsilon))
        folder.data.write_text(data_text(tables.table(name)))
        FEDERATION.write_new(folder.federation)
    return open_member(folder)


def agent(tables, path, site, **facts):
    return agent_of(member(tables, path, site, **facts))


def agents(tables, folder=None, **facts):
    folder = folder or Path(tempfile.mkdtemp(dir=tables.root))
    return {site: agent(tables, folder / str(site), site, **facts) for site in range(SITES)}


def federated(tables, *keys, carrier=None, sites=None):
    """A run that is ready to start, and its world: sites, a ledger, and a store that forgets."""
    setup = prepare(config(tables, "all", *keys))
    sites = sites or agents(tables)
    plan = setup.plan
    ledger = Ledger.create(
        Path(tempfile.mkdtemp(dir=tables.root)) / "ledger.jsonl", {"config": plan.config.digest()}
    )
    opening = ledger.path.read_bytes().split(b"\n")[0]
    form, sealing = ExampleForm.of(setup.federation.examples), KeyPair(random_key())
    declaration = Declaration(opening, plan.config.toml(), form, setup.constants, sealing.public)

    def session_of(question):
        algorithm, directory = setup.algorithm_in(question.round), FEDERATION.directory()
        return start_session(algorithm, directory, question, declaration.run, sealing)

    coordinator = Coordinator(
        session_of,
        FEDERATION.directory(),
        carrier or Loopback({site: agent.answer for site, agent in sites.items()}),
        KEY_OF_COORDINATOR.identity,
        bytes.fromhex(FEDERATION.digest()),
        declaration,
        ledger,
        least=plan.cost.limits.minimum,
        seconds=20.0,
    )
    world = replace(shared_world(setup, ledger, Books(), SINGLE_PROCESS), sites=coordinator)
    return setup, world


LABELS = (
    "compression.name=soft_labels",
    "compression.examples=12",
    "compression.classes=2",
    "compression.distil_steps=20",
)
KEYS = {
    "soft labels": LABELS,
    "own models": (*LABELS, 'compression.models=["mlp", "logistic"]'),
    "late sites": ("data.site_delays=[0,1,0,0,2]", "run.rounds=8"),
    "minimum": (),
    "layers": ("privacy.sizing=layers", "secure.threat=malicious"),
    "discrete": ("privacy.mechanism=discrete_gaussian",),
    "adaptive clip": ("privacy.mechanism=discrete_gaussian", "privacy.adaptive_clip=true"),
    "passes": ("aggregation.rule=geometric_median",),
    "two exchanges": ("client.objective=feddane",),
    "fewer bytes": ("compression.name=power_sgd", "compression.rank=1", "model.name=mlp"),
    "everybody": ("cohort.sampler=full", "cohort.size=0"),
    "central": ("privacy.mechanism=gaussian",),
    "evaluation": ("evaluation.by=clients", "evaluation.every=2", "run.rounds=4"),
    "two classes": ("model.loss=binary_cross_entropy", "data.holdout=none", "data.test_path="),
}


@pytest.mark.parametrize("name", mostly_slow(KEYS, "minimum", "two exchanges", "evaluation"))
def test_a_seeded_federation_is_the_simulator_bit_for_bit(tables, name):
    simulated = prepare(config(tables, "all", *KEYS[name]))
    rounds = simulated.plan.config.run.rounds
    here = played(simulated, shared_world(simulated, Books(), Books(), SINGLE_PROCESS), rounds)
    there = played(*federated(tables, *KEYS[name]), rounds)
    assert all(torch.equal(first, second) for first, second in zip(here, there, strict=True))
    assert not torch.equal(here[0], here[1][: len(here[0])]) or name == "evaluation"
    assert (len(here[1]) > len(here[0])) == (name == "evaluation")


def test_without_a_seed_no_two_runs_are_alike(tables):
    secret = ("run.randomness=secret",)
    first, second = (played(*federated(tables, *secret), rounds=1)[0] for _ in range(2))
    assert not torch.equal(first, second)


class Noting:
    """Sites whose sums are kept in a list."""

    def __init__(self, sites):
        self.sites, self.sums = sites, []

    def gather(self):
        self.sites.gather()

    def sum(self, *question):
        self.sums.append(self.sites.sum(*question))
        return self.sums[-1]


class Losing(Loopback):
    """A carrier that treats messages of sums as `fault` says: (message number, site, bytes)."""

    def __init__(self, sites, fault):
        super().__init__(sites)
        self.fault, self.sent = fault, {}

    def send(self, site, data, deadline):
        if Envelope.decode(data).kind == Kind.DECLARATION:
            super().send(site, data, deadline)
            return
        number = self.sent[site] = self.sent.get(site, -1) + 1
        changed = self.fault(number, site, data)
        if changed is not None:
            super().send(site, changed, deadline)


@pytest.mark.parametrize(
    ("fault", "stage"),
    mostly_slow(
        itertools.product(["lost", "garbled", "swapped", "cut"], range(5)),
        *(("lost", 4), ("garbled", 1), ("swapped", 2), ("cut", 3)),
    ),
)
def test_one_site_of_five_may_fail_in_any_exchange(tables, stage, fault):
    """The sum is then over the others, or the round aborts: it is never wrong."""
    changed = {
        "lost": lambda data: None,
        "garbled": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        "swapped": lambda data: data[:3] + data[35:],
        "cut": lambda data: data[:-9],
    }[fault]

    def faulty(number, site, data):
        return changed(data) if (number, site) == (stage, 2) else data

    keys = ("cohort.sampler=full", "cohort.size=0")
    sites = agents(tables)
    carrier = Losing({site: agent.answer for site, agent in sites.items()}, faulty)
    setup, world = federated(tables, *keys, carrier=carrier)
    simulated = prepare(config(tables, "all", *keys))
    (expected,) = played(
        simulated, shared_world(simulated, Books(), Books(), SINGLE_PROCESS), rounds=1
    )
    (model,) = played(setup, world, rounds=1)
    counted = stage > 2  # its row had arrived
    assert torch.equal(model, expected) == counted


def test_too_few_sites_abort_the_round(tables):
    def gone(number, site, data):
        return None if site in (1, 3) else data

    sites = agents(tables)
    carrier = Losing({site: agent.answer for site, agent in sites.items()}, gone)
    with pytest.raises(Aborted):
        played(*federated(tables, carrier=carrier), rounds=1)


def messages_to(site, sites, tables, *keys, rounds=1, first=None):
    """All messages of sums that reach `site` in so many rounds; of each, no site gets more than the
    `first` ones, and the rounds then abort.
    """
    messages = []

    def noted(number, to, data):
        if to == site:
            messages.append(data)
        return data if first is None or number < first else None

    carrier = Losing({number: one.answer for number, one in sites.items()}, noted)
    with contextlib.nullcontext() if first is None else pytest.raises(Aborted):
        played(*federated(tables, *keys, carrier=carrier, sites=sites), rounds=rounds)
    return messages


def test_a_site_answers_one_question_of_an_exchange_and_only_its_coordinator(tables):
    sites = agents(tables)
    seen, asked = messages_to(0, sites, tables, rounds=2), sites[0].answer
    assert read_answer(asked(seen[0])) == (Reply.DECLINED, b"round")  # a round that is over
    assert read_answer(asked(seen[5])) == (Reply.MALFORMED, b"")  # a sum that is over
    assert read_answer(asked(seen[7])) == (Reply.MALFORMED, b"")  # a step that is over
    assert asked(seen[-1]) == asked(seen[-1])  # the same bytes have the same answer
    assert read_answer(asked(seen[-1]))[0] == Reply.ANSWERED
    for at in range(3, 67):
        other = seen[5][:at] + bytes([seen[5][at] ^ 1]) + seen[5][at + 1 :]
        assert read_answer(asked(other))[0] == Reply.UNSIGNED
    assert read_answer(asked(b""))[0] == read_answer(asked(b"PF2"))[0] == Reply.MALFORMED


def test_what_a_policy_refuses_is_a_code_without_a_word(tables):
    """Before anything is charged: a round that no site answers would be lost."""
    sites, answers = agents(tables, epsilon=0.01), []

    class Noted(Loopback):
        def receive(self, deadline):
            arrived = super().receive(deadline)
            answers.extend(answer for _, answer in arrived)
            return arrived

    carrier = Noted({site: agent.answer for site, agent in sites.items()})
    setup, world = federated(tables, carrier=carrier, sites=sites)
    with pytest.raises(Busy, match="declined budget"):
        played(setup, world, rounds=1)
    assert set(answers) == {bytes([Reply.DECLINED]) + b"budget"}
    assert not world.ledger.charges


def test_a_site_that_fails_says_nothing_of_why(tables, monkeypatch):
    def failing(party, body):
        raise ValueError("patient p17 has 3 rows")

    monkeypatch.setattr(RunParty, "question", failing)
    answers = []

    def noted(answer):
        def ask(data):
            answers.append(answer(data))
            return answers[-1]

        return ask

    carrier = Loopback({site: noted(agent.answer) for site, agent in agents(tables).items()})
    with pytest.raises(Aborted):
        played(*federated(tables, carrier=carrier), rounds=1)
    assert answers[-SITES:] == [bytes([Reply.FAILED])] * SITES
    assert not any(b"p17" in answer for answer in answers)


def reaching(sites, out):
    """Elsewhere: these agents, over a loop-back carrier, of the run in the folder `out`."""
    carrier = Loopback({site: agent.answer for site, agent in sites.items()})
    reach = Reach(RunDirectory(out), FEDERATION, KEY_OF_COORDINATOR, lambda _: carrier, 20.0, 0.0)
    return Elsewhere(load_empty, reach)


def test_a_run_whose_coordinator_has_nobodys_data_is_the_simulated_one(tables, tmp_path):
    """The run directory of `train`: its model, ledger of charges, and what an audit says of it."""
    keys = ("run.rounds=4", "run.evaluate_every=2")
    simulated = train(config(tables, "all", *keys), tmp_path / "here")
    nothing = config(tables, "nowhere", *keys)
    elsewhere = reaching(agents(tables), tmp_path / "there")
    federated = train(nothing, tmp_path / "there", elsewhere=elsewhere)
    assert federated.guarantee.epsilon == simulated.guarantee.epsilon
    assert federated.measures == simulated.measures
    first, second = (model(tmp_path / name) for name in ("here", "there"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not audit(tmp_path / "there").problems
    further = resume(
        tmp_path / "there", lambda stored: stored.with_run(rounds=6), elsewhere=elsewhere
    )
    assert further.charges == 6


def test_a_coordinator_without_any_data_is_told_by_clients_how_good_the_model_is(tables, tmp_path):
    keys = ("data.holdout=none", "evaluation.by=clients", "evaluation.every=2")
    keys = (*keys, "data.test_path=", "privacy.noise_multiplier=0.5", "run.rounds=4")
    elsewhere = reaching(agents(tables), tmp_path / "there")
    outcome = train(config(tables, "nowhere", *keys), tmp_path / "there", elsewhere=elsewhere)
    assert (outcome.updates, outcome.evaluations, outcome.test_examples) == (2, 2, 0)
    accuracy = outcome.charged_measures["accuracy"]
    assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 1
    assert outcome.measures == {"accuracy": accuracy.value}
    assert not audit(tmp_path / "there").problems


def test_a_coordinator_needs_a_public_test_set(tables, tmp_path):
    elsewhere = reaching({}, tmp_path / "run")
    with pytest.raises(Refused, match="public test set"):
        train(config(tables, "nowhere", "data.test_path="), tmp_path / "run", elsewhere=elsewhere)
    assert not (tmp_path / "run").exists()


PLAIN = ("secure.protocol=none", "privacy.clip=1.0")
SEEN = {
    "central": ("privacy.mechanism=gaussian", *PLAIN),
    "by sites": ("privacy.mechanism=local_gaussian", *PLAIN),
}


@pytest.mark.parametrize("name", SEEN)
def test_sums_that_the_coordinator_sees_are_those_of_the_simulator(tables, name):
    """Everybody is drawn: who is else, sites draw by coins of their own."""
    keys = (*SEEN[name], "cohort.sampler=full", "cohort.size=0", "run.rounds=2")
    simulated = prepare(config(tables, "all", *keys))
    here = played(simulated, shared_world(simulated, Books(), Books(), SINGLE_PROCESS), rounds=2)
    there = played(*federated(tables, *keys), rounds=2)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(here, there, strict=True))


class Killing(Loopback):
    """A carrier whose site 2 is killed before, or after, it answers its message number `when`."""

    def __init__(self, sites, rebuilt, when, after):
        super().__init__(sites)
        self.rebuilt, self.when, self.after, self.count = rebuilt, when, after, 0

    def send(self, site, data, deadline):
        if site != 2:
            super().send(site, data, deadline)
            return
        number, self.count = self.count, self.count + 1
        if number == self.when and not self.after:
            self._sites[2] = self.rebuilt()  # and what it was sent comes to the new process
        answer = self._sites[2](data)
        if number == self.when and self.after:
            self._sites[2] = self.rebuilt()  # its answer was lost: the same bytes are sent again
            again = self._sites[2](data)
            assert again == answer
        self._arrived.append((2, answer))


@pytest.mark.parametrize(
    ("sizing", "when", "after"),
    mostly_slow(
        itertools.product(["minimum", "layers"], range(6), [False, True]),
        *(("layers", 0, True), ("layers", 2, False), ("layers", 5, True), ("minimum", 3, True)),
    ),
)
def test_a_killed_agent_goes_on_from_what_it_committed(tables, tmp_path, sizing, when, after):
    """With each answer as if nothing had happened, and one receipt for each exchange."""
    keys = (f"privacy.sizing={sizing}", "secure.threat=malicious")
    sites = {site: agent(tables, tmp_path / str(site), site) for site in range(SITES)}
    asked = {site: one.answer for site, one in sites.items()}

    def rebuilt():
        return agent(tables, tmp_path / "2", 2).answer

    carrier = Killing(asked, rebuilt, when, after)
    models = played(*federated(tables, *keys, carrier=carrier, sites=sites), rounds=2)
    simulated = prepare(config(tables, "all", *keys))
    expected = played(
        simulated, shared_world(simulated, Books(), Books(), SINGLE_PROCESS), rounds=2
    )
    assert all(torch.equal(first, second) for first, second in zip(models, expected, strict=True))
    receipts = Receipts.load(tmp_path / "2" / "receipts.jsonl")
    assert [(run.rounds, run.exchanges) for run in receipts.runs] == [(2, 2)]
    assert receipts.spending() == {simulated.plan.event: 2}


def test_a_site_that_is_killed_sends_the_same_sum_again_or_none(tables, tmp_path, monkeypatch):
    """Where the coordinator sees sums: a fresh one would be of another cohort, with other noise."""
    keys = (*SEEN["by sites"], "run.randomness=secret")
    sites = agents(tables, tmp_path)
    seen = []

    def noted(number, site, data):
        if site == 2:
            seen.append((data, sites[2].answer(data)))
        return data

    carrier = Losing({site: one.answer for site, one in sites.items()}, noted)
    played(*federated(tables, *keys, carrier=carrier), rounds=1)
    ((question, answer),) = seen
    assert agent(tables, tmp_path / "2", 2).answer(question) == answer
    (state,) = (tmp_path / "2" / "state").glob("*/party")
    for damaged in (lambda: state.write_bytes(b""), state.unlink):
        damaged()
        again = agent(tables, tmp_path / "2", 2).answer(question)
        assert read_answer(again)[0] == Reply.MALFORMED


def test_who_was_drawn_is_forgotten_with_the_process(tables, tmp_path):
    """A second exchange of a round would be over another cohort: the site has dropped out."""
    keys = ("client.objective=feddane",)
    sites = {site: agent(tables, tmp_path / str(site), site) for site in range(SITES)}
    asked = {site: one.answer for site, one in sites.items()}

    def rebuilt():
        return agent(tables, tmp_path / "2", 2).answer

    carrier = Killing(asked, rebuilt, 5, after=False)
    setup, world = federated(tables, *keys, carrier=carrier, sites=sites)
    noting = Noting(world.sites)
    played(setup, replace(world, sites=noting), rounds=1)
    assert [total.survivors for total in noting.sums] == [5, 4]


def test_receipts_agree_with_the_ledger(tables, tmp_path):
    keys = ("run.rounds=4", "evaluation.by=clients", "evaluation.every=2")
    sites = {site: agent(tables, tmp_path / str(site), site) for site in range(SITES)}
    elsewhere = reaching(sites, tmp_path / "run")
    train(config(tables, "nowhere", *keys), tmp_path / "run", elsewhere=elsewhere)
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    for site in range(SITES):
        receipts = Receipts.load(tmp_path / str(site) / "receipts.jsonl")
        assert dict(receipts.spending()) == dict(ledger.spending)
    assert sorted(ledger.spending.values()) == [2, 2]  # rounds that train, and that evaluate


def test_a_damaged_state_answers_nothing_more(tables, tmp_path):
    """What it answered is not known: a fresh party of the same sum would be a second one."""
    seen = messages_to(2, agents(tables, tmp_path), tables, first=2)
    (state,) = (tmp_path / "2" / "state").glob("*/party")
    state.write_bytes(state.read_bytes()[:-1])
    again = agent(tables, tmp_path / "2", 2)
    assert {read_answer(again.answer(data))[0] for data in seen} == {Reply.MALFORMED}


def test_a_masked_row_leaves_at_its_time_and_other_messages_at_once(tables, tmp_path):
    """In every round alike, whoever was drawn; one that is late has dropped out."""
    sites, slept = agents(tables), []
    setup, world = federated(tables, sites=sites)
    world.sites.gather()
    for site, answering in sites.items():
        (party,) = answering.parties.values()
        party.leaving = FixedTime(30.0, 0.0, clock=lambda: 0.0, sleep=slept.append)
        if site == 4:
            times = iter(range(0, 10_000, 40))
            late = {"clock": lambda times=times: next(times)}
            party.leaving = FixedTime(30.0, 0.0, **late, sleep=slept.append)
    noting = Noting(world.sites)
    played(setup, replace(world, sites=noting), rounds=2)
    assert [total.survivors for total in noting.sums] == [4, 4]
    assert slept == [30.0, 30.0, 30.0, 30.0, 20.0] * 2  # the late one waits for the next time


def asked_again(tables, changed):
    """How site 0 answers a second question of an exchange that it answered: `changed` of the first.

    Its masked row had left. The coordinator signs both.
    """
    sites = agents(tables)
    question, *_ = messages_to(0, sites, tables)
    return read_answer(sites[0].answer(with_body(question, changed)))


def with_body(data, changed):
    """A message of the coordinator's with another body."""
    envelope = Envelope.decode(data)
    other = replace(envelope, body=changed(envelope.body))
    return other.signed(KEY_OF_COORDINATOR.identity).encode()


def parted(body):
    """A question, what stands after it, and the invitation."""
    reader = Reader(body)
    question, since, lines = reader.sized(), reader.take(32), reader.sized()
    return Question.decode(question), since + sized(lines), reader.rest()


def in_another_session(body):
    """The same question with an invitation to a sum of its own: a second row of one cohort."""
    question, lines, invitation = parted(body)
    other = replace(decode(invitation), session=b"s" * 32)
    return sized(question.encode()) + lines + encode(other)


def of_another_state(body):
    """The same model, and another rotation."""
    question, lines, invitation = parted(body)
    state = {"rotation": question.state["rotation"] + 1}
    return sized(replace(question, state=state).encode()) + lines + invitation


@pytest.mark.parametrize("changed", [in_another_session, of_another_state])
def test_an_exchange_is_answered_to_one_question_only(tables, changed):
    """Else two rows of one cohort would leave, with noise of their own, and one be charged."""
    assert asked_again(tables, changed) == (Reply.DECLINED, b"question")


OTHER_FORMS = {
    "a longer layout": lambda asked: replace(asked, layout=Layout((("delta", 8),))),
    "another task": lambda asked: replace(asked, task="gradient"),
    "another scale": lambda asked: replace(asked, scale=3.0),
    "a longer model": lambda asked: replace(
        asked, broadcast={**asked.broadcast, "params": torch.zeros(9)}
    ),
    "another precision": lambda asked: replace(
        asked, broadcast={**asked.broadcast, "params": asked.broadcast["params"].double()}
    ),
    "no center": lambda asked: replace(asked, broadcast={"params": asked.broadcast["params"]}),
}


@every_case("form", OTHER_FORMS)
def test_questions_of_another_form_are_refused_before_anybody_is_drawn(tables, form, monkeypatch):
    """Whoever is drawn would fail on some of them, and so show that somebody was."""
    monkeypatch.setattr(SiteWork, "_cohort", lambda *_: pytest.fail("somebody was drawn"))
    sites = agents(tables)
    (asked,) = messages_to(0, sites, tables, first=0)

    def changed(body):
        question, lines, invitation = parted(body)
        other = replace(question, exchange=OTHER_FORMS[form](question.exchange))
        return sized(other.encode()) + lines + invitation

    answer = read_answer(sites[0].answer(with_body(asked, changed)))
    assert answer == (Reply.MALFORMED, b"")
    (party,) = sites[0].parties.values()
    assert not party.admission.receipts.runs
