"""What a site's party of a sum answers after a crash, with a state of before, or with none."""

import json
import shutil

import pytest
from faulty_loopback import DescriptionRequest, Watched
from hospitals import hospitals
from lanes import mostly_slow

from accounting.errors import LedgerBroken
from privfed.deploy.files.receipt import Commits
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.messages.envelope import Kind, Reply, read_answer
from privfed.deploy.site.agent import agent_of
from privfed.secure.summation import Aborted

STEPS = range(5)
"""The messages of a sum, by number: a question, its roster, inbox, survivors, votes."""


class Crash(BaseException):
    """A process dies."""


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites")


class Site:
    """Site 0, whose process may be started again, and whose state may be put back."""

    def __init__(self, made):
        self.made, self.saved = made, made.root / "saved"
        self.start()

    @property
    def state(self):
        return self.made.folder(0).state

    @property
    def lines(self):
        return [json.loads(line) for line in self.made.folder(0).receipts.read_text().splitlines()]

    def start(self):
        member = self.made.member(0)
        self.receipts, self.agent = member.receipts, agent_of(member)

    def answer(self, data):
        return self.agent.answer(data)

    def save(self):
        shutil.rmtree(self.saved, ignore_errors=True)
        shutil.copytree(self.state, self.saved)

    def put_back(self):
        shutil.rmtree(self.state)
        shutil.copytree(self.saved, self.state)


def asked(made, ask):
    """One round in which site 0 is asked by `ask`, and the others answer."""
    agents = [made.agent(site).answer for site in range(made.count)]

    def each(site, number, data):
        return ask(number, data) if site == 0 else agents[site](data)

    site = Site(made)
    sites = [site.answer, *agents[1:]]
    return site, DescriptionRequest(made, Watched(sites, each))


@pytest.mark.parametrize("step", STEPS)
def test_a_state_of_before_answers_nothing_more(made, step):
    """Not the message that was answered, byte for byte the same or not, and no later one."""
    answers = []

    def ask(number, data):
        if number == step:
            site.save()
        answer = site.answer(data)
        if number == step:
            after = made.root / "after"
            shutil.copytree(site.state, after)
            site.put_back()
            site.start()
            answers.append(read_answer(site.answer(data)))
            shutil.rmtree(site.state)
            shutil.copytree(after, site.state)
            site.start()
            assert site.answer(data) == answer  # of the last state, the same once more
        return answer

    site, asking = asked(made, ask)
    asking.play()
    assert answers == [(Reply.MALFORMED, b"")]
    assert len([line for line in site.lines if line["type"] == "answer"]) == 1


@pytest.mark.parametrize("commit", mostly_slow(range(1, 7), 1, 3, 6))
def test_a_crash_between_a_partys_state_and_its_receipt_hides_no_commit(made, commit, monkeypatch):
    """It goes on from the state, and a state of before is refused from then on."""
    committed, left, replies = Receipts.committed, [commit], []

    def crashing(receipts, run, count):
        if receipts is site.receipts:
            left[0] -= 1
            if left[0] == 0:
                raise Crash
        committed(receipts, run, count)

    def ask(number, data):
        if site.state.exists():
            site.save()
        try:
            return site.answer(data)
        except Crash:
            site.start()
        answer = site.answer(data)
        replies.append(read_answer(answer)[0])
        after = made.root / "after"
        shutil.copytree(site.state, after)
        site.put_back()
        site.start()
        replies.append(read_answer(site.answer(data))[0])
        shutil.rmtree(site.state)
        shutil.copytree(after, site.state)
        site.start()
        assert site.answer(data) == answer
        return answer

    monkeypatch.setattr(Receipts, "committed", crashing)
    site, asking = asked(made, ask)
    if commit == 3:  # its row was asked for and is lost: three sites may lose none
        with pytest.raises(Aborted):
            asking.play()
    else:
        asking.play()
    assert replies == [Reply.MALFORMED if commit == 3 else Reply.ANSWERED, Reply.MALFORMED]


def test_an_answered_exchange_whose_state_is_gone_is_not_answered_again(made):
    """Another row would leave, with coins and noise of its own, and one be charged."""

    def ask(number, data):
        answer = site.answer(data)
        if number == 4:
            shutil.rmtree(site.state)
            site.start()
            replies.append(read_answer(site.answer(first[0])))
            site.answer(
                made.signed(Kind.DECLARATION, asking.declaration.run, asking.declaration.encode())
            )
            replies.append(read_answer(site.answer(first[0])))
            replies.append(read_answer(site.answer(data)))
        elif number == 0:
            first.append(data)
        return answer

    first, replies = [], []
    site, asking = asked(made, ask)
    asking.play()
    assert replies == [(Reply.MALFORMED, b"")] * 3
    assert len([line for line in site.lines if line["type"] == "answer"]) == 1


def test_commits_are_in_the_chain_and_only_grow(made):
    def ask(number, data):
        answer = site.answer(data)
        counts.append(Receipts.load(made.folder(0).receipts).commits(asking.declaration.run.hex()))
        return answer

    counts = []
    site, asking = asked(made, ask)
    asking.play(2)
    assert counts == [1, 2, 4, 5, 6] * 2  # the row is claimed first; a new sum counts anew
    lines = site.lines
    assert [line["count"] for line in lines if line["type"] == "commits"] == [*range(1, 7)] * 2
    assert Receipts.load(made.folder(0).receipts).head == lines[-1]["hash"]
    path = made.folder(0).receipts
    path.write_bytes(path.read_bytes().replace(b'"count":5', b'"count":3', 1))
    with pytest.raises(LedgerBroken):
        Receipts.load(path)


def test_receipts_note_no_commit_twice_and_of_no_other_exchange(made):
    site, asking = asked(made, lambda number, data: site.answer(data))
    asking.play()
    run, receipts = asking.declaration.run.hex(), Receipts.load(made.folder(0).receipts)
    for wrong in (Commits(run, 1, 0, 6), Commits(run, 1, 0, 2), Commits(run, 1, 1, 9)):
        with pytest.raises(LedgerBroken):
            receipts._take(wrong, "0" * 64)
    with pytest.raises(LedgerBroken, match="never answered"):
        receipts._take(Commits("other", 1, 0, 9), "0" * 64)
    receipts.committed(run, 9)
    assert Receipts.load(receipts.path).commits(run) == 9
    assert receipts.commits("other") == 0
