"""When rows leave a site: at one time, whoever was drawn."""

import threading

import numpy as np
import pytest
from scipy import stats
from waiting import BRIEF, LONG

from privfed.deploy.site.run_party import FixedTime
from privfed.secure.summation import Aborted


class Clock:
    """A clock that sleeping, and work, moves on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds


def left_at(work, seconds=60.0):
    """When an answer leaves that takes `work` seconds."""
    clock = Clock()
    leaving = FixedTime(seconds, 0.0, clock, clock.sleep)
    assert leaving.answer(lambda: clock.sleep(work) or b"row") == b"row"
    return clock.now


def test_rows_leave_at_one_time_however_much_was_to_do():
    assert {left_at(work) for work in (0.0, 0.1, 30.0, 59.9)} == {160.0}


def test_what_is_not_ready_in_time_does_not_leave():
    with pytest.raises(Aborted, match="not ready in time"):
        left_at(60.1)


def test_what_fails_says_so_no_sooner():
    clock = Clock()

    def failing():
        clock.sleep(7.0)
        raise ValueError

    with pytest.raises(ValueError):
        FixedTime(60.0, 0.0, clock, clock.sleep).answer(failing)
    assert clock.now == 160.0


def test_without_a_time_rows_leave_as_soon_as_they_can():
    assert left_at(5.0, seconds=0.0) == 105.0


def test_an_answer_leaves_at_a_time_that_is_blurred_alike_whatever_was_to_do():
    """By more than a machine's own microseconds, and by nothing that anybody's data decide."""

    def left(work):
        clock = Clock()
        FixedTime(60.0, 0.02, clock, clock.sleep).answer(lambda: clock.sleep(work) or b"row")
        return clock.now - 160.0

    times = np.array([[left(work) for _ in range(400)] for work in (0.0, 59.0)])
    assert times.min() >= 0.0
    assert times.max() <= 1.2
    for each in times:
        assert stats.kstest(each / 1.2, "uniform").pvalue > 1e-6


def test_what_is_cut_off_leaves_at_the_same_time_as_what_is_not():
    clock, over = Clock(), threading.Event()
    unhurried, hurried = (FixedTime(s, 0.0, clock, clock.sleep) for s in (LONG, BRIEF))
    assert unhurried.cut_off(lambda: "read", lambda: "late") == "read"
    assert clock.now == pytest.approx(100.0 + LONG)
    held = hurried.cut_off(lambda: over.wait(LONG), lambda: "late")
    over.set()
    assert held == "late"
    assert clock.now == pytest.approx(100.0 + LONG + BRIEF)
    with pytest.raises(ValueError):
        unhurried.cut_off(lambda: int("x"), lambda: "late")
    assert clock.now == pytest.approx(100.0 + 2 * LONG + BRIEF)
    assert FixedTime(0.0).cut_off(lambda: "read", lambda: "late") == "read"


def test_when_a_table_was_read_is_blurred_as_a_sum_is():
    clock = Clock()
    leaving = FixedTime(60.0, 0.02, clock, clock.sleep)
    times = []
    for _ in range(200):
        began = clock.now
        leaving.cut_off(lambda: clock.sleep(59.0), lambda: None)
        times.append(clock.now - began - 60.0)
    assert min(times) >= 0.0
    assert stats.kstest(np.array(times) / 1.2, "uniform").pvalue > 1e-6
