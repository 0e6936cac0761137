"""A site's socket: bytes asked and answered over a Unix socket that its user alone may open.

A frame is its length in eight bytes, and so many bytes. A connection asks once. Whoever connects
cannot hold up others for long, nor make the site keep more than a frame of the largest size for
each of a few connections, nor end it by taking all the files that its process may open.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from privfed.core.errors import Refused
from privfed.deploy.carriers.carrier import NOBODY

_LENGTH = struct.Struct("<Q")
_LONGEST_PATH = 100
"""Bytes that systems take for a socket's path, some a few more."""
_AT_ONCE = 4
"""Connections whose questions are read, and in memory, at once; others wait."""
_TAKEN = 64
"""Connections that are open at once; others wait to be taken."""
_WAITING = 64
"""Connections that may wait to be taken; more are turned away."""
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
"""Why a connection cannot be taken now, and another one may be later."""
_MOMENT = 0.05
"""Seconds until the next one is tried then."""


@dataclass(frozen=True)
class LocalServer:
    """Answers at the socket `path` by `answer`, one question after the other.

    A frame has at most `most` bytes, and has to arrive, and to be taken, within `seconds`.
    """

    path: Path
    answer: Callable[[bytes], bytes]
    most: int
    seconds: float = 30.0
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _reading: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_AT_ONCE))
    _places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_TAKEN))

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve until the block ends. Raises `Refused` where another agent serves here."""
        listener = _listening(self.path)
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # of a socket that nobody is connected to
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            self._places.release()  # the one that the thread has, or waits for
            thread.join()
            self.path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in _SHORT:  # the listener was closed
                    return
                self._places.release()
                time.sleep(_MOMENT)
                continue
            threading.Thread(target=self._taken, args=(connection,), daemon=True).start()

    def _taken(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, ValueError):
                self._converse(connection)
        finally:
            self._places.release()

    def _converse(self, connection: socket.socket) -> None:
        """One question and its answer; what is too long, too late or cut is not answered."""
        if not self._reading.acquire(timeout=self.seconds):
            return
        try:
            question = _read_frame(connection, self.most, time.monotonic() + self.seconds)
            with self._asking:
                answer = self.answer(question)
        finally:
            self._reading.release()
        connection.settimeout(self.seconds)
        _write_frame(connection, answer)


def ask(path: Path, question: bytes, seconds: float, most: int = 1 << 30) -> bytes:
    """What the server at the socket `path` answers. Raises `OSError`, also where it is late."""
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        _write_frame(connection, question)
        try:
            return _read_frame(connection, most, until)
        except ValueError as cut:
            raise ConnectionError(f"{path} did not answer") from cut


def _listening(path: Path) -> socket.socket:
    """A socket at `path` that its user alone may open. Raises `Refused`."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise Refused(
            f"{path} is too long for a socket, by {len(os.fsencode(path)) - _LONGEST_PATH} bytes; "
            "move the site's folder to a shorter path"
        )
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(_WAITING)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket whose server is gone. Raises `Refused` where one answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise Refused(f"{path}: another agent serves this site; stop it first")


def _read_frame(connection: socket.socket, most: int, until: float) -> bytes:
    """The bytes of the next frame.

    Raises `ValueError` where it is cut, or longer than `most`, and `TimeoutError` where it is not
    there `until` then (`time.monotonic`).
    """
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, until))
    if length > most:
        raise ValueError(f"a frame of {length} bytes; expected at most {most}")
    return _read(connection, length, until)


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    data = bytearray()
    while left := count - len(data):
        if (seconds := until - time.monotonic()) <= 0:
            raise TimeoutError("a frame that did not arrive in time")
        connection.settimeout(seconds)
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise ValueError("the connection ended within a frame")
        data += part
    return bytes(data)


def _write_frame(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)) + data)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sockets:
    """Asks each site at the socket of its `paths`, all at once, each in a thread."""

    paths: Mapping[int, Path]
    _arrived: queue.Queue[tuple[int, int, bytes]] = field(default_factory=queue.Queue)
    _sent: dict[int, int] = field(default_factory=dict)

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Ask the socket of `site`; an answer to anything that it was asked before is lost.

        A site without a socket answers nothing, at once: nobody waits for it.
        """
        number = self._sent[site] = self._sent.get(site, 0) + 1
        if site not in self.paths:
            self._arrived.put((site, number, NOBODY))
            return
        asking = (site, number, data, deadline)
        threading.Thread(target=self._ask, args=asking, daemon=True).start()

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """The next answer; none where there is none by `deadline`."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                site, number, answer = self._arrived.get(timeout=left)
            except queue.Empty:
                break
            if number == self._sent[site]:
                return [(site, answer)]
        return []

    def _ask(self, site: int, number: int, data: bytes, deadline: float) -> None:
        try:
            answer = ask(self.paths[site], data, max(0.01, deadline - time.monotonic()))
        except OSError as error:  # nobody listens, or is late
            _log.debug("%s: %s", self.paths[site], error)
            answer = NOBODY
        self._arrived.put((site, number, answer))
