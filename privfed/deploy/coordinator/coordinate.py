"""A federated run, begun or gone on with: `train`'s own loop, whose clients are at sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting.ledger import Ledger
from privfed.config.reading import load, restated
from privfed.deploy.carriers.carrier import Carrier
from privfed.deploy.coordinator.coordinator import Coordinator
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.hello import Greeter
from privfed.errors import Refused
from privfed.run.outcome import Observer, Outcome
from privfed.run.population import load_nobody
from privfed.run.resume import resume
from privfed.run.setup import Setup
from privfed.run.train import train
from privfed.run.world import Elsewhere
from privfed.store.run_directory import RunDirectory

Connect = Callable[[Greeter], Carrier]
"""What makes a carrier to the sites whom the greeter recognises."""


@dataclass(frozen=True)
class Reach:
    """Reaches the sites of a `federation` for a run whose configuration file lies at `config`."""

    config: Path
    federation: FederationFile
    key: SiteKey
    connect: Connect
    seconds: float
    patience: float

    def __call__(self, setup: Setup, ledger: Ledger) -> Coordinator:
        """The sites, of whom nothing was asked yet."""
        federation, config = self.federation, setup.plan.config
        opening = ledger.path.read_bytes().split(b"\n", 1)[0]
        form = ExampleForm.of(setup.federation.examples)
        declared = self.config.read_text(encoding="utf-8")
        return Coordinator(
            setup.algorithm,
            federation.directory(),
            self.connect(Greeter(federation, self.key.identity)),
            self.key.identity,
            bytes.fromhex(federation.digest()),
            Declaration(opening, declared, form, setup.network.constants),
            ledger,
            least=setup.plan.cost.limits.minimum,
            deadline=config.secure.deadline,
            seconds=self.seconds,
            patience=self.patience,
            names=federation.order,
        )


def coordinate(
    run: Path,
    federation: Path,
    key: Path,
    out: Path,
    connect: Connect,
    seconds: float = 60.0,
    patience: float = 60.0,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Train the run file `run` over the sites of `federation` into `out`, or go on with what is
    there.

    `key` is the coordinator's. A site has `seconds` for each answer, beside the time to train, and
    a round waits `patience` seconds for enough of them. Raises `Refused`, also where too few sites
    are at hand (`Busy`), and `Broken`.
    """
    agreed, signing = FederationFile.read(federation), SiteKey.read(key)
    if str(signing.public) != agreed.coordinator:
        raise Refused(f"{key} is not the key of the coordinator that {federation} names")
    directory = RunDirectory(out)
    reach = Reach(directory.config.path, agreed, signing, connect, seconds, patience)
    elsewhere = Elsewhere(load_nobody, reach)
    config = load(run)
    if config.data.sites != len(agreed.sites):
        raise Refused(
            f"{run}: data.sites is {config.data.sites}, and {federation} names "
            f"{len(agreed.sites)} sites",
            key="data.sites",
        )
    if not (config.apart or config.site_column):
        raise Refused(
            f'{run}: data.site_partition is "{config.data.site_partition}", which makes sites up; '
            'set it to "none": each client is at a site on a machine of its own',
            key="data.site_partition",
        )
    if not directory.config.path.exists():
        return train(config, out, observers, elsewhere=elsewhere)
    return resume(out, lambda stored: restated(stored, run, ()), observers, elsewhere=elsewhere)
