"""A site with a delay on its own machine: sums in time, sums too early, sums lost, noise always."""

import threading
import time

import numpy as np
import pytest
from hospitals import hospitals

from privfed.deploy.messages.envelope import Kind, Reply, read_answer
from privfed.deploy.messages.questions import Question
from privfed.deploy.site import late_rows
from privfed.deploy.site.late_rows import LateWork, keep_busy
from privfed.deploy.site.policy import Code, Declined
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind

EVERYBODY = ("cohort.sampler=full", "cohort.size=0", "secure.threat=curious")
DEADLINE = ("secure.deadline=5",)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("delays") / "sites", patients=36)


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Processors are not kept busy after training, so that tests are quick."""
    monkeypatch.setattr(late_rows, "keep_busy", lambda until: None)


def work(made, *keys, site=0):
    delays = f"data.site_delays=[{','.join(['2'] + ['0'] * (made.count - 1))}]"
    declaration, _ = made.declaration(*EVERYBODY, delays, *keys)
    setup = made.member(site).join(declaration).work.setup
    (question,) = questions_of_each_kind(setup)
    return SiteWork(site, setup, run=b"run"), question


class Clock:
    """A clock that advances by `step` seconds with each round."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        return self.now


def contributes(worker, question, rounds, clock=None):
    """Whether a sum of clients' rows is in the site's row of each of `rounds`."""
    late, present = worker.late, []
    if clock:
        late.clock = clock
    due = late.due
    for round in rounds:
        sums = []
        late.due = lambda *words, sums=sums: sums.append(due(*words)) or sums[-1]
        assert worker.row(Question(round, 0, question.exchange, question.state)).any(), "noise"
        present.append(sums[0] is not None and bool(sums[0].any()))
        if clock:
            clock.now += clock.step
    late.due = due
    return present


def test_rows_come_in_every_third_round_and_noise_in_all(made):
    worker, question = work(made)
    assert contributes(worker, question, range(1, 7)) == [False, False, True] * 2


def held(monkeypatch, hold):
    trained = SiteWork._late_sum

    def late_sum(here, question):
        hold.wait(60.0)
        return trained(here, question)

    monkeypatch.setattr(SiteWork, "_late_sum", late_sum)


def test_a_site_waits_for_its_sum_in_its_round(made, monkeypatch):
    worker, question = work(made)
    hold = threading.Event()
    held(monkeypatch, hold)
    assert contributes(worker, question, (1, 2)) == [False, False]
    threading.Timer(0.2, hold.set).start()
    assert contributes(worker, question, (3,)) == [True]


def test_sums_of_rounds_that_follow_too_fast_are_left_out_whatever_they_are(made, caplog):
    """A coordinator that does not wait learns nothing by it: ready sums are left out, too."""
    worker, question = work(made, *DEADLINE)
    third = [False, False, True]
    assert contributes(worker, question, range(1, 7), Clock(5.0)) == third * 2
    worker, question = work(made, *DEADLINE)
    assert contributes(worker, question, range(1, 4), Clock(4.9)) == [False] * 3
    assert "less than secure.deadline" in caplog.text


def test_no_sum_begins_before_the_time_of_the_last_one_has_passed(made):
    """So that a slow sample of one round does not slow the training for another."""
    worker, question = work(made, *DEADLINE)
    clock = Clock(1.0)
    assert contributes(worker, question, range(1, 5), clock) == [False] * 4
    assert worker.late._sums == {}, "round 4 began no sum"
    clock.now, clock.step = 100.0, 5.0
    assert contributes(worker, question, range(7, 10), clock) == [False, False, True]


def test_sums_are_lost_with_the_process_and_the_next_ones_come_in_time(made):
    before, question = work(made)
    assert contributes(before, question, (1, 2)) == [False, False]
    after = SiteWork(0, before.setup, run=b"run")
    assert contributes(after, question, (3, 4, 5, 6)) == [False, False, False, True]


def test_a_run_that_is_declared_again_keeps_its_late_sum(made):
    before, question = work(made)
    assert contributes(before, question, (1, 2)) == [False, False]
    after = SiteWork(0, before.setup, run=b"run", late=before.late)
    assert contributes(after, question, (3,)) == [True]


def test_rounds_without_the_site_do_not_delay_its_rows_further(made):
    worker, question = work(made)
    expected = [False, True, False, False, False, True]
    assert contributes(worker, question, (1, 3, 4, 7, 8, 9)) == expected


def test_failed_training_is_noted_and_counts_nobody(made, monkeypatch, caplog):
    worker, question = work(made)

    def failing(here, late):
        raise RuntimeError("patient p17 has 3 rows")

    monkeypatch.setattr(SiteWork, "_late_sum", failing)
    assert contributes(worker, question, (1, 2, 3)) == [False] * 3
    assert "NO CLIENT OF THIS SITE COUNTS" in caplog.text


def test_a_rehearsal_trains_at_once(made):
    worker, _ = work(made)
    assert SiteWork(0, worker.setup, all_clients=True).delay == 0
    assert worker.delay == 2


def test_other_runs_are_declined_until_the_time_has_passed():
    late = LateWork(Clock(0.0))
    late.refuse_beside(b"other")
    late.begin(b"run", 3, 10.0, lambda: np.ones(1, dtype=np.int64))
    late.refuse_beside(b"run")
    for other in (b"other", None):
        with pytest.raises(Declined) as declined:
            late.refuse_beside(other)
        assert declined.value.code is Code.BUSY
    late.clock.now = 10.0
    late.refuse_beside(b"other")
    late.refuse_beside(None)


def test_sums_wait_for_their_own_round_and_run_only():
    late = LateWork()
    one = np.ones(1, dtype=np.int64)
    late.begin(b"run", 5, 0.0, lambda: one)
    assert late.due(b"run", 4) is None
    assert late.due(b"other", 5) is None
    assert late.due(b"run", 5) is one
    assert late.due(b"run", 5) is None
    late.begin(b"run", 6, 0.0, lambda: one)
    assert late.due(b"run", 7) is None


def test_a_processor_is_busy_until_the_time_has_passed():
    began, cpu = time.monotonic(), time.thread_time()
    keep_busy(began + 0.2)
    assert time.monotonic() >= began + 0.2
    assert time.thread_time() > cpu + 0.02


def test_an_agent_declines_other_runs_beside_late_training(made):
    agent, (declared, _) = made.agent(0), made.declaration(*EVERYBODY)
    other, _ = made.declaration(*EVERYBODY, "run.seed=7")

    def answer(kind, declaration, body):
        return read_answer(agent.answer(made.signed(kind, declaration.run, body)))

    assert answer(Kind.DECLARATION, declared, declared.encode())[0] is Reply.ANSWERED
    agent.late.clock = Clock(0.0)
    agent.late.begin(b"a third run", 3, 10.0, lambda: np.ones(1, dtype=np.int64))
    busy = (Reply.DECLINED, b"busy")
    assert answer(Kind.QUESTION, declared, b"any question") == busy
    assert answer(Kind.DECLARATION, other, other.encode()) == busy
    assert answer(Kind.DECLARATION, declared, declared.encode())[0] is Reply.ANSWERED
    agent.late.clock.now = 10.0
    assert answer(Kind.QUESTION, declared, b"any question")[0] is Reply.MALFORMED
    assert answer(Kind.DECLARATION, other, other.encode())[0] is Reply.ANSWERED


def test_late_sums_belong_to_the_agent_and_not_to_a_declaration(made):
    member, agent = made.member(0), made.agent(0)
    first, _ = made.declaration(*EVERYBODY)
    second, _ = made.declaration(*EVERYBODY, "run.seed=7")
    parties = [member.join(declared) for declared in (first, second)]
    assert all(party.work.late is member.late for party in parties)
    assert [party.work.run for party in parties] == [first.run, second.run]
    assert agent.late is agent.join.__self__.late
