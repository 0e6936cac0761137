"""Names of Flower's that are not public and that privfed uses: a test fails where they move."""

import inspect
import stat

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

from privfed.deploy.carriers.flower.site_executor import LEAST_SECRET, SiteExecutor, read_secret
from privfed.errors import Refused


def names(function):
    return list(inspect.signature(function).parameters)


def test_what_an_executor_asks_flower_for_is_where_it_was():
    assert names(run_clientapp.pull_task_input) == ["client"]
    assert names(run_clientapp.push_message) == ["client", "message", "context"]
    wanted = ["client", "context", "sub_status", "details"]
    assert names(run_clientapp.push_task_output) == wanted
    for method in ("AcquireTask", "SendTaskHeartbeat", "PushTaskOutput", "close"):
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
    output = runtime_pb2.PushTaskOutputRequest.DESCRIPTOR.fields_by_name
    assert "supported_task_types" in request
    assert {"task", "token"} <= {*answer}
    assert {"sub_status", "details"} <= {*output}


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
    with pytest.raises(Refused, match="may be read by others"):
        read_secret(path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read_secret(path) == bytes(LEAST_SECRET)
    path.write_bytes(b"short")
    with pytest.raises(Refused, match="5 bytes; expected at least 16"):
        read_secret(path)
