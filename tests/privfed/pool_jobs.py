"""What workers of a pool do in tests; by itself, so that a worker has little to import."""

import os
import signal
import time
from pathlib import Path

from waiting import until


def job(what):
    """Die, exit, sleep, wait for another job, or return `what` at once, with the process's id."""
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(7)
    if isinstance(what, float):
        time.sleep(what)
    if isinstance(what, tuple):  # each waits for the other: alone, neither would end
        mine, other = what
        Path(mine).touch()
        until(Path(other).exists, "the other job")
    return what, os.getpid()
