"""Parties in processes of their own, killed by a signal at moments that nobody chose."""

import multiprocessing
import os
import random
import sys
from multiprocessing import forkserver

import pytest
from committed_parties import Setting, played, process
from lanes import mostly_slow
from waiting import LONG

from privfed.secure.summation import Aborted

OFTEN = 0.4
"""The chance that a party is killed when it was asked, each time."""
LATEST = 0.012
"""Seconds after a question: about what an answer takes, with its commits."""
PROCESSES = multiprocessing.get_context("forkserver")


class Remote:
    """A party in a process that is killed now and then, and started again from its file."""

    def __init__(self, setting, me, folder, rng, often):
        self.setting, self.me, self.folder, self.rng, self.often = setting, me, folder, rng, often
        self.kills, self.late = 0, 0
        self._start()

    def _start(self):
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=process, args=(self.setting, self.me, str(self.folder), theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        assert self._heard() == b"ready"

    def kill(self):
        """By SIGKILL, wherever it is."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.kills += 1

    def ask(self, question):
        """Its last answer to `question`, which is that of every life that gave one."""
        answers = []
        while self.rng.random() < self.often:
            self.pipe.send_bytes(question)
            if self.pipe.poll(self.rng.uniform(0, LATEST)):
                answers.append(self._heard())
                self.late += 1
            self.kill()
            self._start()
        self.pipe.send_bytes(question)
        answers.append(self._heard())
        refused = [answer for answer in answers if answer.startswith(b"refused ")]
        assert len({*answers} - {*refused}) <= 1, "two answers to one question"
        assert not (refused and len(refused) < len(answers)), "answered, and refused again"
        if refused:
            raise Aborted(refused[0].removeprefix(b"refused ").decode())
        return answers[-1]

    def _heard(self):
        assert self.pipe.poll(LONG), "no answer"
        try:
            return self.pipe.recv_bytes()
        except EOFError:
            raise AssertionError("the process is gone by itself") from None

    @property
    def rows(self):
        path = self.folder / f"{self.me}.rows"
        return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def ready():
    """Processes that begin where the code is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        PROCESSES.set_forkserver_preload(["committed_parties"])
        forkserver.ensure_running()


@pytest.mark.parametrize("seed", mostly_slow(range(6), 0))
def test_a_sum_is_exact_or_aborted_whenever_parties_are_killed(tmp_path, seed):
    """Who was killed while its row was made is missing; no row is asked for twice."""
    rng, setting = random.Random(seed), Setting()
    sites = {who: Remote(setting, who, tmp_path, rng, OFTEN) for who in setting.ids}
    try:
        outcome = played(setting, sites)
        refused = "row lost", "answered already"  # as it has left, where nobody heard the first
        assert all(str(fault).startswith(refused) for fault in outcome.faults[: len(lost(outcome))])
        stay = [who for who in setting.ids if who not in lost(outcome)]
        assert all(sites[who].rows == 1 for who in stay)
        assert all(site.rows <= 1 for site in sites.values())
        assert sum(site.kills for site in sites.values()) >= 5
        if len(stay) < setting.minimum:
            assert outcome.total is None
        else:
            assert outcome.total == setting.sum_of(stay).tolist()
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.state"))
    finally:
        for site in sites.values():
            site.kill()


def lost(outcome):
    """Who gave no masked row."""
    return {who for who, name in outcome.questions if name == "Inbox"} - {
        who for who, name in outcome.answers if name == "Inbox"
    }
