"""A site's Flower client app: passes bytes to the agent's socket, and the agent's answer back.

It inspects and stores nothing, and does not report why an agent is unreachable: Flower would
forward the text of an exception to the server's operator.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.carriers.flower.grid_mail import ACTION, payload_bytes, payload_content
from privfed.deploy.carriers.local_socket import ask

_LONGEST = 3600.0
"""Longest wait for an answer in seconds, whatever a message states."""


def carried(message: Message, socket: Path) -> Message:
    """Returns the reply to `message`: the answer of the agent at `socket`.

    The reply is `UNREACHABLE` if `message` is malformed, or if the agent does not answer in time.
    """
    try:
        seconds = min(max(float(message.metadata.ttl), 1.0), _LONGEST)
        answer = ask(socket, payload_bytes(message), seconds)
    except Exception:  # the exception's text would reach the server
        answer = UNREACHABLE
    return Message(payload_content(answer), reply_to=message)


def reply(message: Message, context: Context) -> Message:
    """Returns the reply of the agent at the socket in the node's configuration (key `agent`)."""
    return carried(message, Path(str(context.node_config.get("agent", ""))))


app = ClientApp()
app.query(ACTION)(reply)
