"""How the loop-back federation tells what happened, and how it leaves nothing running."""

import signal
import subprocess
import sys

import pytest
from waiting import LONG, until

from accounting.events import Event
from accounting.ledger import Ledger
from accounting.noises import Skellam
from accounting.releases import PoissonSampled
from experiments.federation.agreement import compare
from experiments.federation.journal import Journal
from experiments.federation.processes import ProgramEnded, Programs
from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.site.policy import SpendingLimit
from privfed.plan.assumed import Assumed

EVENT, OTHER = (
    Event(PoissonSampled(rate, Skellam(4e6, 2000.0, 16000.0)), "poisson") for rate in (0.1, 0.2)
)
LOG = """\
2026-11-23 02:10:00,000 INFO begins after 0 rounds
2026-11-23 02:10:00,500 INFO site 0 is at node 97, after 2.500 s
2026-11-23 02:10:01,000 INFO site 0: 100 bytes, 30 back, 2.000 s
2026-11-23 02:10:02,000 INFO site 1: 100 bytes, 10 back, 4.000 s
2026-11-23 02:10:10,000 INFO round 1: accuracy 0.5
2026-11-23 02:10:10,000 INFO round 1 is over
2026-11-23 02:10:20,500 INFO round 2 is over
2026-11-23 02:10:30,000 WARNING round 3 aborted: too few sites
Traceback of somebody
2026-11-23 02:10:31,000 ERROR 2 of 3 sites are available
2026-11-23 02:11:00,000 INFO begins after 3 rounds
2026-11-23 02:11:20,000 INFO round 4 is over
2026-11-23 02:11:21,000 INFO site 0: 300 bytes, 50 back, 1.000 s
"""


def test_a_log_says_what_happened():
    journal = Journal.read(LOG)
    assert journal.over == [1, 2, 4]
    assert journal.aborted == {3: "too few sites"}
    assert journal.errors == ["2 of 3 sites are available"]
    assert not journal.done
    assert journal.seconds_per_round() == [10.5]  # of rounds that follow each other alone
    assert journal.seconds_per_exchange() == 2.0
    assert journal.seconds_per_greeting() == 2.5
    assert journal.bytes_per_site(rounds=2) == (125.0, 22.5)
    assert journal.exchanged() == 1
    assert Journal.read(LOG + "2026-11-23 02:12:00,000 INFO done: 3 rounds\n").done


def answered(folder, rounds, event=EVENT):
    folder.mkdir(exist_ok=True)
    path = folder / "receipts.jsonl"
    path.touch()
    receipts = Receipts.recover(path)
    for round in rounds:
        each = Receipt(
            "f" * 64, "r1", round, 0, "a" * 64, "c" * 64, "b" * 64, event, assumes=Assumed()
        )
        receipts.charged(each, SpendingLimit(epsilon=1e6))
    return folder


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"delta": 1e-5})
    for round in (1, 2, 3):
        ledger.charge(round, EVENT)
    return tmp_path / "ledger.jsonl"


def test_receipts_that_agree_and_all_ways_in_which_they_do_not(ledger, tmp_path):
    present, away = answered(tmp_path / "present", (1, 2, 3)), answered(tmp_path / "away", (1, 3))
    held = compare(ledger, {"present": present, "away": away}, opened={1, 3})
    assert held.problems == ()
    assert held.unopened == (2,)
    assert "no site answered" in held.lines()[-1]
    assert compare(ledger, {"away": away}, {1, 2, 3}).problems == (
        "away has no receipt of round 2",
    )
    more = answered(tmp_path / "more", (1, 2, 3, 4))
    (problem,) = compare(ledger, {"more": more}, {1}).problems
    assert problem == "more answered round 4, which was never charged"
    cheap = answered(tmp_path / "cheap", (1,), OTHER)
    (problem,) = compare(ledger, {"cheap": cheap}, set()).problems
    assert problem == "cheap charges round 1 by another event"
    (problem,) = compare(ledger, {}, {4}).problems
    assert problem == "round 4 was never charged"


SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {0!r}], **{1})"
CHILD = f"import time; time.sleep({LONG})"


@pytest.mark.parametrize("more", [{}, {"start_new_session": True}])
def test_nothing_is_left_of_programs_and_of_what_they_started(tmp_path, more):
    code = SLEEPER.format(CHILD, more) + f"; time.sleep({LONG})"
    programs = Programs(tmp_path, {})

    def interrupted():
        with programs:
            programs.start("parent", [sys.executable, "-c", code])
            until(lambda: len(programs.left()) >= 2, "a program, and what it starts")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert programs.left() == []


def test_a_program_that_fails_is_not_gone_past(tmp_path):
    with Programs(tmp_path, {}) as programs, pytest.raises(ProgramEnded, match="ended with 3: no"):
        programs.call(
            [sys.executable, "-c", "import sys; print('no', file=sys.stderr); sys.exit(3)"]
        )


def test_an_interrupted_story_leaves_nothing_running_and_no_file(tmp_path):
    """Ctrl-C while hospitals make their keys, which needs nothing of Flower's."""
    pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")
    folder = tmp_path / "all"
    command = [sys.executable, "-m", "experiments.federation", "--keep", str(folder)]
    story = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever it inherits
    )
    until((folder / "berlin" / "key").exists, "a key")
    story.send_signal(signal.SIGINT)
    out, err = story.communicate(timeout=LONG)
    assert story.returncode == 130, (out, err)
    assert "nothing is left running" in err
    assert "Traceback" not in err
