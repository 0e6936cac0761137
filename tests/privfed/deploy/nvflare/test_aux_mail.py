"""Bytes over NVIDIA FLARE's auxiliary requests, with an engine in this process."""

import contextlib
import time
from dataclasses import dataclass, field

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: privfed[nvflare]")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from waiting import BRIEF, LONG

from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.carriers.local_socket import LocalServer
from privfed.deploy.carriers.nvflare import site_relay
from privfed.deploy.carriers.nvflare.coordinator import AuxMail
from privfed.deploy.carriers.nvflare.site_relay import DATA, LINK, SECONDS, SiteRelay


@dataclass
class Loopback:
    """An engine whose only site is in this process; `fault(nth request)` replaces its reply."""

    local: object
    fault: object = lambda number: None
    sent: list = field(default_factory=list)
    handler: object = None

    def get_engine(self):
        return self

    def get_workspace(self):
        return self

    def get_site_config_dir(self):
        return str(self.local)

    def register_aux_message_handler(self, topic, handler):
        self.handler = handler

    def new_context(self):
        return contextlib.nullcontext()

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
        self.sent.append(request[DATA])
        reply = self.fault(len(self.sent)) or self.handler(topic, request, fl_ctx)
        return {targets[0]: reply}


@pytest.fixture
def engine(tmp_path):
    """An engine with a site, whose agent answers bytes by their reverse."""
    agent = tmp_path / "socket"
    (tmp_path / LINK).symlink_to(agent)
    engine = Loopback(tmp_path)
    SiteRelay().handle_event(EventType.START_RUN, engine)
    with LocalServer(agent, lambda data: data[::-1], most=1 << 20).serving():
        yield engine


def asked(engine, data=b"abc", seconds=LONG):
    return AuxMail(engine).ask("berlin", data, time.monotonic() + seconds)


def test_bytes_go_to_the_agent_after_an_empty_request_was_answered(engine):
    engine.fault = lambda number: make_reply(ReturnCode.TOPIC_UNKNOWN) if number < 3 else None
    assert asked(engine) == b"cba"
    assert engine.sent == [b"", b"", b"", b"abc"]


def test_a_site_that_answered_is_asked_without_an_empty_request(engine):
    mail = AuxMail(engine)
    for _ in range(2):
        assert mail.ask("berlin", b"abc", time.monotonic() + LONG) == b"cba"
    assert engine.sent == [b"", b"abc", b"abc"]


@pytest.mark.parametrize(
    "reply",
    [make_reply(ReturnCode.COMMUNICATION_ERROR), Shareable(), Shareable({DATA: "text"})],
)
def test_a_reply_of_no_use_is_none_and_the_site_is_sought_again(engine, reply):
    mail = AuxMail(engine)
    engine.fault = lambda number: reply if number == 2 else None
    assert mail.ask("berlin", b"abc", time.monotonic() + LONG) is None
    assert mail.ask("berlin", b"abc", time.monotonic() + LONG) == b"cba"
    assert engine.sent == [b"", b"abc", b"", b"abc"]


def test_a_site_that_never_answers_is_given_up_at_the_deadline(engine):
    engine.fault = lambda number: make_reply(ReturnCode.TOPIC_UNKNOWN)
    assert asked(engine, seconds=BRIEF) is None


def test_an_engine_that_fails_says_nothing_of_data(engine, caplog):
    def failing(number):
        raise ValueError("patient 17 has 3 rows")

    engine.fault = failing
    assert asked(engine) is None
    assert "could not be asked: ValueError" in caplog.text
    assert "patient 17" not in caplog.text


def test_a_site_without_an_agent_answers_at_once(engine):
    (engine.local / LINK).unlink()
    assert asked(engine) == UNREACHABLE


@pytest.mark.parametrize("request_", [{}, {DATA: b"abc"}, {DATA: b"abc", SECONDS: "soon"}])
def test_a_malformed_request_is_answered_by_one_fixed_code(engine, request_):
    assert engine.handler("privfed", Shareable(request_), None)[DATA] == UNREACHABLE


def test_what_fails_at_a_site_leaves_it_as_one_fixed_code(engine, monkeypatch, caplog):
    def failing(*_):
        raise ValueError("patient 17 has 3 rows")

    monkeypatch.setattr(site_relay, "ask", failing)
    assert asked(engine) == UNREACHABLE
    assert caplog.text == ""


def test_a_task_is_unknown():
    reply = SiteRelay().execute("train", Shareable(), None, None)
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN
