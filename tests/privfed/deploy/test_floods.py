"""Floods and malformed bytes at a site's socket: it answers in fixed words, and stays up."""

import contextlib
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from hospitals import hospitals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killed_processes import served
from waiting import LONG

from privfed.deploy.carriers.local_socket import ask
from privfed.deploy.messages.envelope import Kind, Reply, read_answer

FUZZED = settings(max_examples=120, suppress_health_check=list(HealthCheck))
FIXED = {bytes([Reply.UNSIGNED]), bytes([Reply.MALFORMED])}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site that is a process, which has joined a run."""
    made = hospitals(tmp_path_factory.mktemp("floods") / "sites")
    declaration, _ = made.declaration()
    with served(made, made.root) as federation:
        process = federation.site(0)
        process.start()
        federation.wait_for(made.folder(0).socket)
        joined = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
        assert read_answer(ask(made.folder(0).socket, joined, LONG)) == (
            Reply.ANSWERED,
            declaration.run,
        )
        process.run = declaration.run
        yield made, process
        assert process.ended() is None
    assert made.folder(0).receipts.read_bytes() == b""


def is_up(made):
    hello = made.greeter.hello()
    return made.greeter.site_of(hello, ask(made.folder(0).socket, hello, LONG)) == 0


def sent(made, data):
    """What comes back for these bytes, whatever they are, and no more of them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LONG)
        connection.connect(str(made.folder(0).socket))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1000)
    return b""


def frame(data):
    return struct.pack("<Q", len(data)) + data


@FUZZED
@given(data=st.binary(max_size=200))
def test_random_bytes_on_the_wire(site, data):
    made, _ = site
    answer = sent(made, data)
    assert answer == b"" or answer in {frame(each) for each in FIXED}


@FUZZED
@given(data=st.binary(max_size=400))
def test_random_frames(site, data):
    made, _ = site
    assert ask(made.folder(0).socket, data, LONG) in (FIXED if data else {b""})


@FUZZED
@given(
    length=st.integers(0, 2**64 - 1) | st.sampled_from([2**30, 2**30 + 1, 2**63]),
    data=st.binary(max_size=50),
)
def test_lengths_that_no_bytes_follow(site, length, data):
    made, process = site
    if length <= len(data):
        return
    before = memory(process)
    assert sent(made, struct.pack("<Q", length) + data) == b""
    assert memory(process) - before < 64 << 20


@FUZZED
@given(kind=st.sampled_from([Kind.QUESTION, Kind.STEP, Kind.DECLARATION]), body=st.binary())
def test_garbage_that_the_coordinator_signed(site, kind, body):
    made, process = site
    message = made.signed(kind, process.run, body)
    assert ask(made.folder(0).socket, message, LONG) == bytes([Reply.MALFORMED])
    assert sent(made, frame(message)[:-1]) == b""  # cut


@pytest.mark.slow
@pytest.mark.parametrize("size", [36 << 20, 4 << 20])
def test_a_flood_of_large_frames_leaves_it_small(site, size):
    """Of many of them at once, a few are in memory; a further flood takes no more than the first.

    Small pieces of memory that are free again stay with the process, for each of its threads.
    """
    made, process = site
    before = memory(process)
    first, second = (flooded(made, process, bytes(size)) for _ in range(2))
    assert is_up(made)
    assert first - before < 40 * size
    assert second - first < 8 * size
    if size > 32 << 20:
        assert first - before < 4 * 4 * size
        assert memory(process) - before < 4 * 4 * size  # what an allocator does not give back


def flooded(made, process, data):
    """The most bytes that the process had in memory in a flood of frames of this `data`."""
    largest = []

    def flood():
        for _ in range(2):
            with contextlib.suppress(OSError):
                assert ask(made.folder(0).socket, data, LONG) in FIXED

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        largest.append(memory(process))
        time.sleep(0.01)
    return max(largest)


def memory(process):
    """The bytes that a process has in memory."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process is gone")


def test_it_is_up_after_all_that(site):
    assert is_up(site[0])
