"""A site's end over NVIDIA FLARE: passes bytes to the agent's socket, and its answer back.

It inspects and stores nothing, and does not report why an agent is unreachable: NVIDIA FLARE logs
the text of an exception, and may send its log to the server.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.carriers.local_socket import ask

TOPIC, DATA, SECONDS = "privfed", "d", "s"
"""The topic of auxiliary requests, and the keys of their bytes and of the seconds for an answer."""
LINK = "privfed.socket"
"""Name of the link, in the site's folder `local`, to the agent's socket."""
_LONGEST = 3600.0
"""Longest wait for an answer in seconds, whatever a request states."""


def relayed(request: Shareable, link: Path) -> Shareable:
    """Returns the reply to `request`: the answer of the agent at the socket that `link` leads to.

    The reply to a request without bytes has none; the agent is not asked. After any error, the
    reply is `UNREACHABLE`.
    """
    reply = make_reply(ReturnCode.OK)
    try:
        data, seconds = request[DATA], min(max(float(request[SECONDS]), 1.0), _LONGEST)
        reply[DATA] = ask(link.resolve(), data, seconds) if data else b""
    except Exception:  # the exception's text would be logged
        reply[DATA] = UNREACHABLE
    return reply


class SiteRelay(Executor):
    """Answers the coordinator's requests from the start of a job; executes no task."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begins to answer requests when a job starts."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            link = Path(engine.get_workspace().get_site_config_dir(), LINK)
            engine.register_aux_message_handler(
                TOPIC, lambda topic, request, fl_ctx: relayed(request, link)
            )

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Returns a reply that reports every task as unknown."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
