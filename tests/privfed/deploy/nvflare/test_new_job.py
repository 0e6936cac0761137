"""The job that `privfed nvflare new` writes: paths and two classes, and nothing secret."""

import json
from importlib.util import find_spec

import pytest
from commands import run

from privfed.deploy.carriers.nvflare.new_job import COORDINATOR, SITE


def new(folder, *words):
    files = ("--run", folder / "run.toml", "--federation", folder / "federation.toml")
    return run("nvflare", "new", folder / "job", *files, *words)


def contents(folder):
    job = folder / "job"
    return {
        str(path.relative_to(job)): json.loads(path.read_text())
        for path in job.rglob("*")
        if path.is_file()
    }


def test_a_job_names_absolute_paths_two_classes_and_all_sites(agreed):
    assert new(agreed).exit_code == 0
    written = contents(agreed)
    assert written.keys() == {
        "meta.json",
        "app/config/config_fed_server.json",
        "app/config/config_fed_client.json",
    }
    assert written["meta.json"]["min_clients"] == 2
    (workflow,) = written["app/config/config_fed_server.json"]["workflows"]
    assert workflow["path"] == COORDINATOR
    assert workflow["args"] == {
        "run": str(agreed / "run.toml"),
        "federation": str(agreed / "federation.toml"),
        "key": str(agreed / "key"),
        "out": str(agreed / "runs" / "run"),
        "seconds": 60.0,
        "patience": 120.0,
    }
    (executor,) = written["app/config/config_fed_client.json"]["executors"]
    assert executor["executor"] == {"path": SITE, "args": {}}


def test_a_job_holds_no_secret(agreed):
    assert new(agreed, "--out", agreed / "out").exit_code == 0
    secret = (agreed / "key").read_text().split(":")[1].strip()
    assert secret not in json.dumps(contents(agreed))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda folder: (folder / "job").mkdir(), "exists already; nothing was changed"),
        (lambda folder: (folder / "key").unlink(), "name the coordinator's key file"),
        (lambda folder: (folder / "federation.toml").write_text("x"), "federation.toml"),
        (lambda folder: (folder / "run.toml").write_text("[run]\nround = 3\n"), "run.round"),
    ],
)
def test_what_a_run_needs_is_checked_before_anything_is_written(agreed, change, message):
    change(agreed)
    answer = new(agreed)
    assert answer.exit_code == 2
    assert message in answer.output
    assert "Traceback" not in answer.output
    assert not any(path.is_file() for path in agreed.rglob("job/**/*"))


@pytest.mark.skipif(not find_spec("nvflare"), reason="NVIDIA FLARE is not installed")
def test_the_classes_of_a_job_are_where_it_names_them():
    from nvflare.apis.executor import Executor
    from nvflare.apis.impl.controller import Controller
    from nvflare.fuel.utils.class_utils import instantiate_class

    paths = dict.fromkeys(("run", "federation", "key", "out"), "/a")
    assert isinstance(instantiate_class(COORDINATOR, paths), Controller)
    assert isinstance(instantiate_class(SITE, {}), Executor)
