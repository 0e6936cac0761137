"""Sites and a coordinator as processes that are killed by SIGKILL, and a record of their
answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hospitals import Hospitals
from waiting import LONG, until

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.deploy.carriers.local_socket import Sockets
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.messages.envelope import Envelope, Kind, Reply
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.agent import Agent, serving
from privfed.secure.frames import Reader
from privfed.secure.masked.messages.wire import decode

Life = Callable[[], object]


@dataclass
class Process:
    """Runs `live` in a process forked from this one, so that it starts immediately.

    In its life number k it is killed before its `last(k)`-th write; 0: it is not killed.
    """

    name: str
    live: Life
    failures: Path
    last: Callable[[int], int] = lambda life: 0
    lives: int = 0
    pid: int = 0

    def start(self) -> None:
        self.lives += 1
        self.pid = os.fork()
        if self.pid:
            return
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            logging.getLogger().handlers.clear()  # pytest's, which store log records
            if last := self.last(self.lives):
                _die_before(last)
            self.live()
            os._exit(0)
        except BaseException:
            self.failures.write_text(traceback.format_exc())
            os._exit(1)

    def ended(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _die_before(count: int) -> None:
    """Makes this process kill itself before its write number `count` from now on.

    A write is a sync, a rename, or data sent to a socket.
    """
    lock, left = threading.Lock(), [count]

    def counted(what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return what(*args, **keys)

        return call

    class Dying(socket.socket):
        sendall = counted(socket.socket.sendall)

    os.fsync = counted(os.fsync)
    pathlib.Path.replace = counted(pathlib.Path.replace)
    socket.socket = Dying


@dataclass
class Answers:
    """A site's answers, in a file that outlives it: a line for each answer, before it was sent."""

    path: Path
    _rounds: dict[bytes, str] = field(default_factory=dict)

    def noting(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def ask(data: bytes) -> bytes:
            answered = answer(data)
            if answered[0] == Reply.ANSWERED and (step := _step(data)) is not None:
                line = f"{step}\t{hashlib.sha256(answered).hexdigest()}\n"
                with self.path.open("ab", buffering=0) as file:
                    file.write(line.encode())
            return answered

        return ask

    def read(self) -> list[tuple[str, str, str]]:
        """Returns the exchange, the step of its sum, and the digest of each answer."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        exchanges: dict[str, str] = {}
        answers = []
        for line in lines:
            session, place, kind, digest = line.split("\t")
            if place:
                exchanges.setdefault(session, place)
            answers.append((exchanges[session], kind, digest))
        return answers


def _step(data: bytes) -> str | None:
    """Returns the session of a question or step; the run, round and exchange of a question; its
    kind.
    """
    envelope = Envelope.decode(data)
    if envelope.kind == Kind.QUESTION:
        reader = Reader(envelope.body)
        question = Question.decode(reader.sized())
        reader.take(32)
        reader.sized()
        session = decode(reader.rest()).context.hex()
        return f"{session}\t{envelope.run.hex()}/{question.round}/{question.number}\tquestion"
    if envelope.kind == Kind.STEP:
        message = decode(envelope.body)
        return f"{message.context.hex()}\t\t{type(message).__name__}"
    return None


@dataclass
class Served:
    """A federation whose sites and coordinator are processes, with the coordinator's run `out`."""

    hospitals: Hospitals
    run: Path
    seconds: float = LONG
    patience: float = LONG
    processes: list[Process] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.hospitals.root / "out"

    def failures(self, name: str) -> Path:
        return self.hospitals.root / f"{name}.failed"

    def answers(self, site: int) -> Answers:
        return Answers(self.hospitals.root / f"h{site}.answers")

    def site(self, site: int, last: Callable[[int], int] = lambda life: 0) -> Process:
        folder, answers = self.hospitals.folder(site), self.answers(site)

        def live() -> None:
            agent = Agent.answer
            Agent.answer = lambda self, data: answers.noting(lambda asked: agent(self, asked))(data)
            with serving(folder):
                threading.Event().wait()

        return self._held(Process(f"h{site}", live, self.failures(f"h{site}"), last))

    def coordinator(self, last: Callable[[int], int] = lambda life: 0) -> Process:
        return self._held(
            Process("coordinator", self.coordinated, self.failures("coordinator"), last)
        )

    def coordinated(self):
        """Runs the coordinator to the end of the run."""
        made = self.hospitals
        return coordinate(
            self.run,
            made.federation_file,
            made.key_file,
            self.out,
            lambda _: Sockets(made.sockets),
            seconds=self.seconds,
            patience=self.patience,
        )

    def _held(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def to_the_end(self, coordinator: Process, limit: float, disturb: Life = lambda: None) -> int:
        """Restarts processes that die until the coordinator is done; returns the number of
        deaths.
        """
        deaths, last = 0, time.monotonic() + limit
        while time.monotonic() < last:
            disturb()
            for process in self.processes:
                if not process.pid:  # killed by `disturb`
                    process.start()
                    deaths += 1
                    continue
                status = process.ended()
                if status is None:
                    continue
                if status == 0 and process is coordinator:
                    return deaths
                assert status == -signal.SIGKILL, (
                    f"{process.name}: {status}: {process.failures.read_text()}"
                )
                deaths += 1
                process.start()
            time.sleep(0.005)
        raise AssertionError(f"the run is not done after {limit} s and {deaths} deaths")

    def wait_for_sites(self) -> None:
        self.wait_for(*self.hospitals.sockets.values())

    def wait_for(self, *sockets: Path) -> None:
        """Returns when sites serve at `sockets`; raises `AssertionError` once a process failed."""

        def there() -> bool:
            assert not self._failed()
            return all(path.exists() for path in sockets)

        until(there, "sockets of sites")

    def _failed(self) -> list[str]:
        return [path.read_text() for path in sorted(self.hospitals.root.glob("*.failed"))]


@contextlib.contextmanager
def served(hospitals: Hospitals, run: Path, **facts: float) -> Iterator[Served]:
    """Yields a federation; all its processes are ended when the block ends."""
    federation = Served(hospitals, run, **facts)
    try:
        yield federation
    finally:
        for process in federation.processes:
            process.kill()


def agrees(federation: Served, rounds: int) -> None:
    """Raises `AssertionError` if a guarantee was violated, for any sequence of deaths.

    No exchange has two answers to one step, no row was sent without a charge, each round is charged
    once, and the ledger is valid.
    """
    ledger = Ledger.load(federation.out / "ledger.jsonl")
    charged = [charge.round for charge in ledger.charges]
    assert charged == [*range(1, rounds + 1)]
    assert not audit(federation.out).problems
    for site in range(federation.hospitals.count):
        receipts = Receipts.load(federation.hospitals.folder(site).receipts)
        digests: dict[tuple[str, str], str] = {}
        for exchange, step, digest in federation.answers(site).read():
            first = digests.setdefault((exchange, step), digest)
            assert first == digest, f"site {site} answered {exchange}, {step} twice"
        (run,) = receipts.runs
        rows = {exchange for exchange, step in digests if step == "Inbox"}
        questions = {exchange for exchange, step in digests if step == "question"}
        lines = {
            f"{run.run}/{receipt.round}/{receipt.exchange}"
            for receipt in receipts._runs[run.run].lines.values()
        }
        assert rows <= questions <= lines
        in_receipts = {receipt.round for receipt in receipts._runs[run.run].rounds.values()}
        assert in_receipts <= {*charged}
        spending, limit = receipts.spending(), ledger.spending
        assert all(count <= limit[event] for event, count in spending.items())
        assert sum(spending.values()) >= len({exchange.rsplit("/", 1)[0] for exchange in rows})
