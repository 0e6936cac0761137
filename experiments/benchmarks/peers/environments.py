"""The peers, each in its own virtual environment, created and filled on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from experiments.benchmarks.work.task import Task

ROOT = Path(__file__).parents[3]
DEFAULT = Path.home() / ".cache" / "privfed" / "peers"
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_MOST_SECONDS = 1800


class Unavailable(Exception):
    """A peer cannot be measured here; the message states the reason."""


@dataclass(frozen=True)
class Peer:
    """A framework: its requirement, driver, largest number of rounds at a time, and threads.

    The threads are those of each worker. Flower starts as many workers as fit the cores, and with
    two threads each there would be only one.
    """

    name: str
    requirement: str
    driver: str
    rounds: int
    threads: tuple[int, ...]


PFL = Peer("pfl-research 0.6.0", "pfl[pytorch]==0.6.0", "pfl_driver", 1000, (1, 2))
FLOWER = Peer("Flower 1.41", "flwr[simulation]==1.41.0", "flower_driver", 4, (1,))
PEERS = (PFL, FLOWER)


@dataclass(frozen=True)
class Took:
    """Seconds of each round after the first, seconds of the start and first round, and the loss."""

    seconds: list[float]
    start: float
    loss: float


@dataclass(frozen=True)
class Environment:
    """A peer, and the interpreter that can import it."""

    peer: Peer
    python: Path

    @classmethod
    def of(cls, peer: Peer, folder: Path) -> Environment:
        """Returns the environment in `folder`, creating it if needed. Raises `Unavailable`."""
        home = folder / peer.driver.removesuffix("_driver")
        python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        ready = home / "ready"
        if not ready.exists() or ready.read_text("utf-8") != peer.requirement:
            print(f"installing {peer.requirement} into {home}", flush=True)
            home.mkdir(parents=True, exist_ok=True)
            venv.create(home, with_pip=True)
            # The same torch as ours, and first: a peer's requirements may install another build.
            for requirement in (f"torch=={torch.__version__.partition('+')[0]}", peer.requirement):
                _called([str(python), "-m", "pip", "install", "--quiet", requirement])
            ready.write_text(peer.requirement, "utf-8")
        return cls(peer, python)

    @property
    def packages(self) -> Path:
        """The folder of its modules, for an interpreter of the same version, after its own."""
        places = {"base": str(self.python.parents[1]), "platbase": str(self.python.parents[1])}
        return Path(sysconfig.get_path("purelib", "venv", places))

    def play(self, task: Task, rounds: int, threads: int, private: bool) -> Took:
        """Runs `rounds` rounds of `task` after one warm-up round. Raises `Unavailable`."""
        with TemporaryDirectory() as folder:
            given, out = Path(folder) / "task.npz", Path(folder) / "out.json"
            task.save(given)
            module = f"experiments.benchmarks.peers.{self.peer.driver}"
            options = ["--rounds", str(rounds + 1), "--threads", str(threads)]
            options += ["--private"] if private else []
            _called([str(self.python), "-m", module, str(given), str(out), *options])
            measured: dict[str, Any] = json.loads(out.read_text("utf-8"))
        first, *others = measured["seconds"]
        return Took(others, measured.get("start", first), measured["loss"])


def _called(command: list[str]) -> None:
    """Runs `command`. Raises `Unavailable` with the last line of its output."""
    environment = {**os.environ, **_QUIET, "PYTHONPATH": str(ROOT)}
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if ran.returncode:
        last_words = (ran.stderr or ran.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[1:5])} failed: {' '.join(last_words)}")
