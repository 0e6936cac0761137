"""Concurrent programs that are all ended at the end, in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_MARK = "PRIVFED_LOOPBACK"
_GENTLE, _LEFT = 15.0, 5.0
"""Seconds for programs to end by themselves, and for the last ones to disappear."""


class ProgramEnded(Exception):
    """A program ended unexpectedly, or did not get ready in time."""


@dataclass
class Programs:
    """Programs in the background, by name, each with a log `NAME.log` in `logs`.

    All of their processes have the same `environment`, with a mark in it that identifies them: none
    of them remains when the block ends.
    """

    logs: Path
    environment: Mapping[str, str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C leaves no process
        try:
            self._end_all()
        finally:
            signal.signal(signal.SIGINT, before)

    def start(self, name: str, command: Sequence[str], **more: str) -> None:
        """Starts `command` in the background, with `more` in its environment."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                env=self._marked(more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def call(self, command: Sequence[str], seconds: float = 60.0) -> str:
        """Returns the output of `command`. Raises `ProgramEnded` if it fails."""
        ran = subprocess.run(
            command, env=self._marked({}), capture_output=True, text=True, timeout=seconds
        )
        if ran.returncode:
            raise ProgramEnded(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr}")
        return ran.stdout

    def code(self, name: str) -> int | None:
        """Returns the program's exit status; None while it runs."""
        return self._running[name].poll()

    def pid(self, name: str) -> int:
        """Returns the process of a program."""
        return self._running[name].pid

    def log(self, name: str) -> str:
        """Returns the program's output so far, over all restarts."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str, alone: bool = False) -> None:
        """Kills the program with its child processes, like a power cut, or the program `alone`."""
        (_signal if alone else _signal_group)(self._running[name].pid, signal.SIGKILL)
        self._running.pop(name).wait()

    def kill_started(self, words: str) -> bool:
        """Kills started processes with `words` in their command line; returns whether there were
        any.
        """
        victims = self._with(words)
        for pid in victims:
            _signal(pid, signal.SIGKILL)
        return bool(victims)

    def runs(self, words: str) -> bool:
        """Whether a started process has `words` in its command line."""
        return bool(self._with(words))

    def end(self, *names: str) -> None:
        """Ends programs gracefully; a program that does not end in time is killed."""
        ending = [self._running.pop(name) for name in names]
        for process in ending:
            process.terminate()
        until = time.monotonic() + _GENTLE
        for process in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()

    def left(self) -> list[int]:
        """Returns the ids of processes that were started here, directly or not, and still run."""
        wanted = f"{_MARK}={self.mark}".encode()
        return [pid for pid in _processes() if wanted in _environment(pid)]

    def _with(self, words: str) -> list[int]:
        return [pid for pid in self.left() if words.encode() in _command(pid)]

    def _end_all(self) -> None:
        self.end(*reversed(self._running))
        until = time.monotonic() + _LEFT
        while left := self.left():
            for pid in left:
                _signal(pid, signal.SIGKILL)
            if time.monotonic() > until:
                raise ProgramEnded(f"processes {left} do not end")
            time.sleep(0.1)

    def _marked(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **self.environment, **more, _MARK: self.mark}


def free_ports(count: int) -> list[int]:
    """Returns `count` ports of this machine without a listener."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listens(port: int) -> bool:
    """Whether a process listens on the `port` of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended, or another user's
        return b""


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
