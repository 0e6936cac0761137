"""The coordinator's end over NVIDIA FLARE: trains with the sites of a job as nodes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from privfed.core.errors import public_text
from privfed.deploy.carriers.engine_run import train_over
from privfed.deploy.carriers.new_job import PATIENCE
from privfed.deploy.carriers.new_job import SECONDS as ANSWER_SECONDS
from privfed.deploy.carriers.nvflare.site_relay import DATA, SECONDS, TOPIC

_log = logging.getLogger(__name__)
_PROBE, _PAUSE = 1.0, 0.1
"""Seconds for an answer to a request without bytes, and until it is sent again."""


@dataclass(frozen=True)
class AuxMail:
    """Sends messages to the sites of a job as auxiliary requests of `engine`; thread-safe.

    A job runs at its server before it runs at its sites, and a request that is sent too early is
    lost. `ask` therefore first sends a site requests without bytes until the site answers one.
    """

    engine: ServerEngineSpec
    _ready: set[str] = field(default_factory=set)

    def nodes(self) -> set[str]:
        """Returns the names that the sites of the job have in NVIDIA FLARE."""
        return {client.name for client in self.engine.get_clients()}

    def ask(self, node: str, data: bytes, deadline: float) -> bytes | None:
        """Returns the reply of `node` to `data`; None if none arrives by `deadline`.

        Also returns None if NVIDIA FLARE reports an error.
        """
        try:
            while node not in self._ready:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if self._reply(node, b"", min(left, _PROBE)) is None:
                    time.sleep(_PAUSE)
                else:
                    self._ready.add(node)
            answer = self._reply(node, data, deadline - time.monotonic())
        except Exception as error:  # NVIDIA FLARE may raise any exception, as any carrier may
            _log.warning("node %s could not be asked: %s", node, public_text(error))
            answer = None
        if answer is None:
            self._ready.discard(node)
        return answer

    def _reply(self, node: str, data: bytes, seconds: float) -> bytes | None:
        """Returns the reply of `node` to one request; None if there is none, or it is malformed."""
        if seconds <= 0:
            return None
        request = Shareable({DATA: data, SECONDS: seconds})
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request(
                [node], TOPIC, request, seconds, context, optional=True
            )
        reply = (replies or {}).get(node)
        if reply is None or reply.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return None
        answer = reply.get(DATA)
        return answer if isinstance(answer, bytes) else None


class RunCoordinator(Controller):
    """Runs the coordinator as the workflow of a job, whose configuration states the arguments."""

    def __init__(
        self,
        run: str,
        federation: str,
        key: str,
        out: str,
        seconds: float = ANSWER_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__()
        stated: dict[str, Any] = {"run": run, "federation": federation, "key": key, "out": out}
        self._stated = {**stated, "seconds": seconds, "patience": patience}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Does nothing; the run begins in `control_flow`."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Trains or resumes the run; raises like `train_over`."""
        train_over(AuxMail(fl_ctx.get_engine()), self._stated)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Does nothing; the run has ended."""

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Ignores the result, as this workflow has no tasks."""
