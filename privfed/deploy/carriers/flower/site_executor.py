"""A site's own executor of Flower tasks, which runs only the installed privfed.

By default Flower unpacks and runs, at each site, code from the user who starts a run. A SuperNode
in isolation mode "process" delegates its tasks to another process. This executor takes the tasks,
passes their bytes to the agent, and never reads the code that came with them. It is also faster,
since it starts no process per task. Only this module uses non-public names of Flower
(`tests/privfed/deploy/flower/test_pinned.py`).
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from accounting import regular
from privfed.core.errors import Refused, public_text
from privfed.deploy.carriers.flower.client_app import carried

_log = logging.getLogger(__name__)
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
_POLL, _AFTER_FAILURE, _HEARTBEAT = 0.1, 2.0, 15.0
"""Seconds between two polls for a task, after a failed poll, and between heartbeats."""
_CONCURRENT_TASKS = 64
"""Largest number of concurrent tasks."""
LEAST_SECRET = 16
"""Bytes of the shortest accepted secret."""
_HERE = ("127.0.0.1:", "localhost:", "[::1]:")


@dataclass(frozen=True)
class SiteExecutor:
    """Runs Flower tasks for a site's agent.

    Attributes:
      runtime: address of the SuperNode's Runtime API.
      socket: the agent's socket.
      secret: secret that the SuperNode was started with.
      certificates: root certificates of the SuperNode; None if the SuperNode is on this machine.

    Raises:
      Refused: if the SuperNode is on another machine and `certificates` is None.
    """

    runtime: str
    socket: Path
    secret: bytes
    certificates: bytes | None = None

    def __post_init__(self) -> None:
        if self.certificates is None and not self.runtime.startswith(_HERE):
            raise Refused(
                f"the SuperNode is at {self.runtime}, which is another machine; name the root "
                "certificates of that SuperNode (--root-certificates), or use a SuperNode on this "
                "machine (127.0.0.1:PORT)"
            )

    def serve(self, stop: threading.Event) -> None:
        """Runs tasks until `stop` is set, each in its own thread; failures are logged.

        A SuperNode that lost its connection to SuperLink hands out tasks without messages. Such a
        task may block its own thread for hours, but not the other tasks.
        """
        slots = threading.BoundedSemaphore(_CONCURRENT_TASKS)
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE)
        with self._client(signed) as client:
            while not stop.is_set():
                try:
                    if token := self._acquired(client):
                        slots.acquire()
                        threading.Thread(target=self._run, args=(token, slots), daemon=True).start()
                    else:
                        stop.wait(_POLL)
                except Exception as error:  # Flower's own error, as from a SuperNode that is down
                    _log.warning("the SuperNode at %s: %s", self.runtime, public_text(error))
                    stop.wait(_AFTER_FAILURE)

    def _acquired(self, client: RuntimeHttpClient) -> str:
        """Returns the token of a waiting task; an empty string if no task waits."""
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        answer = client.AcquireTask(wanted)
        return str(answer.token) if answer.HasField("task") else ""

    def _run(self, token: str, slots: threading.BoundedSemaphore) -> None:
        """Runs one task, then releases its slot, so that another task can start."""
        try:
            self._carry(token)
        except BaseException as error:  # some of Flower's errors are no `Exception`
            _log.warning("a task was not carried: %s", public_text(error))
        finally:
            slots.release()

    def _carry(self, token: str) -> None:
        """Passes a task's bytes to the agent, and the agent's answer to the SuperNode.

        If this fails, no result is sent. The SuperNode then reports an error when the task's
        heartbeats end, and runs no other task before that.
        """
        with self._client(RuntimeTokenHttpInterceptor(token)) as client:
            with _alive(lambda: client.SendTaskHeartbeat(SendTaskHeartbeatRequest())):
                message, context, _, _ = pull_task_input(client)
                push_message(client, carried(message, self.socket), context)
            push_task_output(client, context, "completed", "")

    @contextmanager
    def _client(self, *interceptors: Any) -> Iterator[RuntimeHttpClient]:
        """Yields a client of the Runtime API with these HTTP interceptors; it never retries."""
        client = RuntimeHttpClient.from_server_address(
            server_address=self.runtime,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor("flwr-clientapp"), *interceptors],
        )
        try:
            yield client
        finally:
            client.close()


@contextmanager
def _alive(beat: Callable[[], object]) -> Iterator[None]:
    """Calls `beat`, which sends a heartbeat, every 15 seconds in the block; logs its errors."""
    over = threading.Event()

    def beating() -> None:
        while not over.wait(_HEARTBEAT):
            try:
                beat()
            except Exception as error:  # the next one may succeed
                _log.warning("a heartbeat to the SuperNode failed: %s", public_text(error))

    thread = threading.Thread(target=beating, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_secret(path: Path) -> bytes:
    """Reads the secret in the file at `path`.

    Raises:
      Refused: if other users have access to the file, or the secret is shorter than 16 bytes.
      OSError: if the file cannot be read.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise Refused(
            f"{path} has mode {mode:o}, but other users must have no access to a secret; write a "
            "new secret to a file of mode 600"
        )
    secret = regular.read_bytes(path)
    if len(secret) < LEAST_SECRET:
        raise Refused(
            f"{path} holds {len(secret)} bytes; expected at least {LEAST_SECRET} random bytes, for "
            "example from: head -c 32 /dev/urandom"
        )
    return secret
