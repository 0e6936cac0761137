"""Names of Flower's that are not public and that privfed uses: a test fails where they move."""

import inspect
import stat
import threading

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from flwr.proto import runtime_pb2
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp
from waiting import LONG, until

from privfed.core.errors import Refused
from privfed.deploy.carriers.flower import site_executor
from privfed.deploy.carriers.flower.site_executor import LEAST_SECRET, SiteExecutor, read_secret


def names(function):
    return list(inspect.signature(function).parameters)


def test_what_an_executor_asks_flower_for_is_where_it_was():
    assert names(run_clientapp.pull_task_input) == ["client"]
    assert names(run_clientapp.push_message) == ["client", "message", "context"]
    wanted = ["client", "context", "sub_status", "details"]
    assert names(run_clientapp.push_task_output) == wanted
    for method in ("AcquireTask", "SendTaskHeartbeat", "close"):
        assert callable(getattr(RuntimeHttpClient, method))
    assert names(RuntimeHttpClient.from_server_address) == [
        "server_address",
        "insecure",
        "root_certificates",
        "interceptors",
        "retry_invoker",
    ]
    assert names(RuntimeTokenHttpInterceptor) == ["token"]
    assert names(RuntimeVersionHttpInterceptor) == ["component_name"]
    assert names(SuperExecAuthHttpInterceptor) == ["master_secret", "protected_methods"]
    assert TaskType.CLIENT_APP == "flwr-clientapp"
    request = runtime_pb2.AcquireTaskRequest.DESCRIPTOR.fields_by_name
    answer = runtime_pb2.AcquireTaskResponse.DESCRIPTOR.fields_by_name
    assert "supported_task_types" in request
    assert {"task", "token"} <= {*answer}


def test_the_bundle_that_comes_with_a_task_is_not_unpacked_by_what_an_executor_calls():
    calls = inspect.getsource(run_clientapp.pull_task_input)
    assert "install" not in calls
    assert "zip" not in calls


def test_an_executor_speaks_plainly_to_its_own_machine_alone(tmp_path):
    for here in ("127.0.0.1:9094", "localhost:9094", "[::1]:9094"):
        SiteExecutor(here, tmp_path / "socket", bytes(32))
    for there in ("10.0.0.7:9094", "127.0.0.1.example.org:9094", "node:9094"):
        with pytest.raises(Refused, match="another machine"):
            SiteExecutor(there, tmp_path / "socket", bytes(32))


def test_a_secret_that_others_may_read_or_guess_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(bytes(LEAST_SECRET))
    path.chmod(stat.S_IRUSR | stat.S_IRGRP)
    with pytest.raises(Refused, match="other users must have no access"):
        read_secret(path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read_secret(path) == bytes(LEAST_SECRET)
    path.write_bytes(b"short")
    with pytest.raises(Refused, match="5 bytes; expected at least 16"):
        read_secret(path)


class Tasks:
    """A SuperNode's tasks, in the place of its API: the first waits, the others are carried."""

    def __init__(self, monkeypatch, failing=()):
        self.waiting, self.begun, self.pushed, self.ended = ["one", "two", "three"], [], [], []
        self.lock = threading.Lock()
        self.release, self.stop, self.failing = threading.Event(), threading.Event(), failing
        monkeypatch.setattr(SiteExecutor, "_acquired", lambda executor, client: self.acquired())
        monkeypatch.setattr(site_executor, "_POLL", 0.01)
        monkeypatch.setattr(site_executor, "pull_task_input", self.pull)
        monkeypatch.setattr(site_executor, "carried", lambda message, socket: message)
        monkeypatch.setattr(site_executor, "push_message", self.push)
        monkeypatch.setattr(site_executor, "push_task_output", self.end)

    def acquired(self):
        if self.waiting:
            return self.waiting.pop(0)
        if len(self.begun) == 3:
            self.stop.set()
        return ""

    def pull(self, client):
        with self.lock:  # two tasks may begin at once
            number = len(self.begun)
            self.begun.append(number)
        if number == 0:
            self.release.wait(LONG)
        if number in self.failing:
            raise BaseException("patient 17 has 3 rows")
        return number, "context", None, None

    def push(self, client, message, context):
        self.pushed.append(message)

    def end(self, client, context, status, details):
        self.ended.append((status, details))


def served(tasks, tmp_path):
    executor = SiteExecutor("127.0.0.1:1", tmp_path / "socket", bytes(32))
    executor.serve(tasks.stop)
    until(lambda: len(tasks.ended) >= 2 - len(tasks.failing), "tasks to end")


def released(tasks):
    """Let the first task go on to its end: it would end in the next test's place otherwise."""
    ended = len(tasks.ended)
    tasks.release.set()
    until(lambda: len(tasks.ended) > ended, "the first task to end")


def test_a_task_whose_message_never_comes_holds_up_no_other(monkeypatch, tmp_path):
    tasks = Tasks(monkeypatch)
    served(tasks, tmp_path)
    assert sorted(tasks.pushed) == [1, 2]
    assert tasks.ended == [("completed", "")] * 2
    released(tasks)


def test_a_task_that_fails_is_left_to_the_engine_and_nothing_is_told_of_why(
    monkeypatch, tmp_path, caplog
):
    tasks = Tasks(monkeypatch, failing=(1,))
    served(tasks, tmp_path)
    assert tasks.pushed == [2]
    assert tasks.ended == [("completed", "")]
    until(lambda: "a task was not carried: BaseException" in caplog.text, "a warning")
    assert "patient 17" not in caplog.text
    released(tasks)
