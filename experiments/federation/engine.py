"""Flower's programs for a federation: SuperLink, a SuperNode for each site, and its command."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from experiments.federation.certificates import Authority, node_key
from experiments.federation.processes import ProgramEnded, Programs, free_ports, listens
from privfed.deploy.carriers.flower.new_app import QUIET

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CONNECTION = "loop"
_READY, _POLL = 60.0, 0.1
"""Seconds for a program to get ready, and between two checks."""


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of all programs: no telemetry, and Flower's own files in `folder`."""
    return {
        **QUIET,
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


@dataclass
class Engine:
    """Flower on this machine, with TLS and node keys, with its files in `folder`."""

    folder: Path
    programs: Programs
    port: int = 0
    ports: dict[str, int] = field(default_factory=dict)
    """The Runtime API of each SuperNode."""
    _joins: dict[str, int] = field(default_factory=dict)
    """Number of times each SuperNode had joined before its last start."""

    def __post_init__(self) -> None:
        self.authority = Authority.new(self.folder)
        self.certificate, self.key = self.authority.certify_server()
        self.port = free_ports(1)[0]
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.authority.root}"\n'
        )
        self.secret = self.folder / "executor.secret"
        self.secret.touch(0o600)
        self.secret.write_bytes(os.urandom(32))

    def start_link(self) -> None:
        """Starts or restarts SuperLink, whose database is a file."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key)]
        command += ["--ssl-ca-certfile", str(self.authority.root), "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--database", str(self.folder / "link.db")]
        self._start("superlink", command)
        self._until(lambda: listens(self.port), "superlink", "listen")

    def register(self, name: str) -> Path:
        """Registers a new key of the node `name` with SuperLink, and returns its file."""
        key = node_key(self.folder, name)
        self.programs.call(self._flwr("supernode", "register", f"{key}.pub", CONNECTION))
        self.ports[name] = free_ports(1)[0]
        return key

    def start_node(self, name: str, *more: str, own_executor: bool = True) -> None:
        """Starts the SuperNode of a registered site.

        With its own executor, no app of a run is unpacked there; otherwise Flower runs the app.
        """
        port = str(self.ports[name])
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self.authority.root)]
        command += ["--auth-supernode-private-key", str(self.folder / f"{name}.node")]
        command += ["--host", "127.0.0.1", "--port", port, *more]
        if own_executor:
            command += ["--isolation", "process"]
            command += ["--superexec-auth-secret-file", str(self.secret)]
        node = f"node-{name}"
        self._joins[node] = self._joined(node)
        self._start(node, command, FLWR_HOME=str(self.home(name)))

    def start_executor(self, name: str, site: Path) -> None:
        """Starts the executor of the `site` whose node is `name`."""
        runtime = f"127.0.0.1:{self.ports[name]}"
        command = [sys.executable, "-m", "privfed", "flower", "executor", str(site)]
        command += ["--runtime", runtime, "--secret-file", str(self.secret)]
        self._start(f"executor-{name}", command, FLWR_HOME=str(self.home(name)))

    def home(self, name: str) -> Path:
        """Returns the folder where Flower unpacks a site's apps, as on a machine of its own."""
        return self.folder / f"flwr-{name}"

    def wait_for_nodes(self, *names: str) -> None:
        """Returns when SuperLink knows the SuperNodes. Raises `ProgramEnded`."""
        for node in (f"node-{name}" for name in names):
            self._until(lambda: self._joined(node) > self._joins[node], node, "join")  # noqa: B023

    def run(self, app: Path, **config: str) -> int:
        """Starts the `app` with changed configuration values, and returns the run's number."""
        stated = " ".join(f"{name}={value}" for name, value in config.items())
        words = ["run", str(app), CONNECTION, "--format", "json"]
        more = ["--run-config", stated] if stated else []
        return int(json.loads(self.programs.call(self._flwr(*words, *more)))["run-id"])

    def status(self, run: int) -> str:
        """Returns Flower's status of the `run`."""
        listed = json.loads(self.programs.call(self._flwr("list", CONNECTION, "--format", "json")))
        return next(str(each["status"]) for each in listed["runs"] if int(each["run-id"]) == run)

    def _joined(self, node: str) -> int:
        """Returns the number of times the SuperNode has joined, over all restarts."""
        return self.programs.log(node).count("SuperNode ID")

    def _flwr(self, *words: str) -> list[str]:
        return [str(BIN / "flwr"), *words]

    def _start(self, name: str, command: list[str], **more: str) -> None:
        self.programs.start(name, [str(BIN / command[0]), *command[1:]], **more)

    def _until(self, ready: Callable[[], bool], name: str, what: str) -> None:
        until = time.monotonic() + _READY
        while not ready():
            if self.programs.code(name) is not None or time.monotonic() > until:
                raise ProgramEnded(f"{name} did not {what}: {self.programs.log(name)[-600:]}")
            time.sleep(_POLL)
