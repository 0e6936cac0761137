"""A site's socket: who may open it, and what floods and malformed bytes do."""

import contextlib
import os
import resource
import signal
import socket
import stat
import struct
import threading
import time

import pytest
from waiting import BRIEF, LONG, until

from privfed.core.errors import Refused
from privfed.deploy.carriers.local_socket import LocalServer, ask


def reversed_bytes(question):
    if question == b"slow":
        time.sleep(BRIEF)
    return question[::-1]


@pytest.fixture
def server(tmp_path):
    """A site that gives everybody the time that they need."""
    server = LocalServer(tmp_path / "socket", reversed_bytes, most=1000, seconds=LONG)
    with server.serving():
        yield server
    assert not server.path.exists()


@pytest.fixture
def impatient(tmp_path):
    """A site that waits but briefly for a frame."""
    server = LocalServer(tmp_path / "socket", reversed_bytes, most=1000, seconds=1.0)
    with server.serving():
        yield server
    assert not server.path.exists()


def answers(path, wanted=b"cba"):
    """Whether the site at `path` answers at present: as `wanted`."""
    try:
        assert ask(path, b"abc", LONG) == wanted
    except OSError:
        return False
    return True


def raw(server, data):
    """What comes back for these bytes, whatever they are."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LONG)
        connection.connect(str(server.path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100)


def test_its_user_alone_may_open_it(server):
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_bytes_are_answered(server):
    assert ask(server.path, b"abc", LONG) == b"cba"
    assert ask(server.path, b"", LONG) == b""


@pytest.mark.parametrize(
    "data",
    [b"", b"abc", struct.pack("<Q", 5) + b"ab", struct.pack("<Q", 1001), struct.pack("<Q", 2**63)],
)
def test_what_is_no_frame_is_not_answered_and_stops_nobody(server, data):
    assert raw(server, data) == b""
    assert ask(server.path, b"abc", LONG) == b"cba"


def test_questions_are_answered_one_after_the_other(server):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(server.path, b"slow", LONG)))
        for _ in range(3)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"wols"] * 3
    assert time.monotonic() - began >= 3 * BRIEF


def test_who_says_nothing_holds_nobody_up(impatient):
    """Silent connections take all places, and lose them when their time is over."""
    silent = []
    for _ in range(12):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LONG)
        connection.connect(str(impatient.path))
        silent.append(connection)
    until(lambda: answers(impatient.path), "an answer")
    for connection in silent:
        connection.close()


def test_who_sends_a_byte_now_and_then_holds_nobody_up(impatient):
    """A frame has its time as a whole: each byte of it has none of its own."""
    over = threading.Event()

    def drip():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(impatient.path))
            with contextlib.suppress(OSError):
                connection.sendall(struct.pack("<Q", 1000))
                while not over.wait(BRIEF):
                    connection.sendall(b"x")

    drips = [threading.Thread(target=drip) for _ in range(4)]
    for each in drips:
        each.start()
    try:
        until(lambda: not any(each.is_alive() for each in drips), "all of them to be cut off")
        until(lambda: answers(impatient.path), "an answer")
    finally:
        over.set()
        for each in drips:
            each.join()


def test_questions_that_wait_to_be_answered_are_few(tmp_path):
    """Of a flood of large frames, a few are in memory while one is answered."""
    asked, go = [], threading.Event()

    def answer(question):
        go.wait(LONG)
        return question[:1]

    server = LocalServer(tmp_path / "socket", answer, most=1 << 20, seconds=LONG)

    def flood():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(LONG)
            connection.connect(str(server.path))
            connection.sendall(struct.pack("<Q", 1 << 20) + bytes(1 << 20))  # until it is read
            asked.append(connection)

    with server.serving():
        floods = [threading.Thread(target=flood) for _ in range(10)]
        for each in floods:
            each.start()
        until(lambda: asked, "a frame that is read")
        time.sleep(0.5)  # in which all would be
        at_once = len(asked)
        go.set()
        for each in floods:
            each.join()
    assert 1 <= at_once <= 4
    assert len(asked) == 10


def test_a_flood_of_connections_passes(tmp_path):
    """Also one that takes all the files that a process may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
        with LocalServer(tmp_path / "socket", lambda asked: asked, most=10, seconds=0.5).serving():
            signal.pause()
        os._exit(0)
    try:
        until((tmp_path / "socket").exists, "a socket")
        flood = []
        for _ in range(200):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # turned away
                connection.connect(str(tmp_path / "socket"))
            flood.append(connection)
        time.sleep(1.0)
        for connection in flood:
            connection.close()
        until(lambda: answers(tmp_path / "socket", b"abc"), "an answer")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_agent_serves_a_site(server):
    other = LocalServer(server.path, bytes, most=10)
    with pytest.raises(Refused, match="in use by another agent"), other.serving():
        pass
    assert ask(server.path, b"abc", LONG) == b"cba"


def test_a_socket_that_a_crash_left_is_replaced(tmp_path):
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(tmp_path / "socket"))
    stale.close()
    with LocalServer(tmp_path / "socket", bytes, most=10).serving():
        assert ask(tmp_path / "socket", b"abc", LONG) == b"abc"


def test_a_path_that_is_too_long_is_refused(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    long = LocalServer(folder / "socket", bytes, most=10)
    with pytest.raises(Refused, match="shorter path"), long.serving():
        pass


def test_a_file_in_its_place_is_left_alone(tmp_path):
    (tmp_path / "socket").write_text("mine")
    with pytest.raises(OSError), LocalServer(tmp_path / "socket", bytes, most=10).serving():
        pass
    assert (tmp_path / "socket").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["socket"]
