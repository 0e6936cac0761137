"""Flower's grid in this process: nodes that run our client's app, with faults chosen by a test."""

import threading
import time
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from waiting import LONG

from privfed.deploy.carriers.flower.client_app import app

SERVER = 1


@dataclass
class LoopbackGrid(Grid):
    """A grid with the sockets of nodes by id, `agents`, and `fault(node, nth message, reply)`.

    `fault` returns the replies that arrive: none, the same, or others. An exception that it raises
    becomes the engine's.
    """

    agents: dict
    fault: object = lambda node, number, reply: [reply]
    pushed: list = field(default_factory=list)
    refuse_push: set = field(default_factory=set)
    _replies: dict = field(default_factory=dict)
    _counts: dict = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SERVER, 3

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, *args, **kwargs):
        raise AssertionError("it sleeps for three seconds a look")

    def get_node_ids(self):
        return list(self.agents)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        node = message.metadata.dst_node_id
        if node in self.refuse_push:
            return None
        message.metadata.__dict__["_message_id"] = number = message.object_id
        with self._lock:
            self.pushed.append((node, message.metadata.ttl))
            nth = self._counts[node] = self._counts.get(node, 0) + 1
        threading.Thread(target=self._run, args=(node, nth, number, message), daemon=True).start()
        return number

    def _run(self, node, nth, number, message):
        context = Context(7, node, {"agent": str(self.agents[node])}, RecordDict(), {})
        reply = app(message, context)
        with self._lock:
            self._replies[number] = self.fault(node, nth, reply)

    def pull_messages(self, message_ids):
        with self._lock:
            arrived = [each for number in message_ids for each in self._replies.pop(number, [])]
        if any(reply == "stuck" for reply in arrived):
            time.sleep(LONG)
        return arrived


def failed(reply):
    """Returns the engine's error in place of `reply`."""
    error = Message(Error(code=5, reason="Node Unavailable: patient 17"), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    error.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return error


def changed(reply, **facts):
    """Returns `reply` with other values in its envelope."""
    for name, value in facts.items():
        reply.metadata.__dict__[f"_{name}"] = value
    return reply
