"""A site's own executor of Flower's tasks: it runs privfed as it is installed, and nothing else.

Flower unpacks and runs, at each site, the code of whoever starts a run. A SuperNode in isolation
mode "process" leaves that to others: this process takes its tasks, hands their bytes to the agent,
and never looks at the code that came with them. It stays warm, so it is faster as well. Names of
Flower's that are not public are used here alone (`tests/privfed/deploy/flower/test_pinned.py`).
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
"""Seconds between two looks for a task, after a look that failed, and between signs of life."""
_AT_ONCE = 64
"""Tasks in hand at most."""
LEAST_SECRET = 16
"""Bytes of the shortest secret."""
_HERE = ("127.0.0.1:", "localhost:", "[::1]:")


@dataclass(frozen=True)
class SiteExecutor:
    """Takes tasks of the SuperNode whose Runtime API is at `runtime`, for the agent at `socket`.

    `secret` is what the SuperNode was started with; `certificates` are the roots of its own one,
    without which it has to be on this machine.
    """

    runtime: str
    socket: Path
    secret: bytes
    certificates: bytes | None = None

    def __post_init__(self) -> None:
        if self.certificates is None and not self.runtime.startswith(_HERE):
            raise Refused(
                f"{self.runtime} is another machine; name the root certificates of its SuperNode "
                "(--root-certificates), or one here (127.0.0.1:PORT)"
            )

    def serve(self, stop: threading.Event) -> None:
        """Run tasks until `stop` is set, each in a thread. One that fails is logged.

        A SuperNode that lost its SuperLink hands out a task without its message, which would be
        waited for by the hour: nothing else waits for it.
        """
        slots = threading.BoundedSemaphore(_AT_ONCE)
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE)
        with self._client(signed) as client:
            while not stop.is_set():
                try:
                    if token := self._acquired(client):
                        slots.acquire()
                        threading.Thread(target=self._run, args=(token, slots), daemon=True).start()
                    else:
                        stop.wait(_POLL)
                except Exception as error:  # the engine's: a SuperNode that is down
                    _log.warning("the SuperNode at %s: %s", self.runtime, public_text(error))
                    stop.wait(_AFTER_FAILURE)

    def _acquired(self, client: RuntimeHttpClient) -> str:
        """The token of a task that waits; empty where none does."""
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        answer = client.AcquireTask(wanted)
        return str(answer.token) if answer.HasField("task") else ""

    def _run(self, token: str, slots: threading.BoundedSemaphore) -> None:
        """Run one task, and give back its slot."""
        try:
            self._carry(token)
        except BaseException as error:  # of the engine's errors, some are no `Exception`
            _log.warning("a task was not carried: %s", public_text(error))
        finally:
            slots.release()

    def _carry(self, token: str) -> None:
        """Hand a task's bytes to the agent.

        Where that fails, nothing more is said of the task: SuperNode, which does nothing else
        meanwhile, answers with an error of its own when the task's signs of life end.
        """
        with self._client(RuntimeTokenHttpInterceptor(token)) as client:
            with _alive(lambda: client.SendTaskHeartbeat(SendTaskHeartbeatRequest())):
                message, context, _, _ = pull_task_input(client)
                push_message(client, carried(message, self.socket), context)
            push_task_output(client, context, "completed", "")

    @contextmanager
    def _client(self, *interceptors: Any) -> Iterator[RuntimeHttpClient]:
        """A client of the Runtime API, which tries nothing twice."""
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
    """Say every few seconds that a task is worked at, until the block ends."""
    over = threading.Event()

    def beating() -> None:
        while not over.wait(_HEARTBEAT):
            try:
                beat()
            except Exception as error:  # the next one may get through
                _log.warning("no sign of life: %s", public_text(error))

    thread = threading.Thread(target=beating, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_secret(path: Path) -> bytes:
    """The secret in the file at `path`. Raises `Refused` where others may read it, or guess it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise Refused(f"{path} may be read by others (mode {mode:o}); expected 600, and a new one")
    secret = regular.read_bytes(path)
    if len(secret) < LEAST_SECRET:
        raise Refused(
            f"{path} holds {len(secret)} bytes; expected at least {LEAST_SECRET}, at random: "
            f"head -c 32 /dev/urandom"
        )
    return secret
