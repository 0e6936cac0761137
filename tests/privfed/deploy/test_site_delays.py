"""A site with a delay on its own machine: rows in time, rows too late, rows lost, noise always."""

import threading

import numpy as np
import pytest
from hospitals import hospitals

from privfed.deploy.messages.questions import Question
from privfed.deploy.site.late_rows import LateWork
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind

EVERYBODY = ("cohort.sampler=full", "cohort.size=0", "secure.threat=curious")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("delays") / "sites", patients=36)


def work(made, *keys, site=0):
    count = made.count
    delays = f"data.site_delays=[{','.join(['2'] + ['0'] * (count - 1))}]"
    declaration, _ = made.declaration(*EVERYBODY, delays, *keys)
    setup = made.member(site).join(declaration).work.setup
    (question,) = questions_of_each_kind(setup)
    return SiteWork(site, setup), question


def asked(question, round):
    return Question(round, question.number, question.exchange, question.state)


def counts(worker, question, rounds):
    """The number of client rows in the site's sum of each of `rounds`."""
    return [sum(len(ids) for ids, _ in worker._rows(asked(question, round))) for round in rounds]


class Clock:
    """A clock that advances by `step` seconds with each round."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        return self.now

    def counts(self, worker, question, rounds):
        worker._late.clock, found = self, []
        for round in rounds:
            found += counts(worker, question, (round,))
            self.now += self.step
        return found


def test_rows_come_in_every_third_round_and_noise_in_all(made):
    worker, question = work(made)
    clients = worker.setup.federation.clients
    assert counts(worker, question, range(1, 7)) == [0, 0, clients, 0, 0, clients]
    fast, question = work(made, site=1)
    assert counts(fast, question, (1, 2)) == [fast.setup.federation.clients] * 2
    sums = np.stack([worker.row(asked(question, round)) for round in (7, 8)])
    share = worker.encoding(question).noise
    assert share is not None
    assert sums.any(axis=1).all(), "the site's share of noise"


def test_a_site_waits_for_its_rows_until_their_round_ends(made, monkeypatch):
    worker, question = work(made)
    hold, trained = threading.Event(), SiteWork._trained_late

    def held(here, late):
        hold.wait(60.0)
        return trained(here, late)

    monkeypatch.setattr(SiteWork, "_trained_late", held)
    assert counts(worker, question, (1, 2)) == [0, 0]
    threading.Timer(0.2, hold.set).start()
    assert counts(worker, question, (3,)) == [worker.setup.federation.clients]


DEADLINE = ("secure.deadline=5",)


def test_rows_of_rounds_that_follow_too_fast_are_left_out_whatever_they_are(made, caplog):
    """A coordinator that does not wait learns nothing by it: ready rows are left out, too."""
    worker, question = work(made, *DEADLINE)
    assert worker._late.seconds == 10.0
    clients = worker.setup.federation.clients
    assert Clock(5.0).counts(worker, question, range(1, 7)) == [0, 0, clients, 0, 0, clients]
    worker, question = work(made, *DEADLINE)
    assert Clock(4.9).counts(worker, question, range(1, 4)) == [0, 0, 0]
    assert "less than secure.deadline" in caplog.text


def test_no_rows_begin_before_the_time_of_the_last_ones_has_passed(made):
    """So that a slow sample of one round does not slow the training for another."""
    worker, question = work(made, *DEADLINE)
    clock = Clock(1.0)
    assert clock.counts(worker, question, range(1, 5)) == [0] * 4
    assert worker._late._next is None, "round 4 began no rows"
    clock.now = 100.0
    clients = worker.setup.federation.clients
    clock.step = 5.0
    assert clock.counts(worker, question, range(7, 10)) == [0, 0, clients]


def test_rows_are_lost_with_the_process_and_the_next_ones_come_in_time(made):
    before, question = work(made)
    assert counts(before, question, (1, 2)) == [0, 0]
    after = SiteWork(0, before.setup)
    clients = after.setup.federation.clients
    assert counts(after, question, (3, 4, 5, 6)) == [0, 0, 0, clients]


def test_rounds_without_the_site_do_not_delay_its_rows_further(made):
    worker, question = work(made)
    clients = worker.setup.federation.clients
    assert counts(worker, question, (1, 3, 4, 7, 8, 9)) == [0, clients, 0, 0, 0, clients]


def test_failed_training_is_noted_and_counts_nobody(made, monkeypatch, caplog):
    worker, question = work(made)

    def failing(here, late):
        raise RuntimeError("patient p17 has 3 rows")

    monkeypatch.setattr(SiteWork, "_trained_late", failing)
    assert counts(worker, question, (1, 2, 3)) == [0, 0, 0]
    assert "NO CLIENT OF THIS SITE COUNTS" in caplog.text


def test_a_rehearsal_trains_at_once(made):
    worker, question = work(made)
    rehearsal = SiteWork(0, worker.setup, all_clients=True)
    assert counts(rehearsal, question, (1,)) == [worker.setup.federation.clients]


def test_rows_wait_for_their_own_round_only():
    late = LateWork(0.0)
    late.begin(5, lambda: ["rows"])
    assert late.due(4) == ()
    assert late.due(5) == ["rows"]
    assert late.due(5) == ()
    late.begin(6, lambda: ["rows"])
    assert late.due(7) == ()
