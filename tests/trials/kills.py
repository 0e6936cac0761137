"""SIGKILL at any time: real processes on a real disk, killed and resumed until they are done."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from pathlib import Path

from small import same_run, small

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.run.train import resume, train


def survived(folder: Path, overrides: tuple[str, ...], kills: int, seed: int = 0) -> int:
    """How many runs came through `kills` SIGKILLs between them; each is held against `_is_whole`.

    Processes are forked from this one, so that they are at work at once.
    """
    whole, rng = folder / "whole", random.Random(seed)
    train(small(*overrides), whole)
    seconds = _seconds(folder / "timed", overrides)
    runs = done = 0
    while done < kills:
        path, alive, lives = folder / f"{runs}", True, 0
        while alive:  # a life may be too short to get anywhere: later ones are longer
            alive = _killed(path, overrides, rng.uniform(0.0, seconds * (1 + lives / 4)))
            lives, done = lives + 1, done + alive
        _is_whole(path, whole, overrides)
        shutil.rmtree(path)
        runs += 1
    return runs


def _seconds(path: Path, overrides: tuple[str, ...]) -> float:
    """How long one takes that nobody kills, in a process of its own."""
    began, child = time.perf_counter(), os.fork()
    if not child:
        _live(path, overrides)
    os.waitpid(child, 0)
    return time.perf_counter() - began


def _killed(path: Path, overrides: tuple[str, ...], seconds: float) -> bool:
    """Whether it was killed after so many seconds, and not done before."""
    child = os.fork()
    if not child:
        _live(path, overrides)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0, (path.parent / "failed.txt").read_text()
    return False


def _live(path: Path, overrides: tuple[str, ...]) -> None:
    """In a process of its own, which ends here."""
    try:
        if (path / "config.toml").exists():
            resume(path, lambda config: config)
        else:
            train(small(*overrides), path)
        os._exit(0)
    except BaseException:
        (path.parent / "failed.txt").write_text(traceback.format_exc())
        os._exit(1)


def _is_whole(path: Path, whole: Path, overrides: tuple[str, ...]) -> None:
    rounds = small(*overrides).run.rounds
    charges = Ledger.load(path / "ledger.jsonl").charges
    assert [charge.round for charge in charges] == [*range(1, rounds + 1)]
    assert audit(path).problems == ()
    if "run.randomness=seeded" in overrides:
        same_run(whole, path)
