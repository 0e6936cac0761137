"""A site with a delay on its own machine: rows in time, rows too late, rows lost, noise always."""

import threading

import numpy as np
import pytest
from hospitals import hospitals

from privfed.deploy.messages.questions import Question
from privfed.deploy.site import late_rows
from privfed.deploy.site.late_rows import LateRows, LateWork
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


def counts(worker, question, rounds, wait=True):
    """The number of client rows in the site's sum of each of `rounds`."""
    found = []
    for round in rounds:
        if wait and worker._late._next is not None:
            worker._late._next._thread.join(60.0)
        found.append(sum(len(ids) for ids, _ in worker._rows(asked(question, round))))
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


def test_rows_that_are_not_ready_are_left_out_and_never_counted_later(made, monkeypatch, caplog):
    worker, question = work(made)
    hold, trained = threading.Event(), SiteWork._trained_late

    def held(here, late):
        hold.wait(60.0)
        return trained(here, late)

    monkeypatch.setattr(SiteWork, "_trained_late", held)
    assert counts(worker, question, (1, 2, 3), wait=False) == [0, 0, 0]
    assert "longer than the rounds of its delay" in caplog.text
    hold.set()
    clients = worker.setup.federation.clients
    assert counts(worker, question, (4, 5, 6)) == [0, 0, clients]


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
    assert "training failed" in caplog.text


def test_a_rehearsal_trains_at_once(made):
    worker, question = work(made)
    rehearsal = SiteWork(0, worker.setup, all_clients=True)
    assert counts(rehearsal, question, (1,)) == [worker.setup.federation.clients]


def test_rows_wait_for_their_own_round_only():
    late = LateWork()
    late.begin(5, list)
    assert late.due(4) == ()
    late._next._rows = ["rows"]
    assert late.due(5) == ["rows"]
    assert late.due(5) == ()
    assert isinstance(LateRows(1, list).ready(), list)
    assert late_rows.Chunks() == []
