"""The app that `privfed flower new` writes: paths and two shims, and nothing secret."""

import tomllib

import pytest
from commands import run

from privfed.deploy.carriers.flower.new_app import QUIET


def new(folder, app, *words, run_file="run.toml"):
    files = ("--run", folder / run_file, "--federation", folder / "federation.toml")
    return run("flower", "new", app, *files, *words)


def test_an_app_names_absolute_paths_and_two_shims(agreed, monkeypatch):
    monkeypatch.chdir(agreed)
    files = ("--run", "run.toml", "--federation", "federation.toml")
    assert run("flower", "new", "app", *files).exit_code == 0
    app = agreed / "app"
    written = tomllib.loads((app / "pyproject.toml").read_text())
    facts = written["tool"]["flwr"]["app"]
    assert facts["config"] == {
        "run": str(agreed / "run.toml"),
        "federation": str(agreed / "federation.toml"),
        "key": str(agreed / "key"),
        "out": str(agreed / "runs" / "run"),
        "seconds": 60.0,
        "patience": 120.0,
    }
    assert written["project"]["dependencies"] == []
    for end in ("server", "client"):
        module, _, name = facts["components"][f"{end}app"].partition(":")
        shim = (app / f"{module.replace('.', '/')}.py").read_text()
        assert f"from privfed.deploy.carriers.flower.{end}_app import {name}" in shim
        assert len(shim.splitlines()) < 10
    assert sorted(path.name for path in app.rglob("*") if path.is_file()) == [
        "__init__.py",
        "client_app.py",
        "pyproject.toml",
        "server_app.py",
    ]


def test_nothing_secret_is_copied_and_all_switches_are_named(agreed):
    assert new(agreed, agreed / "app", "--out", agreed / "out").exit_code == 0
    secret = (agreed / "key").read_text().split(":")[1].strip()
    texts = [path.read_text() for path in (agreed / "app").rglob("*") if path.is_file()]
    assert not any(secret in text for text in texts)
    pyproject = (agreed / "app" / "pyproject.toml").read_text()
    assert all(f"{name}={value}" in pyproject for name, value in QUIET.items())


def test_a_folder_that_exists_is_left_alone(agreed):
    (agreed / "app").mkdir()
    answer = new(agreed, agreed / "app")
    assert answer.exit_code == 2
    assert "exists already; nothing was changed" in answer.output
    assert list((agreed / "app").iterdir()) == []


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda folder: (folder / "key").unlink(), "name the coordinator's key file"),
        (lambda folder: (folder / "federation.toml").unlink(), "federation.toml"),
        (lambda folder: (folder / "run.toml").write_text("[run]\nround = 3\n"), "run.round"),
    ],
)
def test_what_a_run_needs_is_checked_before_anything_is_written(agreed, change, message):
    change(agreed)
    answer = new(agreed, agreed / "app")
    assert answer.exit_code == 2
    assert message in answer.output
    assert "Traceback" not in answer.output
    assert not (agreed / "app").exists()


def test_a_name_that_flower_does_not_take_is_refused(agreed):
    answer = new(agreed, agreed / "My App")
    assert answer.exit_code == 2
    assert "lower-case letters, digits and hyphens" in answer.output


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what reads Flower's patterns
def test_flower_takes_the_app(agreed):
    """Flower's own checks of an app, and its bundle of it."""
    pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import validate_config

    assert new(agreed, agreed / "app").exit_code == 0
    app = agreed / "app"
    written = tomllib.loads((app / "pyproject.toml").read_text())
    assert validate_config(written, check_module=True, project_dir=app) == (True, [], [])
    bundle = build_fab_from_disk(app)
    assert b"client_app.py" in bundle


def test_an_executor_without_flower_says_what_to_install(agreed, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "privfed.deploy.carriers.flower.site_executor", raising=False)
    for name in [name for name in sys.modules if name.startswith("flwr.")]:
        monkeypatch.setitem(sys.modules, name, None)
    answer = run("flower", "executor", agreed, "--runtime", "127.0.0.1:1", "--secret-file", "x")
    assert answer.exit_code == 2
    assert "pip install 'privfed[flower]'" in answer.output
