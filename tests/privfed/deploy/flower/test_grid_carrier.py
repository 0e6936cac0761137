"""The carrier over a grid in this process: what is lost, late, garbled, replayed, or somebody's."""

import contextlib
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from flower_grid import LoopbackGrid, changed, failed
from flwr.app import Array, ArrayRecord, RecordDict
from waiting import BRIEF, LONG, until

from privfed.deploy.carriers.addresses import AddressedCarrier, Addresses
from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.carriers.flower.grid_mail import GridMail, payload_bytes
from privfed.deploy.carriers.flower.grid_mail import payload_content as content
from privfed.deploy.carriers.local_socket import LocalServer
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.envelope import Greeter, Reply, answered, greeting

NAMES = ("berlin", "paris", "rome")
NODES = {10: 0, 20: 1, 30: 2}
PASSES = 1.5
"""Seconds of a deadline that is to pass."""


@dataclass
class Agents:
    """Sockets of sites: they answer greetings with their keys, and other bytes by their reverse."""

    folder: object
    stack: contextlib.ExitStack

    def __post_init__(self):
        self.keys = [SiteKey.draw(name) for name in NAMES]
        self.coordinator = SiteKey.draw("coordinator")
        sites = {key.name: str(key.public) for key in self.keys}
        stated = {"name": "stays", "coordinator": str(self.coordinator.public), "sites": sites}
        self.greeter = Greeter(FederationFile.model_validate(stated), self.coordinator.identity)
        self.asked = []
        self.servers = {}

    def start(self, name, site):
        """Serve `site` at the socket `name`."""
        path = self.folder / name

        def answer(data):
            if not data.startswith(b"PF1"):
                self.asked.append((name, data))
                return data[::-1]
            return answered(Reply.ANSWERED, greeting(self.keys[site], data))

        self.servers[name] = stack = contextlib.ExitStack()
        stack.enter_context(LocalServer(path, answer, most=1 << 26).serving())
        self.stack.callback(stack.close)
        return path


@pytest.fixture
def agents(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Agents(tmp_path, stack)


@pytest.fixture
def grid(agents):
    return LoopbackGrid({node: agents.start(f"s{site}", site) for node, site in NODES.items()})


def carrier(agents, grid, patience=30.0):
    return AddressedCarrier(Addresses(GridMail(grid), agents.greeter, patience))


def exchange(carrier, sites=(0, 1, 2), data=b"data of %d", silent=()):
    """What sites answer to one message each; for those that are `silent` a deadline passes."""
    ends, answers = {}, {}
    for site in sites:
        ends[site] = time.monotonic() + (PASSES if site in silent else LONG)
        carrier.send(site, data % site, ends[site])
    while not answers.keys() >= {*sites} - {*silent}:
        arrived = carrier.receive(max(ends.values()))
        assert arrived, f"answers of {answers.keys()} alone"
        answers |= dict(arrived)
    while silent and (arrived := carrier.receive(max(ends[site] for site in silent))):
        answers |= dict(arrived)
    return answers


def expected(*sites, data=b"data of %d"):
    return {site: (data % site)[::-1] for site in sites}


def after_greetings(fault, nth=2):
    """`fault` for message `nth` of node 20, and nothing else."""

    def only(node, number, reply):
        return fault(reply) if (node, number) == (20, nth) else [reply]

    return only


def test_bytes_arrive_at_the_site_whose_key_signed_there(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    large = bytes(range(256)) * 16384
    deadline = time.monotonic() + LONG
    carrying.send(1, large, deadline)
    assert carrying.receive(deadline) == [(1, large[::-1])]
    assert sorted({node for node, _ in grid.pushed}) == [10, 20, 30]


def test_a_message_lives_a_little_longer_than_its_deadline(agents, grid):
    began, push, ends = time.monotonic(), grid.push_messages, []

    def noted(messages):
        ends.extend(time.monotonic() + message.metadata.ttl for message in messages)
        return push(messages)

    grid.push_messages = noted
    exchange(carrier(agents, grid, patience=LONG))
    assert all(end > began + LONG for end in ends)
    assert all(ttl <= LONG + 5.0 for _, ttl in grid.pushed)
    assert len(ends) == len(grid.pushed) == 6


def test_who_has_been_found_is_not_greeted_again(agents, grid):
    carrying = carrier(agents, grid)
    for _ in range(4):
        assert exchange(carrying) == expected(0, 1, 2)
    assert len(grid.pushed) == 3 + 4 * 3


FAULTS = {
    "lost": lambda reply: [],
    "error": lambda reply: [failed(reply)],
    "no record": lambda reply: [changed_content(reply, RecordDict())],
    "other type": lambda reply: [changed_content(reply, other("float32"))],
    "another's": lambda reply: [changed(reply, src_node_id=10)],
    "of another message": lambda reply: [changed(reply, reply_to_message_id="another")],
    "raises": lambda reply: ["no message at all"],
}


def other(dtype):
    array = Array(dtype=dtype, shape=(4,), stype="raw", data=b"abcd")
    return RecordDict({"privfed": ArrayRecord({"b": array})})


def changed_content(reply, content):
    reply.__dict__["_content"] = content
    return reply


@pytest.mark.parametrize("name", FAULTS)
def test_a_reply_of_no_use_is_as_good_as_none_and_the_same_bytes_go_again(agents, grid, name):
    """Within the deadline the site is found anew, and asked the same again."""
    carrying = carrier(agents, grid)
    grid.fault = after_greetings(FAULTS[name])
    silent = name in ("lost", "another's", "of another message")
    answers = exchange(carrying, silent=(1,) if silent else ())
    assert answers == (expected(0, 2) if silent else expected(0, 1, 2))
    assert exchange(carrying) == expected(0, 1, 2)
    until(lambda: len(agents.asked) >= (6 if silent else 7), "all that was sent")
    asked = [data for agent, data in agents.asked if agent == "s1"]
    assert asked == [b"data of 1"] * (2 if silent else 3)


def test_a_late_answer_is_dropped_and_no_other_waits(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)

    def late(node, number, reply):
        if (node, number) == (20, 3):
            time.sleep(0.0)
            return ["stuck"]
        return [reply]

    grid.fault = late
    began = time.monotonic()
    assert exchange(carrying, silent=(1,)) == expected(0, 2)
    assert time.monotonic() - began < LONG / 2
    grid.fault = lambda node, number, reply: [reply]
    again = b"next of %d"
    assert exchange(carrying, data=again) == expected(0, 1, 2, data=again)


def test_an_answer_to_an_earlier_message_is_dropped(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    deadline = time.monotonic() + LONG
    carrying.send(1, b"first", deadline)
    time.sleep(0.3)
    carrying.send(1, b"second", deadline)
    assert carrying.receive(deadline) == [(1, b"dnoces")]


def test_a_replayed_reply_counts_once_and_never_for_another_message(agents, grid):
    carrying, seen = carrier(agents, grid), []

    def replayed(node, number, reply):
        if node == 20:
            seen.append(reply)
            return [*reversed(seen), reply]
        return [reply]

    grid.fault = replayed
    for data in (b"first %d", b"second %d", b"third %d"):
        assert exchange(carrying, data=data) == expected(0, 1, 2, data=data)
    assert carrying.receive(time.monotonic() + BRIEF) == []


def test_a_message_that_the_engine_refuses_is_not_waited_for(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    grid.refuse_push.add(20)
    assert exchange(carrying, silent=(1,)) == expected(0, 2)
    grid.refuse_push.clear()
    assert exchange(carrying) == expected(0, 1, 2)


def test_who_asks_is_told_at_once_that_the_engine_refuses(grid):
    grid.refuse_push.add(20)
    began = time.monotonic()
    assert GridMail(grid).ask(20, b"abc", began + LONG) is None
    assert time.monotonic() - began < LONG / 2


def test_a_node_of_nobody_is_greeted_and_never_asked(agents, grid):
    stranger = agents.folder / "stranger"
    grid.agents[99] = stranger
    asked = []

    def answer(data):
        asked.append(data[:3])
        return answered(Reply.ANSWERED, greeting(SiteKey.draw("stranger"), data))

    with LocalServer(stranger, answer, most=1 << 20).serving():
        assert exchange(carrier(agents, grid)) == expected(0, 1, 2)
        until(lambda: asked, "a greeting of the stranger")
    assert set(asked) == {b"PF1"}


def test_a_greeting_that_is_another_sites_or_replayed_leads_nowhere(agents, grid):
    """A stranger hands on what site 1 answered to an earlier greeting."""
    hello = agents.greeter.hello()
    stale = answered(Reply.ANSWERED, greeting(agents.keys[1], hello))
    replayer = agents.folder / "replayer"
    grid.agents = {99: replayer, **grid.agents}
    asked = []

    def answer(data):
        asked.append(data)
        return stale

    with LocalServer(replayer, answer, most=1 << 20).serving():
        for _ in range(3):
            assert exchange(carrier(agents, grid)) == expected(0, 1, 2)
    assert all(data.startswith(b"PF1") for data in asked)


def test_of_two_nodes_with_a_key_the_newest_is_asked(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    grid.agents[21] = agents.start("newer", 1)
    assert exchange(carrying) == expected(0, 1, 2)
    until(lambda: carrying.addresses._node_of.get(1) == 21, "the newer node to answer")
    agents.asked.clear()
    assert exchange(carrying) == expected(0, 1, 2)
    assert sorted(name for name, _ in agents.asked) == ["newer", "s0", "s2"]


def test_a_node_that_dies_is_left_for_another_of_the_same_key(agents, grid):
    """The dead one is listed for a while, as the engine does, and answers nothing."""
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    grid.agents[21] = agents.start("newer", 1)
    grid.fault = lambda node, number, reply: [] if node == 20 else [reply]
    assert exchange(carrying, silent=(1,)).keys() >= {0, 2}
    assert exchange(carrying) == expected(0, 1, 2)
    del grid.agents[20]
    assert exchange(carrying) == expected(0, 1, 2)


@pytest.mark.parametrize("gone", ["node", "agent"])
def test_of_two_nodes_with_a_key_the_other_takes_over(agents, grid, gone):
    """Both were found at the start, and led to one site; then the one that was asked is gone."""
    sockets = {20: "s1", 21: "other"}
    grid.agents[21] = agents.start("other", 1)
    carrying = carrier(agents, grid, patience=1.0)
    assert exchange(carrying) == expected(0, 1, 2)
    until(lambda: all_greeted(carrying, 4), "greetings")
    agents.asked.clear()
    assert exchange(carrying) == expected(0, 1, 2)
    (asked,) = (node for node, name in sockets.items() if name in [n for n, _ in agents.asked])
    if gone == "node":
        grid.fault = lambda node, number, reply: [] if node == asked else [reply]
        assert exchange(carrying, silent=(1,)) == expected(0, 2)
    else:
        agents.servers[sockets[asked]].close()
        assert exchange(carrying) == expected(0, 2) | {1: UNREACHABLE}
        # A node that led to a site that is found is not greeted at once.
        until(lambda: exchange(carrying) == expected(0, 1, 2), "the other node to take over")
    assert exchange(carrying) == expected(0, 1, 2)


def all_greeted(carrying, count):
    """Whether all of so many nodes have been greeted, and none is at present."""
    nodes = [*carrying.addresses._nodes.values()]
    return len(nodes) == count and all(node.again and not node.greeted for node in nodes)


def test_a_node_without_an_agent_answers_at_once_and_is_asked_again_later(agents, grid):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    agents.servers["s1"].close()
    began = time.monotonic()
    assert exchange(carrying) == expected(0, 2) | {1: UNREACHABLE}
    assert time.monotonic() - began < LONG / 2
    agents.start("s1", 1)
    assert exchange(carrying) == expected(0, 1, 2)


def test_a_site_that_comes_late_is_still_asked_in_time(agents, grid):
    missing = grid.agents.pop(20)
    carrying = carrier(agents, grid)
    deadline = time.monotonic() + LONG
    carrying.send(1, b"abc", deadline)
    assert carrying.receive(time.monotonic() + BRIEF) == []
    grid.agents[20] = missing
    assert carrying.receive(deadline) == [(1, b"cba")]


def test_an_engine_that_fails_says_nothing_of_data(agents, grid, caplog):
    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)

    def failing(*_):
        raise ValueError("patient 17 has 3 rows")

    grid.push_messages = failing
    everybody = (0, 1, 2)
    assert exchange(carrying, silent=everybody) == {}
    grid.get_node_ids = failing
    assert exchange(carrying, silent=everybody) == {}
    until(lambda: "could not be asked: ValueError" in caplog.text, "a warning")
    assert "patient 17" not in caplog.text


def test_what_fails_at_a_site_leaves_it_as_one_fixed_code(agents, grid, monkeypatch):
    from privfed.deploy.carriers.flower import client_app

    def failing(*_):
        raise ValueError("patient 17 has 3 rows")

    carrying = carrier(agents, grid)
    assert exchange(carrying) == expected(0, 1, 2)
    monkeypatch.setattr(client_app, "ask", failing)
    assert exchange(carrying) == dict.fromkeys(range(3), UNREACHABLE)


def test_bytes_are_packed_as_they_are():
    class Carrying:
        def __init__(self, data):
            self.content = content(data)

        def has_error(self):
            return False

    for data in (b"", b"\x00", bytes(range(256)) * 100):
        assert payload_bytes(Carrying(data)) == data
