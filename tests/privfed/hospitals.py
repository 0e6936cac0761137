"""Hospitals on disk: a federation's file and keys, each site's folder and table, and a run file."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accounting.ledger import Ledger
from privfed.config.reading import load
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.envelope import Envelope, Greeter, Kind
from privfed.deploy.site.agent import Agent, agent_of, open_member
from privfed.deploy.site.joining import Membership
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.secure.primitives import KeyPair, random_key

POLICY = """
[budget]
epsilon = 1e300
delta = 1e-3
[require]
threat = "curious"
sites = 2
[allow]
releases = ["training", "evaluation"]
objectives = ["sgd", "fedprox", "feddane"]
simulation = true
"""
COLUMNS = ["patient", "hospital", "age", "bmi", "sick"]


SEALING = KeyPair(random_key())
"""The coordinator's key for sums that it opens."""


@dataclass(frozen=True)
class Hospitals:
    """A federation in the folder `root`, with a folder for each site, named h0, h1, and so on."""

    root: Path
    count: int
    patients: int
    federation: FederationFile
    key: SiteKey
    """The coordinator's key."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.federation.order

    @property
    def federation_file(self) -> Path:
        return self.root / "federation.toml"

    @property
    def key_file(self) -> Path:
        return self.root / "coordinator"

    @property
    def sockets(self) -> dict[int, Path]:
        return {number: self.folder(number).socket for number in range(self.count)}

    def folder(self, site: int) -> SiteFolder:
        return SiteFolder(self.root / f"h{site}")

    def table(self, name: str) -> Path:
        return self.root / f"{name}.csv"

    def member(self, site: int) -> Membership:
        return open_member(self.folder(site))

    def agent(self, site: int) -> Agent:
        return agent_of(self.member(site))

    def run_file(self, *keys: str, table: str = "nowhere", name: str = "run.toml") -> Path:
        """Writes a run file over the hospitals, for a coordinator without client data."""
        path = self.root / name
        path.write_text(self.config(*keys, table=table).toml())
        return path

    def config(self, *keys: str, table: str = "nowhere"):
        return load(
            None,
            [
                "data.source=table",
                f"data.path={self.table(table)}",
                f"data.test_path={self.table('public')}",
                "data.client=patient",
                "data.site=hospital",
                f"data.sites={self.count}",
                f"data.clients={self.patients}",
                "data.label=sick",
                "data.classes=2",
                "data.features={age=[18,94],bmi=[11,42]}",
                "cohort.size=16",
                "privacy.mechanism=skellam",
                "privacy.noise_multiplier=1.5",
                "privacy.delta=1e-3",
                "secure.protocol=masks",
                "run.randomness=secret",
                "run.trainer=stacked",
                "run.chunk=8",
                "run.rounds=4",
                *keys,
            ],
        )

    def declaration(self, *keys: str) -> tuple[Declaration, Ledger]:
        """Returns a run as its coordinator declares it, and its ledger without charges."""
        setup = prepare(self.config(*keys, table="all"))
        path = self.root / f"ledger{len(list(self.root.glob('ledger*')))}.jsonl"
        ledger = Ledger.create(path, opened_for(setup))
        opening = path.read_bytes().split(b"\n")[0]
        form = ExampleForm.of(setup.federation.examples)
        text = setup.plan.config.toml()
        declared = Declaration(opening, text, form, setup.constants, SEALING.public)
        return declared, ledger

    def signed(self, kind: Kind, run: bytes, body: bytes) -> bytes:
        """Returns a message signed by the coordinator."""
        federation = bytes.fromhex(self.federation.digest())
        return Envelope(federation, run, kind, body).signed(self.key.identity).encode()

    @property
    def greeter(self) -> Greeter:
        return Greeter(self.federation, self.key.identity)


def hospitals(root: Path, count: int = 3, patients: int = 24, policy: str = POLICY) -> Hospitals:
    """Creates a federation in the folder `root`, which has no other use."""
    root.mkdir(exist_ok=True)
    keys = {f"h{site}": SiteKey.draw(f"h{site}") for site in range(count)}
    coordinator = SiteKey.draw("coordinator")
    federation = FederationFile(
        name="stays",
        coordinator=str(coordinator.public),
        sites={name: str(key.public) for name, key in keys.items()},
    )
    made = Hospitals(root, count, patients, federation, coordinator)
    federation.write_new(made.federation_file)
    coordinator.write(made.key_file)
    _write_tables(made)
    for site, key in enumerate(keys.values()):
        folder = made.folder(site)
        folder.begin(key.name)
        folder.key.unlink()
        key.write(folder.key)
        folder.policy.write_text(policy)
        folder.data.write_text(data_text(made.table(key.name)))
        federation.write_new(folder.federation)
    return made


def opened_for(setup: Setup) -> dict[str, str]:
    """Returns the first terms of a new run's ledger, with a unique id."""
    return {"id": os.urandom(8).hex(), "config": setup.plan.config.digest()}


def data_text(table: Path, clients: int = 20, rows: int = 5) -> str:
    """Returns the text of a site's `data.toml`."""
    population = f'population = "stays"\nclient = "patient"\nclients = {clients}\nrows = {rows}\n'
    return f'{population}path = "{table}"\n'


def write_table(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def stays(patient: str, site: str, count: int, rng: np.random.Generator) -> list[list[object]]:
    """Returns `count` rows of one patient."""
    drawn = [(rng.uniform(18, 94), rng.uniform(15, 40)) for _ in range(count)]
    return [[patient, site, age, bmi, int(age + bmi > 82)] for age, bmi in drawn]


def _write_tables(made: Hospitals) -> None:
    """Writes one table of all patients, one per hospital, and a public one."""
    rng, rows = np.random.default_rng(0), []
    for patient in range(made.patients):
        rows += stays(f"p{patient}", f"h{patient % made.count}", int(rng.integers(1, 4)), rng)
    write_table(made.table("all"), rows)
    write_table(made.table("public"), [[f"q{n}", "h0", 20 + n, 25, int(n > 37)] for n in range(60)])
    for name in made.names:
        write_table(made.table(name), [row for row in rows if row[1] == name])
