"""A site's end of Flower: bytes to the agent's socket, and its answer back.

It looks into nothing, holds nothing, and says nothing of why an agent cannot be asked: Flower hands
the text of an exception to whoever runs the server.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privfed.deploy.carriers.carrier import NOBODY
from privfed.deploy.carriers.flower.addresses import ACTION, carried_bytes, carrying
from privfed.deploy.carriers.local_socket import ask

_LONGEST = 3600.0
"""Seconds that an answer is waited for at most, whatever a message says."""


def carried(message: Message, socket: Path) -> Message:
    """The reply to `message`: what the agent at `socket` answers to its bytes, or `NOBODY`."""
    try:
        seconds = min(max(float(message.metadata.ttl), 1.0), _LONGEST)
        answer = ask(socket, carried_bytes(message), seconds)
    except Exception:  # its text would be the server's to read
        answer = NOBODY
    return Message(carrying(answer), reply_to=message)


def reply(message: Message, context: Context) -> Message:
    """The reply of the node whose configuration names the socket of its `agent`."""
    return carried(message, Path(str(context.node_config.get("agent", ""))))


app = ClientApp()
app.query(ACTION)(reply)
