"""Starts or resumes a run over remote sites, with the training loop of `privfed.train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accounting import regular
from accounting.ledger import Ledger
from defenses.types import SumRule
from privfed.config.config import Config
from privfed.config.reading import load, restated
from privfed.core.errors import Refused
from privfed.deploy.carriers.carrier import Carrier
from privfed.deploy.coordinator.answered import ANSWERED, AnsweredRecord
from privfed.deploy.coordinator.coordinator import Coordinator
from privfed.deploy.coordinator.sum_session import SumSession, start_session
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.envelope import Greeter
from privfed.deploy.messages.questions import Question
from privfed.round.world import Exclusions
from privfed.run.outcome import Observer, Outcome
from privfed.run.population import load_empty
from privfed.run.setup import Setup
from privfed.run.train import resume, train
from privfed.run.world import Elsewhere
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.masked.policy import Masking
from privfed.secure.primitives import KeyPair, random_key
from privfed.secure.summation import Culprit
from privfed.store.run_directory import RunDirectory

Connect = Callable[[Greeter], Carrier]
"""Creates a carrier to the sites that a greeter recognises."""


@dataclass(frozen=True)
class ReportedSites:
    """Records sites that regions report; the regions' coordinators exclude them, not the server."""

    log: Exclusions

    def before(self, round: int) -> frozenset[int]:
        """Returns no region: all are asked."""
        return frozenset()

    def note(self, culprit: Culprit) -> None:
        """Records a site that was proved Byzantine."""
        self.log.note(culprit)


@dataclass(frozen=True)
class Reach:
    """A factory of the coordinator of the run in `directory`, over the sites of `federation`.

    `connect`, `seconds` and `patience` are those of `coordinate`.
    """

    directory: RunDirectory
    federation: FederationFile
    key: SiteKey
    connect: Connect
    seconds: float
    patience: float
    answered: AnsweredRecord = field(default_factory=AnsweredRecord)

    def __call__(self, setup: Setup, ledger: Ledger) -> Coordinator:
        """Returns a coordinator that has not contacted any site yet."""
        federation, config, plan = self.federation, setup.plan.config, setup.plan
        parties, excluded = federation.parties, self.directory.exclusions
        regions = dict(enumerate(map(federation.directory, sorted(federation.regions))))
        directory = {number: key.raw for number, key in enumerate(parties.values())}
        opening = regular.read_bytes(ledger.path).split(b"\n", 1)[0]
        form = ExampleForm.of(setup.federation.examples)
        sealing = KeyPair(random_key())
        declared = regular.read_text(self.directory.config.path)
        declaration = Declaration(opening, declared, form, setup.constants, sealing.public)

        def session_of(question: Question) -> SumSession:
            algorithm = setup.algorithm_in(question.round)
            facts = directory, question, declaration.run, sealing, regions
            return start_session(algorithm, *facts)

        summation, least = plan.cost.summation, 1
        if isinstance(summation, EncodedSummation):
            least = summation.of_top.limits.minimum
        return Coordinator(
            session_of,
            directory,
            self.connect(Greeter(federation, self.key.identity)),
            self.key.identity,
            bytes.fromhex(federation.digest()),
            declaration,
            ledger,
            least=least,
            deadline=self._deadline(config.secure.deadline),
            seconds=self.seconds,
            patience=self.patience,
            names=tuple(parties),
            exclusions=ReportedSites(excluded) if regions else excluded,
            answered=self.answered,
        )

    def _deadline(self, deadline: float) -> float:
        """Returns the seconds in addition to `seconds` for a row: the `deadline` of a site's row.

        The row of a region is the sum of a session of its own: two messages with the sites'
        deadline (declaration and rows), and five others.
        """
        return 2 * deadline + 7 * self.seconds if self.federation.regions else deadline


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
    """Trains a run over the sites of a federation, or resumes it.

    Args:
      run: the run file.
      federation: the federation file.
      key: file of the coordinator's key.
      out: run directory; if it holds a run, that run is resumed.
      connect: creates the carrier to the sites.
      seconds: time for each answer of a site; training takes `secure.deadline` in addition.
      patience: seconds that a round waits for enough sites.
      observers: observers of the run.

    Returns:
      The outcome of training.

    Raises:
      Refused: if the run is not permitted or not possible over these sites, a file is invalid, or
        `key` is not the key of the federation's coordinator.
      Busy: if too few sites are available within `patience` seconds.
      Broken: if the key file cannot be used, or files of the run are damaged.
    """
    agreed, signing = FederationFile.read(federation), SiteKey.read(key)
    if str(signing.public) != agreed.coordinator:
        raise Refused(
            f"{key} is not the key of the coordinator that {federation} names; use that key, or "
            f"correct coordinator in {federation}"
        )
    directory = RunDirectory(out)
    answered = AnsweredRecord(key.parent / ANSWERED)
    answered.refuse_unwritable()
    reach = Reach(directory, agreed, signing, connect, seconds, patience, answered)
    elsewhere = Elsewhere(load_empty, reach)
    config = load(run)
    _refuse_other_runs(config, agreed, run)
    if not directory.config.path.exists():
        return train(config, out, observers, elsewhere=elsewhere)
    return resume(out, lambda stored: restated(stored, run, ()), observers, elsewhere=elsewhere)


def _refuse_other_runs(config: Config, federation: FederationFile, run: Path) -> None:
    """Raises `Refused` for a run in which sites on their own machines cannot take part.

    Such a run has another number of sites or regions, simulates its sites, uses a secure protocol
    other than masking, or has an aggregation rule on single rows.
    """
    data = config.data
    if data.sites != len(federation.sites):
        raise Refused(
            f"{run}: data.sites is {data.sites}, but the federation {federation.name} has "
            f"{len(federation.sites)} sites; set data.sites to that number",
            key="data.sites",
        )
    if not (config.at_remote_sites or config.site_column):
        raise Refused(
            f'{run}: data.site_partition is "{data.site_partition}", which simulates sites, but '
            'clients are at sites on their own machines; set data.site_partition = "elsewhere"',
            key="data.site_partition",
        )
    if config.secured and not isinstance(config.protocol, Masking):
        raise Refused(
            f"{run}: secure.protocol is {config.names['protocol']!r}, which sites on their own "
            'machines do not support; use "masks", or "none" if the coordinator may see sums',
            key="secure.protocol",
        )
    if reason := federation.other_parties(config):
        raise Refused(f"{run}: {reason}", key="secure.protocol")
    if not isinstance(config.rule, SumRule):
        raise Refused(
            f"{run}: aggregation.rule is {config.names['rule']!r}, which needs single rows, but "
            'sites send only sums; use a rule on sums, for example "mean" or "geometric_median"',
            key="aggregation.rule",
        )
