"""Two regions of three sites over loop-back carriers: regions answer the server by bytes alone."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hospitals import POLICY, data_text, hospitals
from lanes import every_case
from small import model

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.core.errors import Busy, Refused
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.coordinate import Reach
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.regions import Region
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.messages.reported import read_report, reported
from privfed.deploy.region.relay import RegionCoordinator
from privfed.deploy.site.agent import agent_of, open_member
from privfed.run.population import load_empty
from privfed.run.train import train
from privfed.run.world import Elsewhere
from privfed.secure.frames import BadMessage, Reader, sized
from privfed.secure.masked.evidence import proves
from privfed.secure.masked.messages.rows import Masked
from privfed.secure.masked.messages.unmasking import Unmask
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.summation import Culprit
from privfed.store.round_logs import ExclusionLog
from privfed.store.run_directory import RunDirectory

SITES, PATIENTS = 6, 36
SERVER = SiteKey.draw("server")
SITE_KEYS = {f"h{site}": SiteKey.draw(f"h{site}") for site in range(SITES)}
REGION_KEYS = {name: SiteKey.draw(name) for name in ("north", "south")}
MEMBERS = {"north": ["h0", "h2", "h4"], "south": ["h1", "h3", "h5"]}
FEDERATION = FederationFile(
    name="stays",
    coordinator=str(SERVER.public),
    sites={name: str(key.public) for name, key in SITE_KEYS.items()},
    regions={
        name: Region(coordinator=str(key.public), sites=MEMBERS[name])
        for name, key in REGION_KEYS.items()
    },
)
KEYS = (
    "secure.protocol=regions",
    "secure.regions=2",
    "secure.minimum=4",
    "run.randomness=seeded",
    "run.seed=3",
    "run.rounds=3",
)
ALLOWED = (
    '[require]\nprotocols = ["regions"]\nmechanisms = ["skellam", "discrete_gaussian", "gaussian"]'
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One table of all patients, and one of each hospital's."""
    return hospitals(tmp_path_factory.mktemp("tables") / "sites", SITES, PATIENTS)


class Parts:
    """The agents of all sites, and the coordinators of the regions, with what they sent."""

    def __init__(self, tables, root, federation=FEDERATION, policy=POLICY):
        self.tables, self.root, self.federation = tables, Path(root), federation
        self.policy = policy.replace("[require]", ALLOWED)
        self.agents = {site: self.agent(site) for site in range(SITES)}
        self.lost, self.sent, self.asked = set(), [], {0: [], 1: []}
        self.regions = {number: self.region(name) for number, name in enumerate(MEMBERS)}

    def agent(self, site):
        folder, name = SiteFolder(self.root / f"h{site}"), f"h{site}"
        if not folder.path.exists():
            folder.begin(name)
            folder.key.unlink()
            SITE_KEYS[name].write(folder.key)
            folder.policy.write_text(self.policy)
            folder.data.write_text(data_text(self.tables.table(name)))
            self.federation.write_new(folder.federation)
        return agent_of(open_member(folder))

    def region(self, name, key=None):
        return RegionCoordinator(
            key or REGION_KEYS[name], self.federation, self.root / name, Sites(self), 20.0
        )

    def answer(self, number):
        def asked(data):
            self.asked[number].append(data)
            return self.regions[number].answer(data)

        return asked


class Sites(Loopback):
    """The sites of a region: `parts.lost` do not answer, and what is asked and said is noted."""

    def __init__(self, parts):
        super().__init__({})
        self.parts = parts

    def send(self, site, data, deadline):
        if site in self.parts.lost:
            return
        answer = self.parts.agents[site].answer(data)
        self.parts.sent.append((site, data, answer))
        self._arrived.append((site, answer))


def reaching(parts, out, carrier=None):
    """Elsewhere: these regions, over a loop-back carrier."""
    carrier = carrier or Loopback({number: parts.answer(number) for number in parts.regions})
    reach = Reach(RunDirectory(out), parts.federation, SERVER, lambda _: carrier, 20.0, 0.0)
    return Elsewhere(load_empty, reach)


def trained(tables, parts, out, *keys, carrier=None):
    config = tables.config(*KEYS, *keys, table="nowhere")
    return train(config, out, elsewhere=reaching(parts, out, carrier))


def simulated(tables, out, *keys):
    return train(tables.config(*KEYS, *keys, table="all"), out)


def same_models(first, second):
    first, second = model(first), model(second)
    return all(torch.equal(first[name], second[name]) for name in first)


# --- models ---


@every_case(
    "keys",
    [
        (),
        ("client.objective=feddane",),
        ("privacy.mechanism=gaussian",),
        ("privacy.mechanism=discrete_gaussian", "secure.threat=malicious", "secure.minimum=6"),
        ("evaluation.by=clients", "evaluation.every=2", "run.rounds=4"),
    ],
)
def test_a_seeded_federation_of_regions_is_the_simulator_bit_for_bit(tables, tmp_path, keys):
    here = simulated(tables, tmp_path / "here", *keys)
    there = trained(tables, Parts(tables, tmp_path / "sites"), tmp_path / "there", *keys)
    assert same_models(tmp_path / "here", tmp_path / "there")
    assert there.guarantee.epsilon == here.guarantee.epsilon
    assert there.updates == here.updates >= 2
    assert not audit(tmp_path / "there").problems


def test_receipts_agree_with_the_ledger_and_count_the_noise_of_one_site(tables, tmp_path):
    outcome = trained(tables, Parts(tables, tmp_path / "sites"), tmp_path / "run")
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    (noise,) = outcome.plan.assumed.noise
    assert (noise.size, noise.minimum) == (6, 2)
    for site in range(SITES):
        receipts = Receipts.load(tmp_path / "sites" / f"h{site}" / "receipts.jsonl")
        assert dict(receipts.spending()) == dict(ledger.spending)


# --- what each level sees ---


def test_the_server_sees_two_masked_rows_and_no_message_of_a_site(tables, tmp_path):
    parts, answers = Parts(tables, tmp_path / "sites"), []

    class Noting(Loopback):
        def receive(self, deadline):
            arrived = super().receive(deadline)
            answers.extend(arrived)
            return arrived

    carrier = Noting({number: parts.answer(number) for number in parts.regions})
    trained(tables, parts, tmp_path / "run", "run.rounds=1", carrier=carrier)
    bodies = [(number, read_answer(answer)[1]) for number, answer in answers]
    messages = [(number, Reader(body).sized()) for number, body in bodies if len(body) > 32]
    assert [number for number, message in messages if is_row(message)] == [0, 1]
    from_sites = {read_answer(answer)[1] for _, _, answer in parts.sent}
    assert len(messages) == 2 * 5
    assert not from_sites & {message for _, message in messages}
    site_rows = [site for site, _, answer in parts.sent if is_row(read_answer(answer)[1])]
    assert sorted(site_rows) == [*range(SITES)]


def is_row(body):
    try:
        return isinstance(decode(body), Masked)
    except Exception:
        return False


# --- dropouts ---


def test_a_region_goes_on_with_two_of_three_sites(tables, tmp_path):
    parts = Parts(tables, tmp_path / "sites")
    parts.lost = {4}
    outcome = trained(tables, parts, tmp_path / "run")
    assert outcome.updates == 3
    simulated(tables, tmp_path / "here")
    assert not same_models(tmp_path / "here", tmp_path / "run")
    assert not audit(tmp_path / "run").problems


def test_a_site_that_missed_a_round_gets_the_lines_that_it_lacks(tables, tmp_path):
    """Its coordinator adds them to those that the server signed, which they lead to."""
    parts = Parts(tables, tmp_path / "sites")
    asked = []

    class Away(Sites):
        def send(self, site, data, deadline):
            kind = Envelope.decode(data).kind
            asked.append(kind == Kind.QUESTION and site == 0)
            if site != 4 or sum(asked) != 2 or kind not in (Kind.QUESTION, Kind.STEP):
                super().send(site, data, deadline)

    parts.regions[0].carrier = Away(parts)
    outcome = trained(tables, parts, tmp_path / "run")
    assert outcome.updates == 3
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    (copied,) = (tmp_path / "sites" / "h4" / "state").glob("*/ledger.jsonl")
    assert copied.read_bytes() == ledger.path.read_bytes()
    receipts = Receipts.load(tmp_path / "sites" / "h4" / "receipts.jsonl")
    assert sum(receipts.spending().values()) == 2
    assert not audit(tmp_path / "run").problems


def test_a_coordinator_answers_the_server_alone_and_only_in_order(tables, tmp_path):
    parts = Parts(tables, tmp_path / "sites")
    trained(tables, parts, tmp_path / "run", "run.rounds=1")
    asked, region = parts.asked[0], parts.regions[0]
    question, *_, last = [data for data in asked if Envelope.decode(data).kind != Kind.DECLARATION]
    assert read_answer(region.answer(last))[0] == Reply.ANSWERED  # the same bytes
    assert read_answer(region.answer(question))[0] == Reply.MALFORMED  # its sum is over
    envelope = Envelope.decode(question)
    for key in (*SITE_KEYS.values(), *REGION_KEYS.values()):
        data = resigned(envelope, envelope.body, key)
        assert read_answer(region.answer(data))[0] == Reply.UNSIGNED
    hello = replace(envelope, kind=Kind.HELLO)
    assert read_answer(region.answer(resigned(hello, b"", SERVER)))[0] == Reply.MALFORMED
    unknown = replace(envelope, run=b"r" * 32)
    data = resigned(unknown, envelope.body, SERVER)
    assert read_answer(region.answer(data))[0] == Reply.MALFORMED
    reader = Reader(envelope.body)
    start = sized(reader.sized()) + reader.take(32) + sized(reader.sized())
    other = replace(decode(reader.rest()), session=b"s" * 32)
    data = resigned(envelope, start + encode(other), SERVER)
    assert read_answer(region.answer(data)) == (Reply.DECLINED, b"round")


def test_a_region_with_a_single_site_does_not_join(tables, tmp_path):
    parts = Parts(tables, tmp_path / "sites")
    parts.lost = {2, 4}
    with pytest.raises(Busy, match="north: declined sites"):
        trained(tables, parts, tmp_path / "run")
    assert not Ledger.load(tmp_path / "run" / "ledger.jsonl").charges


class Losing(Loopback):
    """A carrier that loses the messages of sums to region 1 in round 2, from the `first` on."""

    def __init__(self, parts, first):
        super().__init__({number: parts.answer(number) for number in parts.regions})
        self.first, self.round, self.number = first, 0, 0

    def send(self, site, data, deadline):
        envelope = Envelope.decode(data)
        if site == 1 and envelope.kind == Kind.QUESTION:
            self.round, self.number = self.round + 1, 0
        if site == 1 and envelope.kind in (Kind.QUESTION, Kind.STEP):
            self.number += 1
            if self.round == 2 and self.number > self.first:
                return
        super().send(site, data, deadline)


@every_case("first", [0, 2])
def test_a_round_without_a_region_aborts_and_is_charged_and_consumed(tables, tmp_path, first):
    parts = Parts(tables, tmp_path / "sites")
    outcome = trained(tables, parts, tmp_path / "run", carrier=Losing(parts, first))
    assert (outcome.updates, len(outcome.aborts), outcome.charges) == (2, 1, 3)
    assert not audit(tmp_path / "run").problems


def test_sites_that_stop_within_a_sum_make_their_region_a_dropout(tables, tmp_path):
    parts = Parts(tables, tmp_path / "sites")
    kinds = []

    class Stopping(Sites):
        def send(self, site, data, deadline):
            kinds.append(Envelope.decode(data).kind)
            if (
                site > 1
                and kinds[-1] == Kind.STEP
                and kinds.count(Kind.QUESTION) <= len(MEMBERS["south"])
            ):
                return
            super().send(site, data, deadline)

    parts.regions[1].carrier = Stopping(parts)
    outcome = trained(tables, parts, tmp_path / "run")
    assert (outcome.updates, len(outcome.aborts), outcome.charges) == (2, 1, 3)


# --- keys and forged messages ---


def test_a_coordinator_with_another_key_is_refused(tables, tmp_path):
    parts, key = Parts(tables, tmp_path / "sites"), SiteKey.draw("north")
    with pytest.raises(Refused, match="has no region with this coordinator"):
        parts.region("north", key)
    north = Region(coordinator=str(key.public), sites=MEMBERS["north"])
    theirs = FEDERATION.model_copy(update={"regions": {**FEDERATION.regions, "north": north}})
    parts.regions[0] = RegionCoordinator(key, theirs, tmp_path / "north", Sites(parts), 20.0)
    with pytest.raises(Busy, match="north: unsigned"):  # it has another federation file
        trained(tables, parts, tmp_path / "run")
    assert not Ledger.load(tmp_path / "run" / "ledger.jsonl").charges


def test_a_coordinator_that_signs_with_another_key_gets_no_answer(tables, tmp_path):
    """Neither of its sites, nor, in its name, of the server."""
    parts = Parts(tables, tmp_path / "sites")
    parts.regions[0].key = SiteKey.draw("north")
    with pytest.raises(Busy, match="north: declined sites"):
        trained(tables, parts, tmp_path / "run")
    assert {read_answer(answer)[0] for site, _, answer in parts.sent if site % 2 == 0} == {
        Reply.UNSIGNED
    }


def messages_to(parts, tables, tmp_path, site, kind):
    trained(tables, parts, tmp_path / "run", "run.rounds=1")
    return next(
        data for to, data, _ in parts.sent if to == site and Envelope.decode(data).kind == kind
    )


def resigned(envelope, body, key):
    return replace(envelope, body=body).signed(key.identity).encode()


FORGED = {
    "the server's message": lambda inner, rest: (
        resigned(inner, inner.body, SITE_KEYS["h0"]),
        rest,
    ),
    "another kind": lambda inner, rest: (
        resigned(replace(inner, kind=Kind.STEP), inner.body, SERVER),
        rest,
    ),
    "another run": lambda inner, rest: (
        resigned(replace(inner, run=b"r" * 32), inner.body, SERVER),
        rest,
    ),
    "the ledger's lines": lambda inner, rest: (
        inner.encode(),
        rest[:32] + sized(b"") + after_lines(rest),
    ),
}


def after_lines(rest):
    reader = Reader(rest)
    reader.take(32)
    reader.sized()
    return reader.rest()


@every_case("forged", FORGED)
def test_a_site_relies_on_what_the_server_signed(tables, tmp_path, forged):
    """A region's coordinator forges what it forwards, and signs it: nothing is charged for it."""
    parts = Parts(tables, tmp_path / "sites")
    asked = messages_to(parts, tables, tmp_path, 0, Kind.QUESTION)
    fresh = Parts(tables, tmp_path / "fresh")
    declared = next(data for to, data, _ in parts.sent if to == 0)
    assert Envelope.decode(declared).kind == Kind.DECLARATION
    agent = fresh.agents[0]
    assert read_answer(agent.answer(declared))[0] == Reply.ANSWERED
    envelope = Envelope.decode(asked)
    reader = Reader(envelope.body)
    inner, rest = Envelope.decode(reader.sized()), reader.rest()
    changed, rest_changed = FORGED[forged](inner, rest)
    data = resigned(envelope, sized(changed) + rest_changed, REGION_KEYS["north"])
    assert read_answer(agent.answer(data))[0] in (Reply.MALFORMED, Reply.DECLINED)
    (party,) = agent.parties.values()
    assert not party.admission.receipts.runs
    for key in (SERVER, REGION_KEYS["south"], SITE_KEYS["h2"]):  # only its own coordinator asks it
        data = resigned(envelope, envelope.body, key)
        assert read_answer(agent.answer(data))[0] == Reply.UNSIGNED
    assert read_answer(agent.answer(asked))[0] == Reply.ANSWERED


def test_a_second_session_of_a_region_is_declined_by_its_sites(tables, tmp_path):
    """Else a coordinator would get two sums of one cohort."""
    parts = Parts(tables, tmp_path / "sites")
    asked = Envelope.decode(messages_to(parts, tables, tmp_path, 0, Kind.QUESTION))
    reader = Reader(asked.body)
    start = sized(reader.sized()) + reader.take(32) + sized(reader.sized())
    other = decode(reader.rest())
    body = start + encode(replace(other, session=b"s" * 32))
    answer = parts.agents[0].answer(resigned(asked, body, REGION_KEYS["north"]))
    assert read_answer(answer) == (Reply.DECLINED, b"question")


# --- Byzantine sites ---


class Deviating(Sites):
    """A region whose sites `culprits` send a wrong share in every sum."""

    def __init__(self, parts, culprits):
        super().__init__(parts)
        self.culprits = culprits

    def send(self, site, data, deadline):
        super().send(site, data, deadline)
        reply, body = read_answer(self._arrived[-1][1])
        if site not in self.culprits or Envelope.decode(data).kind != Kind.STEP:
            return
        message = decode(body)
        if isinstance(message, Unmask):
            (who, value), *others = message.seeds
            wrong = replace(message, seeds=((who, value + 1), *others))
            identity = SITE_KEYS[f"h{site}"].identity
            signed = replace(wrong, signature=identity.sign(wrong.text))
            self._arrived[-1] = (site, bytes([reply]) + encode(signed))


def test_a_site_proved_byzantine_is_excluded_by_its_region(tables, tmp_path):
    """The region goes on without the site, and the server receives the proof."""
    parts = Parts(tables, tmp_path / "sites")
    parts.regions[0].carrier = Deviating(parts, {2})
    outcome = trained(tables, parts, tmp_path / "run")
    assert outcome.updates == 3
    (folder,) = (tmp_path / "sites" / "north").glob("*/excluded.jsonl")
    log = ExclusionLog(folder, folder.parent / "proofs")
    (culprit,) = log.culprits()
    assert (culprit.client, culprit.round, culprit.reason) == (2, 1, "wrong share")
    (proof,) = log.proofs.glob("*")
    stated = replace(culprit, proof=proof.read_bytes())
    assert proves(stated, FEDERATION.directory("north"))
    assert not proves(stated, FEDERATION.directory("south"))
    asked = [Envelope.decode(data).kind for site, data, _ in parts.sent if site == 2]
    assert asked.count(Kind.QUESTION) == 1
    assert outcome.culprits == (culprit,)
    (received,) = RunDirectory(tmp_path / "run").exclusions.proved(1, 0)
    assert received == stated
    assert not audit(tmp_path / "run").problems


def test_a_server_believes_proofs_alone(tables, tmp_path):
    """A coordinator cannot accuse another site, another region's, or in another sum."""
    parts = Parts(tables, tmp_path / "sites")
    parts.regions[0].carrier = Deviating(parts, {2})
    trained(tables, parts, tmp_path / "run", "run.rounds=1")
    (culprit,) = RunDirectory(tmp_path / "run").exclusions.proved(1, 0)
    north, south = (FEDERATION.directory(name) for name in MEMBERS)
    answer = reported(b"message", [culprit])
    assert read_report(answer, 1, 0, north) == (b"message", (culprit,))
    for directory, place in ((south, (1, 0)), (north, (2, 0)), (north, (1, 1))):
        assert read_report(answer, *place, directory) == (b"message", ())
    others = [
        replace(culprit, client=0),
        replace(culprit, reason="wrong dealing"),
        replace(culprit, proof=culprit.proof[:-1]),
        replace(culprit, proof=b"", complaints=3, reason="garbled shares"),
    ]
    assert read_report(reported(b"message", others), 1, 0, north) == (b"message", ())
    unknown = sized(b"message") + bytes(8) + b"\x02" + sized(culprit.proof)
    assert read_report(unknown, 1, 0, north) == (b"message", ())
    with pytest.raises(BadMessage):
        read_report(answer[:-1], 1, 0, north)


def test_a_region_with_more_culprits_than_its_noise_allows_for_stops(tables, tmp_path):
    parts = Parts(tables, tmp_path / "sites")
    trained(tables, parts, tmp_path / "run", "run.rounds=1")
    (run,) = [path for path in (tmp_path / "sites" / "north").iterdir() if path.is_dir()]
    log = ExclusionLog(run / "excluded.jsonl", run / "proofs")
    declared = parts.asked[0][0]
    for site, answers in ((0, Reply.ANSWERED), (2, Reply.DECLINED)):
        log.note(Culprit(site, 1, 0, "wrong share"))
        assert read_answer(parts.regions[0].answer(declared))[0] == answers


# --- restarts ---


class Restarting(Loopback):
    """A carrier whose region 0 is killed after it answers its message `when`, and asked again."""

    def __init__(self, parts, when, before):
        super().__init__({number: parts.answer(number) for number in parts.regions})
        self.parts, self.when, self.before, self.count = parts, when, before, 0

    def send(self, site, data, deadline):
        if site or Envelope.decode(data).kind not in (Kind.QUESTION, Kind.STEP):
            super().send(site, data, deadline)
            return
        number, self.count = self.count, self.count + 1
        if number == self.when and self.before:
            self.parts.regions[0] = self.parts.region("north")
        answer = self.parts.regions[0].answer(data)
        if number == self.when and not self.before:
            questions = len(self.parts.sent)
            self.parts.regions[0] = self.parts.region("north")
            assert self.parts.regions[0].answer(data) == answer
            assert read_answer(answer)[0] == Reply.ANSWERED
            assert len(self.parts.sent) == questions  # no site was asked again
        self._arrived.append((0, answer))


@every_case("when", range(5))
@every_case("before", [True, False])
def test_a_killed_coordinator_goes_on_from_what_it_committed(tables, tmp_path, when, before):
    parts = Parts(tables, tmp_path / "sites")
    carrier = Restarting(parts, 5 + when, before)
    outcome = trained(tables, parts, tmp_path / "run", "run.rounds=2", carrier=carrier)
    assert outcome.updates == 2
    simulated(tables, tmp_path / "here", "run.rounds=2")
    assert same_models(tmp_path / "here", tmp_path / "run")


def test_a_coordinator_killed_in_its_regions_sum_is_a_dropout(tables, tmp_path):
    """Its sites have answered: a second session would be another sum of the same cohort."""
    parts = Parts(tables, tmp_path / "sites")
    steps = []

    class Killed(BaseException):
        pass

    class Killing(Sites):
        def send(self, site, data, deadline):
            if Envelope.decode(data).kind == Kind.STEP:
                steps.append(site)
                if len(steps) == 7:
                    raise Killed
            super().send(site, data, deadline)

    class Reviving(Loopback):
        def send(self, site, data, deadline):
            try:
                super().send(site, data, deadline)
            except Killed:
                parts.regions[0] = parts.region("north")
                super().send(site, data, deadline)

    parts.regions[0].carrier = Killing(parts)
    carrier = Reviving({number: parts.answer(number) for number in parts.regions})
    outcome = trained(tables, parts, tmp_path / "run", carrier=carrier)
    assert (outcome.updates, len(outcome.aborts), outcome.charges) == (2, 1, 3)


# --- who may take part ---


@every_case(
    "keys, word",
    [
        (("secure.regions=3",), "2 regions"),
        (("secure.protocol=masks",), "2 regions"),
    ],
)
def test_a_run_with_other_regions_is_refused_by_every_part(tables, tmp_path, keys, word):
    parts = Parts(tables, tmp_path / "sites")
    config = tables.config(*KEYS, *keys, table="nowhere")
    assert word in FEDERATION.other_parties(config)
    with pytest.raises((Busy, Refused)):
        trained(tables, parts, tmp_path / "run", *keys)
    assert not Ledger.load(tmp_path / "run" / "ledger.jsonl").charges


def test_a_policy_counts_the_sites_of_a_region(tables, tmp_path):
    """A region's coordinator opens sums of two sites, which this policy does not permit."""
    strict = POLICY.replace("sites = 2", "sites = 3")
    parts = Parts(tables, tmp_path / "sites", policy=strict)
    with pytest.raises(Busy, match="north: declined sites"):
        trained(tables, parts, tmp_path / "run")
    wide = Parts(tables, tmp_path / "wide", policy=strict)
    outcome = trained(tables, wide, tmp_path / "more", "secure.minimum=6", "run.rounds=1")
    assert outcome.updates == 1
    assert outcome.guarantee.epsilon < math.inf
