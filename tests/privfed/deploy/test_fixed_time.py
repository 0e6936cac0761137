"""When rows leave a site: at one time, whoever was drawn."""

import pytest

from privfed.deploy.site.fixed_time import FixedTime
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
    clock = Clock()
    leaving = FixedTime(seconds, clock, clock.sleep)
    leaving.begin()
    clock.now += work
    leaving.wait()
    return clock.now


def test_rows_leave_at_one_time_however_much_was_to_do():
    assert {left_at(work) for work in (0.0, 0.1, 30.0, 59.9)} == {160.0}


def test_what_is_not_ready_in_time_does_not_leave():
    with pytest.raises(Aborted, match="not ready in time"):
        left_at(60.1)


def test_a_question_of_another_process_is_late():
    clock = Clock()
    with pytest.raises(Aborted, match="not ready in time"):
        FixedTime(60.0, clock, clock.sleep).wait()


def test_without_a_time_rows_leave_as_soon_as_they_can():
    assert left_at(5.0, seconds=0.0) == 105.0


def test_a_row_that_left_may_be_sent_again_at_once():
    clock = Clock()
    leaving = FixedTime(60.0, clock, clock.sleep)
    for _ in range(2):
        leaving.begin()
        began = clock.now
        leaving.wait()
        clock.now += 5
        leaving.wait()
        assert clock.now == began + 65
