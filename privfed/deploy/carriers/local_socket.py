"""A site's socket: questions and answers over a Unix socket that only the agent's user may open.

A question is the bytes of one message to the site. A frame is a length in eight bytes
(little-endian), followed by that many bytes. A connection carries one frame with a question, and
one with its answer. A peer cannot delay others for long, and cannot end the site by using up its
file descriptors. To limit memory, the site reads questions from at most four connections at once.
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
from privfed.deploy.carriers.carrier import UNREACHABLE

_LENGTH = struct.Struct("<Q")
_LONGEST_PATH = 100
"""Bytes of a socket's path that all systems accept."""
_CONCURRENT_READS = 4
"""Connections whose questions are read into memory at once; others wait."""
_TAKEN = 64
"""Connections that are open at once; others wait to be accepted."""
_WAITING = 64
"""Connections that may wait to be accepted; more are rejected."""
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
"""Errors after which a later connection may still be accepted."""
_MOMENT = 0.05
"""Seconds until the next attempt after such an error."""


@dataclass(frozen=True)
class LocalServer:
    """Answers questions at the socket `path` by calling `answer`, for one question at a time.

    A question has at most `most` bytes and must arrive within `seconds`. The answer must be sent
    within `seconds`, too. An empty question gets an empty answer, even while `answer` runs.
    """

    path: Path
    answer: Callable[[bytes], bytes]
    most: int
    seconds: float = 30.0
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _reading: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(_CONCURRENT_READS)
    )
    _places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_TAKEN))

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answers questions until the block ends.

        Raises:
          Refused: if `path` is longer than 100 bytes, or another process answers at it.
          OSError: if no socket can be created at `path`.
        """
        listener = _listening(self.path)
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a socket without connections
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            self._places.release()  # the place that the thread holds or waits for
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
        """Answers the question that `connection` carries.

        Raises `ValueError` or `OSError` if the question is oversized, late or incomplete. Sends no
        answer if four other questions occupy the server (being read, or waiting for `answer`) for
        `seconds`.
        """
        if not self._reading.acquire(timeout=self.seconds):
            return
        try:
            question = _read_frame(connection, self.most, time.monotonic() + self.seconds)
            if question:
                with self._asking:
                    answer = self.answer(question)
            else:  # asks whether the server is alive, also while it works on another question
                answer = b""
        finally:
            self._reading.release()
        connection.settimeout(self.seconds)
        _write_frame(connection, answer)


def ask(path: Path, question: bytes, seconds: float, most: int = 1 << 30) -> bytes:
    """Returns the answer of the server at the socket `path` to `question`.

    Args:
      path: the socket.
      question: bytes to send.
      seconds: time from this call on within which the whole answer must arrive.
      most: largest accepted answer, in bytes.

    Raises:
      OSError: if no server listens, or the answer is late, incomplete or too long.
    """
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        _write_frame(connection, question)
        try:
            return _read_frame(connection, most, until)
        except ValueError as cut:
            raise ConnectionError(f"{path} did not answer") from cut


def refuse_socket_path(path: Path) -> None:
    """Raises `Refused` if no socket can be created at `path`: too long, or without its folder."""
    if (more := len(os.fsencode(path)) - _LONGEST_PATH) > 0:
        raise Refused(
            f"{path} is too long for a socket, by {more} bytes; move the site's folder to a "
            "shorter path"
        )
    if not path.parent.is_dir():
        raise Refused(f"the socket is {path}, but {path.parent} is not a folder; create the folder")


def _listening(path: Path) -> socket.socket:
    """Returns a listening socket at `path`, for this user only.

    Raises what `LocalServer.serving` raises.
    """
    refuse_socket_path(path)
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
    """Removes the socket at `path`. Raises `Refused` if a server accepts connections at it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise Refused(f"{path} is in use by another agent of this site; stop that agent first")


def _read_frame(connection: socket.socket, most: int, until: float) -> bytes:
    """Returns the content of the next frame.

    Raises:
      ValueError: if the frame is incomplete or longer than `most` bytes.
      TimeoutError: if the frame has not arrived by the time `until` (`time.monotonic`).
    """
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, until))
    if length > most:
        raise ValueError(f"a frame of {length} bytes; expected at most {most}")
    return _read(connection, length, until)


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    data = bytearray()
    while left := count - len(data):
        if (seconds := until - time.monotonic()) <= 0:
            raise TimeoutError("a frame did not arrive in time")
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
    """A carrier to sites on this machine: `paths` maps each site's number to its socket.

    Each question has its own thread.
    """

    paths: Mapping[int, Path]
    _arrived: queue.Queue[tuple[int, int, bytes]] = field(default_factory=queue.Queue)
    _sent: dict[int, int] = field(default_factory=dict)

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Sends a question to `site`; answers to earlier questions to that site are dropped.

        If the site has no socket, or no answer comes from its socket by `deadline`, `receive`
        returns `UNREACHABLE` as the answer.
        """
        number = self._sent[site] = self._sent.get(site, 0) + 1
        if site not in self.paths:
            self._arrived.put((site, number, UNREACHABLE))
            return
        asking = (site, number, data, deadline)
        threading.Thread(target=self._ask, args=asking, daemon=True).start()

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Waits for an answer until `deadline`; returns [(site, answer)], or an empty list."""
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
        except OSError as error:  # no server listens, or it is late
            _log.debug("%s: %s", self.paths[site], error)
            answer = UNREACHABLE
        self._arrived.put((site, number, answer))
