"""A running federation on this machine: its engine, its agents, and its runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.federation.engine import Engine
from experiments.federation.hospitals import NAMES, write_tables
from experiments.federation.journal import Journal
from experiments.federation.processes import ProgramEnded, Programs
from experiments.federation.sites import Hospitals

_POLL = 0.25


@dataclass
class Loopback:
    """Three hospitals, a coordinator, and Flower between them, under `folder`."""

    folder: Path
    programs: Programs
    own_executor: bool = True

    def agree(self, patients: int, seed: int) -> str:
        """Makes tables, keys and certificates, and returns the digest of the federation."""
        write_tables(self.folder, patients, seed)
        self.hospitals = Hospitals(self.folder, self.programs)
        agreed = self.hospitals.agree()
        self.engine = Engine(self.folder, self.programs)
        return agreed

    def start(self) -> None:
        """Starts all programs, and returns when every site can be reached."""
        self.engine.start_link()
        for name in NAMES:
            self.engine.register(name)
            self.start_site(name)
        self.engine.wait_for_nodes(*NAMES)
        for name in NAMES:
            self.wait(functools.partial(self.hospitals.serves, name), 60, f"agent-{name}")

    def start_site(self, name: str) -> None:
        """Starts a site's agent and node, and the executor of the node's tasks."""
        self.hospitals.start_agent(name)
        self.start_node(name)
        if self.own_executor:
            self.engine.start_executor(name, self.hospitals.site(name))

    def start_node(self, name: str) -> None:
        """Starts a site's node."""
        agent = f'agent="{self.hospitals.site(name)}/socket"'
        more = () if self.own_executor else ("--node-config", agent)
        self.engine.start_node(name, *more, own_executor=self.own_executor)

    def journal(self) -> Journal:
        """Returns the current content of the coordinator's log."""
        path = self.hospitals.log
        return Journal.read(path.read_text() if path.exists() else "")

    def wait_for(self, ready: Callable[[Journal], object], seconds: float, what: str) -> Journal:
        """Returns the log when `ready` holds of it.

        Raises `ProgramEnded` if it does not in time, or if the run ends before.
        """
        before = len(self.journal().errors)

        def over() -> bool:
            log = self.journal()
            return bool(ready(log)) or len(log.errors) > before

        self.wait(over, seconds, what)
        log = self.journal()
        if not ready(log):
            raise ProgramEnded(f"{what}: the run ended before. {log.errors[-1]}")
        return log

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Returns when `ready` holds. Raises `ProgramEnded` if it does not in time."""
        until = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > until:
                text = self.programs.log(what) or "\n".join(
                    w for *_, w in self.journal().lines[-8:]
                )
                raise ProgramEnded(f"{what}: not within {seconds:g} s. {text[-1500:]}")
            time.sleep(_POLL)
