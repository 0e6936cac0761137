"""Runs that wait until a person approves them, and what an approval covers."""

import json
import re
from pathlib import Path

import pytest
from commands import run
from hospitals import POLICY, hospitals

from accounting.documents import from_toml
from privfed.core.errors import Refused
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.approvals import _MOST, Approvals
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.site.policy import Code
from privfed.deploy.site.site_check import check_site

BY_HAND = POLICY.replace("[allow]", 'approve = "by_hand"\n[allow]')


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites", policy=BY_HAND)


def answered(made, declaration, agent=None):
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    return read_answer((agent or made.agent(0)).answer(message))


WAITS = (Reply.DECLINED, Code.APPROVAL.value.encode())


def approve(made, *more):
    (pending,) = Approvals(made.folder(0).approvals).all()
    run("site", "approve", made.folder(0).path, pending.digest[:8], *more)


def test_a_declared_run_waits_for_a_person(made):
    declaration, _ = made.declaration()
    before = made.folder(0).receipts.read_bytes()
    assert answered(made, declaration) == WAITS
    (pending,) = Approvals(made.folder(0).approvals).all()
    assert (pending.decision, bool(pending.declared)) == ("pending", True)
    assert made.folder(0).receipts.read_bytes() == before
    assert not (made.folder(0).state / declaration.run.hex()).exists()
    approve(made)
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)


def test_what_is_declined_by_hand_stays_declined(made):
    declaration, _ = made.declaration()
    assert answered(made, declaration) == WAITS
    approve(made)
    (approved,) = Approvals(made.folder(0).approvals).all()
    assert run("site", "decline", made.folder(0).path, approved.digest).exit_code == 0
    assert answered(made, declaration) == WAITS


def test_an_approval_ends(made):
    declaration, _ = made.declaration()
    answered(made, declaration)
    approve(made, "--days", "0.0000001")
    assert answered(made, declaration) == WAITS
    (ended,) = Approvals(made.folder(0).approvals).all()
    assert ended.decision == "expired"
    approve(made)
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)


@pytest.mark.parametrize("key", ["run.rounds=5", "client.lr=0.25", "privacy.noise_multiplier=1.6"])
def test_another_run_file_needs_its_own_approval(made, key):
    """Also one with more rounds alone, which costs more."""
    declaration, _ = made.declaration()
    answered(made, declaration)
    approve(made)
    assert answered(made, made.declaration(key)[0]) == WAITS


def test_a_new_ledger_of_the_same_run_file_needs_no_other_approval(made):
    """The budget limits how often a run may be repeated."""
    answered(made, made.declaration()[0])
    approve(made)
    again, _ = made.declaration()
    assert answered(made, again) == (Reply.ANSWERED, again.run)


def test_an_approval_permits_nothing_that_the_policy_does_not(made):
    declaration, _ = made.declaration()
    answered(made, declaration)
    approve(made)
    made.folder(0).policy.write_text(BY_HAND.replace("sites = 2", "sites = 4"))
    assert answered(made, declaration) == (Reply.DECLINED, Code.SITES.value.encode())


MODEL = "from torch import nn\n\n\ndef make():\n    return nn.Linear(2, 2)\n"


def test_an_approval_covers_the_file_of_the_model(made, tmp_path, monkeypatch):
    module = tmp_path / "reviewed17.py"
    module.write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    name = "reviewed17:make"
    declaration, _ = made.declaration(f"model.name={name}")
    assert answered(made, declaration) == (Reply.DECLINED, Code.MODEL.value.encode())

    def listed():
        from privfed.deploy.site.user_modules import file_digest

        models = f'[allow]\nmodels = ["{file_digest(module)}"]'
        made.folder(0).policy.write_text(BY_HAND.replace("[allow]", models))

    listed()
    assert answered(made, declaration) == WAITS
    approve(made)
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)
    module.write_text(f"{MODEL}# edited\n")
    listed()
    assert answered(made, declaration) == WAITS


def test_a_run_can_be_approved_before_it_is_declared(made):
    """A file that leaves keys out has the digest of the declared one."""
    file = made.root / "sent.toml"
    declaration, _ = made.declaration()
    file.write_text(declaration.text.partition("[resolved]")[0].replace('"stacked"', '"auto"'))
    checked = check_site(made.member(0), file)
    assert checked.approval.decision == "pending"
    answer = run("site", "check", made.folder(0).path, file)
    (digest,) = re.findall(r"^approval pending: ([0-9a-f]{64})$", answer.output, re.MULTILINE)
    assert digest == checked.approval.digest
    run("site", "approve", made.folder(0).path, digest)
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)


def test_all_sites_have_one_digest_whatever_their_tables_and_machines(made):
    """Keys that a site sets itself, or measures on its machine, are not part of it."""
    data = made.folder(1).data
    data.write_text(data.read_text() + 'delimiter = ";"\nthreads = 2\n')
    digests = set()
    for site in range(2):
        for keys in (("run.trainer=stacked", "run.chunk=8"), ("run.trainer=loop", "run.chunk=4")):
            declaration, _ = made.declaration(*keys)
            answered(made, declaration, made.agent(site))
        digests |= {each.digest for each in Approvals(made.folder(site).approvals).all()}
    assert len(digests) == 1


def test_the_recorded_run_file_can_be_checked(made):
    answered(made, made.declaration()[0])
    (pending,) = Approvals(made.folder(0).approvals).all()
    answer = run("site", "check", made.folder(0).path, pending.run_file, "--json")
    assert json.loads(answer.output)["approval"]["digest"] == pending.digest
    assert from_toml(Path(pending.run_file).read_text())["run"]["rounds"] == 4


def test_declining_a_run_stops_it_before_its_next_exchange(made, tmp_path):
    """A decision is read before each charge."""
    file = made.run_file("data.site_partition=elsewhere", "secure.minimum=2")
    decisions = {site: Approvals(made.folder(site).approvals) for site in range(3)}
    for site, approvals in decisions.items():
        digest = check_site(made.member(site), file).approval.digest
        approvals.decide(digest, "approved", 1.0)
    agents, replies = {site: made.agent(site) for site in range(3)}, []

    def declines_after_the_first(data):
        replies.append(read_answer(answer := agents[0].answer(data)))
        if Receipts.load(made.folder(0).receipts).runs:
            (run,) = decisions[0].all()
            decisions[0].decide(run.digest, "declined", 0.0)
        return answer

    answers = {site: agent.answer for site, agent in agents.items()}
    carrier = Loopback({**answers, 0: declines_after_the_first})
    facts = (made.federation_file, made.key_file, tmp_path / "out")
    coordinate(file, *facts, connect=lambda _: carrier, seconds=20, patience=0)
    assert WAITS in replies
    last = [made.member(site).receipts.runs[-1].last_round for site in range(3)]
    assert last == [1, 4, 4]


@pytest.mark.parametrize("digest", ["", "abc", "0" * 7, "zz" * 32, "0" * 65, "../../key"])
def test_a_digest_that_identifies_no_run_is_refused(made, digest):
    answered(made, made.declaration()[0])
    before = sorted(made.folder(0).approvals.iterdir())
    answer = run("site", "approve", made.folder(0).path, digest)
    assert (answer.exit_code, "does not identify a run" in answer.stderr) == (2, True)
    assert sorted(made.folder(0).approvals.iterdir()) == before


@pytest.mark.parametrize("text", ["", "{}", '{"decision": "yes"}', '{"decision": "approved"'])
def test_a_damaged_decision_approves_nothing_and_hinders_no_other_run(made, text):
    declaration, _ = made.declaration()
    answered(made, declaration)
    approve(made)
    (path,) = made.folder(0).approvals.glob("*.json")
    path.write_text(text)
    assert answered(made, declaration) == WAITS
    assert "  damaged; " in run("site", "pending", made.folder(0).path).output
    other, _ = made.declaration("run.rounds=5")
    assert answered(made, other) == WAITS
    listed = {each.digest for each in Approvals(made.folder(0).approvals).all()}
    (digest,) = listed - {path.stem}
    assert run("site", "approve", made.folder(0).path, digest).exit_code == 0
    assert answered(made, other) == (Reply.ANSWERED, other.run)


def test_an_approval_is_for_one_federation(made):
    """Another coordinator's run of the same file waits for its own approval."""
    declaration, _ = made.declaration()
    answered(made, declaration)
    approve(made)
    other = SiteKey.draw("coordinator")
    federation = made.federation.model_copy(update={"coordinator": str(other.public)})
    made.folder(0).federation.unlink()
    federation.write_new(made.folder(0).federation)
    envelope = Envelope(
        bytes.fromhex(federation.digest()),
        declaration.run,
        Kind.DECLARATION,
        declaration.encode(),
    )
    answer = made.agent(0).answer(envelope.signed(other.identity).encode())
    assert read_answer(answer) == WAITS


def test_an_approved_run_is_recorded_when_it_is_declared(made):
    declaration, _ = made.declaration()
    file = made.root / "sent.toml"
    file.write_text(declaration.text)
    digest = check_site(made.member(0), file).approval.digest
    run("site", "approve", made.folder(0).path, digest)
    before = run("site", "pending", made.folder(0).path).output
    assert "not declared yet" in before
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)
    after = run("site", "pending", made.folder(0).path).output
    assert "4 rounds, ε = " in after
    assert "columns age, bmi" in after


def test_an_unreadable_run_file_hinders_no_listing(made):
    answered(made, made.declaration()[0])
    (text,) = made.folder(0).approvals.glob("*.toml")
    text.write_bytes(b"[run\xff")
    answer = run("site", "pending", made.folder(0).path)
    assert (answer.exit_code, "unreadable" in answer.output) == (0, True)


@pytest.mark.parametrize("word", ["pending", "approve", "decline"])
def test_no_decision_is_made_in_a_folder_of_no_site(tmp_path, word):
    words = [] if word == "pending" else ["0" * 64]
    answer = run("site", word, tmp_path / "nowhere", *words)
    assert (answer.exit_code, "policy.toml does not exist" in answer.stderr) == (2, True)
    assert not (tmp_path / "nowhere").exists()


def test_another_user_makes_no_decision_that_the_agent_cannot_read(made, monkeypatch):
    answered(made, made.declaration()[0])
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    answer = run("site", "approve", made.folder(0).path, "0" * 64)
    assert (answer.exit_code, "sudo -u" in answer.stderr) == (2, True)


def test_declarations_cannot_fill_the_disk(made):
    approvals = Approvals(made.folder(0).approvals)
    for number in range(_MOST + 5):
        approvals.record(f"{number:064x}", "format = 1\n")
    assert len(list(approvals.all())) == _MOST


def test_a_folder_without_runs_lists_none(made):
    assert "no run was declared" in run("site", "pending", made.folder(0).path).output
    with pytest.raises(Refused, match="does not identify"):
        Approvals(made.folder(0).approvals).decide("0" * 8, "approved", 1.0)
