"""The hospitals' folders, their federation, and the run, made by privfed's commands."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.federation.hospitals import BOUNDS, NAMES
from experiments.federation.processes import Programs

PRIVFED = (sys.executable, "-m", "privfed")


@dataclass(frozen=True)
class Hospitals:
    """Folders of three sites and of their coordinator under `folder`, next to their tables."""

    folder: Path
    programs: Programs

    @property
    def federation(self) -> Path:
        """The file that lists the participants."""
        return self.coordinator / "federation.toml"

    @property
    def coordinator(self) -> Path:
        """The coordinator's folder: a key, the federation, the run file, and its ledger."""
        return self.folder / "office"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.coordinator / "runs" / "run"

    @property
    def log(self) -> Path:
        """The coordinator's log of the run."""
        return self.run.with_name("run.log")

    def site(self, name: str) -> Path:
        """Returns the folder of a site."""
        return self.folder / name

    def agree(self) -> str:
        """Makes keys and folders, agrees on a federation, and returns its digest."""
        keys = {}
        for name in (*NAMES, "office"):
            self._privfed("site", "init", self.site(name), "--name", name)
            keys[name] = self._privfed("site", "key", self.site(name)).strip()
        new = ("federation", "new", self.federation, "--name", "stays")
        self._privfed(*new, "--coordinator", keys.pop("office"))
        for name, key in keys.items():
            self._privfed("federation", "add", self.federation, "--site", name, key)
        for name in NAMES:
            (self.site(name) / "federation.toml").write_text(self.federation.read_text())
            (self.site(name) / "data.toml").write_text(_DATA.format(table=self._table(name)))
        return self._privfed("federation", "check", self.federation)

    def declare(self, rounds: int, patients: int, deadline: float) -> Path:
        """Writes the run file, and returns the Flower app that carries it."""
        features = ", ".join(f"{name} = {bounds}" for name, bounds in BOUNDS.items())
        run, app = self.coordinator / "run.toml", self.folder / "app"
        run.write_text(
            _RUN.format(
                rounds=rounds,
                public=self._table("public"),
                patients=patients,
                cohort=round(0.3 * patients),
                features=features,
                deadline=deadline,
            )
        )
        files = ("--run", run, "--federation", self.federation)
        self._privfed("flower", "new", app, *files, "--key", self.coordinator / "key")
        return app

    def start_agent(self, name: str) -> None:
        """Starts the agent of a site."""
        self.programs.start(f"agent-{name}", [*PRIVFED, "site", "serve", str(self.site(name))])

    def serves(self, name: str) -> bool:
        """Whether a site's agent accepts connections; a killed agent leaves its socket file."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.site(name) / "socket")) == 0

    def _table(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def _privfed(self, *words: object) -> str:
        return self.programs.call([*PRIVFED, *map(str, words)])


_DATA = """\
format = 1
population = "stays"
client = "patient"
path = "{table}"
clients = 200
rows = 4
reading = 1.0
"""
_RUN = """\
[run]
rounds = {rounds}
evaluate_every = 1
[data]
source = "table"
path = "at the sites"
test_path = "{public}"
client = "patient"
sites = 3
site_partition = "elsewhere"
clients = {patients}
label = "readmitted"
classes = 2
features = {{ {features} }}
[cohort]
size = {cohort}
[client]
lr = 1.0
[server]
lr = 2.0
[privacy]
mechanism = "discrete_gaussian"
epsilon = 2.0
delta = 1e-5
[secure]
protocol = "masks"
threat = "malicious"
deadline = {deadline}
"""
