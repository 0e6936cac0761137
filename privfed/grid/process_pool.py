"""Executes jobs in worker processes; if a process dies, only the job that it ran is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from privfed.core.failures import OUR_FAULT, bug_message, ends_silently, guarded, report_failure

Job = TypeVar("Job")
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class WorkerDied:
    """The result of a job whose worker process ended before the job did; `exit_code` is the
    process's.
    """

    exit_code: int | None

    def __str__(self) -> str:
        if self.exit_code is not None and self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            return f"its process was killed ({name}), by a user or because memory ran out"
        return f"its process ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class Started(Generic[Job]):
    """The event that `job` was handed to a worker."""

    job: Job


@dataclass(frozen=True)
class Ended(Generic[Job]):
    """The event that `job` ended; `result` is its return value, or `WorkerDied`."""

    job: Job
    result: Any


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Returns a context in which spawned processes do not import the script of this process.

    A user's script or notebook therefore needs no `if __name__ == "__main__"` guard. Jobs do not
    need the script, since they are defined in modules.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Worker(Generic[Job]):
    """One worker process at a time: started at its first job, and replaced at the next job if it
    died.
    """

    def __init__(self, do: Callable[[Job], Any]) -> None:
        self._do = do
        self._process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        """Hands `job` to the process; starts a new process if there is none, or if it has died."""
        if self._process is None or not self._process.is_alive():
            self.stop()
            self.pipe, workers_end = _SPAWN.Pipe()
            self._process = _SPAWN.Process(target=_serve, args=(self._do, workers_end), daemon=True)
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it
            try:
                with _without_main():
                    self._process.start()
            finally:
                signal.signal(signal.SIGINT, before)
            workers_end.close()
        self.job = job
        with contextlib.suppress(OSError):  # the process just died, which `take` will report
            self._open_pipe().send(job)

    def take(self) -> Ended[Job]:
        """Returns the end of the current job; call it only when `pipe` has data or is closed."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            return Ended(job, self._open_pipe().recv())
        except (EOFError, OSError):
            return Ended(job, WorkerDied(self.stop(patience=5.0)))

    def stop(self, patience: float = 0.0) -> int | None:
        """Kills the process, after waiting up to `patience` seconds for it to end.

        Returns:
          Its exit code if it ended within that time, else None; None without a process.
        """
        if self._process is None:
            return None
        self._process.join(timeout=patience)
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self._open_pipe().close()
        self._process = self.pipe = None
        return code

    def _open_pipe(self) -> Connection:
        assert self.pipe is not None
        return self.pipe


def work(
    do: Callable[[Job], Any], jobs: Iterable[Job], count: int
) -> Iterator[Started[Job] | Ended[Job]]:
    """Runs jobs in several worker processes, and yields an event when a job starts and when it
    ends.

    Jobs are started in order. If the caller stops iterating (an exception, an interrupt), all
    worker processes are killed at once; if the caller is killed, they end themselves.

    Args:
      do: an importable function of one job; jobs and results must be picklable.
      jobs: the jobs.
      count: the number of worker processes.
    """
    waiting = iter(jobs)
    workers = [_Worker(do) for _ in range(count)]
    try:
        while True:
            for worker in workers:
                if worker.job is None and (job := next(waiting, None)) is not None:
                    worker.give(job)
                    yield Started(job)
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return
            ready = connection.wait([worker.pipe for worker in busy if worker.pipe])
            for worker in busy:
                if worker.pipe in ready:
                    yield worker.take()
    finally:
        for worker in workers:
            worker.stop()


def _serve(do: Callable[[Job], Any], pipe: Connection) -> None:
    """Takes jobs from `pipe` and sends their results, until the pipe closes."""
    # An interrupt at the terminal also reaches the worker, but the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with guarded():
        try:
            while True:
                pipe.send(do(pipe.recv()))
        except (EOFError, OSError):
            return
        except BaseException as error:  # of any kind; a part's text may quote data
            if ends_silently(error):
                raise
            sys.exit(report_failure(bug_message(error), OUR_FAULT))


def _end_with_parent() -> None:
    """Ends this process as soon as the process that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
