"""What an engine's operator sees: when each answer leaves a site, and how large it is.

Two sites that are alike but for their data answer one round after the other: one has nobody, of the
other everybody is drawn, and trains for long. With a time to train (`secure.deadline`) sizes are
equal and times cannot be told apart; without one the same test tells them apart at once.
"""

import contextlib
import time

import numpy as np
import pytest
from faulty_loopback import DescriptionRequest, Watched
from hospitals import data_text, hospitals, stays, write_table
from scipy import stats

from privfed.client.trainer import LocalTrainer
from privfed.deploy.messages.envelope import Envelope, Kind, Reply
from privfed.deploy.site import joining
from privfed.deploy.site.run_party import FixedTime
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode
from privfed.secure.summation import Aborted

EMPTY, FULL = 0, 1
DEADLINE, CHUNK, APART = 3600.0, 60.0, 180.0
"""Seconds to train in, with a blur of 72; that a chunk seems to train; and that would be seen."""
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")


def times_and_sizes(folder, rounds, deadline, population=60, clock=time.perf_counter):
    """The seconds `[rounds]` until the row left, and the sizes of all answers, of both sites."""
    made = hospitals(folder, patients=200)
    rng = np.random.default_rng(5)
    every = [row for n in range(population) for row in stays(f"x{n}", "h1", 4, rng)]
    write_table(made.table("h0"), every[:0])
    write_table(made.table("h1"), every)
    for site in range(made.count):
        text = data_text(made.table(f"h{site}"), clients=200)
        made.folder(site).data.write_text(text)
    seconds, sizes = {EMPTY: [], FULL: []}, {EMPTY: [], FULL: []}

    def ask(site, number, data):
        began = clock()
        answer = agents[site].answer(data)
        took = clock() - began
        if site in seconds and answer[0] == Reply.ANSWERED:
            sizes[site].append(len(answer))
            if _asks_for_row(data):
                seconds[site].append(took)
        return answer

    agents = [made.agent(site) for site in range(made.count)]
    keys = (*EVERYBODY, f"secure.deadline={deadline}", f"run.rounds={rounds}")
    asking = DescriptionRequest(made, Watched([agent.answer for agent in agents], ask), *keys)
    for _ in range(rounds):
        with contextlib.suppress(Aborted):  # on a machine that is busy with other things
            asking.play()
    return [np.array(seconds[site]) for site in (EMPTY, FULL)], sizes


def _asks_for_row(data):
    envelope = Envelope.decode(data)
    return envelope.kind == Kind.STEP and isinstance(decode(envelope.body), Inbox)


def p_value_of_equal_times(seconds):
    """The probability of times so different, were they of one distribution."""
    return float(stats.mannwhitneyu(*seconds).pvalue)


def test_without_a_time_to_train_an_operator_sees_whether_anybody_is_there(tmp_path):
    seconds, sizes = times_and_sizes(tmp_path / "sites", 16, 0, population=150)
    assert p_value_of_equal_times(seconds) < 1e-4
    assert {*sizes[EMPTY]} == {*sizes[FULL]}


@pytest.fixture
def long_training(monkeypatch):
    """A clock on which training takes `CHUNK` seconds more a chunk, and nobody sleeps."""
    slept, train = [], LocalTrainer.train

    def clock():
        return time.perf_counter() + sum(slept)

    def slowly(*given, **named):
        slept.append(CHUNK)
        return train(*given, **named)

    def fixed(seconds):
        return FixedTime(seconds, clock=clock, sleep=slept.append)

    monkeypatch.setattr(LocalTrainer, "train", slowly)
    monkeypatch.setattr(joining, "FixedTime", fixed)
    return clock


@pytest.mark.parametrize("hidden", [False, True], ids=["at once", "at a fixed time"])
def test_with_a_time_to_train_they_are_within_the_same_moment(tmp_path, long_training, hidden):
    """That training takes long is seen without it."""
    deadline = DEADLINE if hidden else 0
    seconds, sizes = times_and_sizes(tmp_path / "sites", 3, deadline, clock=long_training)
    assert {*sizes[EMPTY]} == {*sizes[FULL]}
    assert all((each >= deadline).all() for each in seconds)
    apart = abs(np.median(seconds[EMPTY]) - np.median(seconds[FULL]))
    assert (apart < APART) == hidden


@pytest.mark.slow
def test_with_a_time_to_train_times_cannot_be_told_apart(tmp_path):
    """At 60 rounds, nobody against everybody, in a time that leaves enough here to train in."""
    longest = max(map(np.max, times_and_sizes(tmp_path / "timed", 3, 0)[0]))
    seconds, sizes = times_and_sizes(tmp_path / "sites", 60, max(0.6, 5 * longest))
    assert {*sizes[EMPTY]} == {*sizes[FULL]}
    assert p_value_of_equal_times(seconds) > 1e-3
