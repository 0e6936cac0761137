"""Makes a site take part in a declared run: checks the run, then sets it up."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from accounting import regular
from accounting.errors import LedgerBroken
from privfed.config.config import Config
from privfed.core.errors import Refused, public_text
from privfed.deploy.files.approvals import Approval, Approvals, approval_digest
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.run_state import RunState
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.place import Place
from privfed.deploy.site.admission import Admission
from privfed.deploy.site.header import header_lacks
from privfed.deploy.site.late_rows import LateWork
from privfed.deploy.site.party import MakesParties, MaskedParties, PlainParties
from privfed.deploy.site.policy import Code, Declined, LocalPolicy, Refusal
from privfed.deploy.site.policy_check import refusal, unlisted_architecture
from privfed.deploy.site.population import (
    ReadsTables,
    about,
    readable_examples,
    site_population,
    synthetic_clients,
)
from privfed.deploy.site.release_check import StatesRelease
from privfed.deploy.site.run_party import FixedTime, RunParty
from privfed.deploy.site.site_setup import (
    bare_setup,
    rehearsed_seconds,
    site_config,
    too_slow,
)
from privfed.deploy.site.site_work import SiteWork
from privfed.deploy.site.user_modules import model_file_digest, outside_part
from privfed.run.setup import Setup
from privfed.secure.frames import BadMessage

_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""
CONCURRENT_RUNS = 4
"""Largest number of runs that a site takes part in at once; a further run replaces the oldest."""
_MACHINE_KEYS = ("device", "threads", "trainer", "chunk", "precision")
"""The keys of [run] that each site sets for its own machine; approvals do not cover them."""


@dataclass(frozen=True)
class Membership:
    """A site of a `federation`, with its `folder`, `key` and `receipts`."""

    folder: SiteFolder
    key: SiteKey
    federation: FederationFile
    receipts: Receipts
    late: LateWork = field(default_factory=LateWork)

    @property
    def number(self) -> int:
        """The site's number. Raises `Refused` if the federation does not contain the site's key."""
        name = self.federation.name_of(self.key.public)
        if name is None:
            raise Refused(
                f"{self.folder.federation} does not name this site's key; have the federation add "
                "the key (privfed federation add), and use the new file"
            )
        return self.federation.order.index(name)

    def join(self, declaration: Declaration) -> RunParty:
        """Joins the declared run and returns the site's party in the run.

        Reading the table always takes `reading` seconds (data.toml), since a varying time would
        reveal the table's content. If that time is too short, the site takes part without clients.
        If the site's policy allows simulations, reading takes as long as it needs.

        Raises:
          Declined: if the site does not accept the run.
        """
        party = self._party(declaration, new=True)
        self._state(declaration.run).declare(declaration.encode())
        return party

    def refuse_rolled_back(self, place: Place) -> None:
        """Raises `Declined` if the receipts lack `place`.

        The coordinator states that this exchange is the last that this site answered.
        """
        if not self.receipts.answered(place):
            reason = (
                f"the coordinator has this site's answer to round {place.round}, exchange "
                f"{place.exchange} of run {place.run}, but {self.receipts.path} lacks it, so an "
                f"older copy was restored; run privfed site recover {self.folder.path}"
            )
            raise Declined(Refusal(Code.RECEIPTS, reason))

    def refuse_older_receipts(self, questions: Mapping[str, bytes]) -> None:
        """Raises `LedgerBroken` if the state of a run is newer than the receipts.

        A question is stored after its receipt is durable. A stored question without a receipt shows
        that an older copy of the receipts was restored. Does nothing once receipts are recorded as
        lost.

        Args:
          questions: `stored_questions`, read before the receipts, since an agent may write both.
        """
        for run, question in questions.items():
            digest = hashlib.sha256(question).hexdigest()
            if not (self.receipts.lost or self.receipts.has_question(run, digest)):
                raise LedgerBroken(
                    f"{self.receipts.path} lacks a question of run {run} that was answered, so an "
                    f"older copy was restored; run privfed site recover {self.folder.path}"
                )

    def rejoined(self) -> dict[bytes, RunParty]:
        """Returns the parties in the `CONCURRENT_RUNS` runs declared last, by hash of the run.

        A run that the site now declines is omitted; the coordinator has to declare that run again.
        """
        folders = self.folder.state.glob("*/declaration")
        latest = sorted(folders, key=lambda path: path.stat().st_mtime)[-CONCURRENT_RUNS:]
        parties = {}
        for path in latest:
            try:
                declaration = Declaration.decode(regular.read_bytes(path))
                parties[declaration.run] = self._party(declaration, new=False)
            except (Declined, BadMessage) as error:
                _log.warning("%s: not resumed: %s", path.parent.name, public_text(error))
        return parties

    def accepted(
        self, text: str, form: ExampleForm, constants: Mapping[str, Tensor] | None
    ) -> tuple[SiteTable, Setup]:
        """Returns the content of the site's `data.toml`, and the setup of a run that it accepts.

        Both depend only on the run, the policy and `data.toml`, not on clients' data. Approval by
        hand is not checked.

        Args:
          text: the text of the run file.
          form: shapes and types of examples.
          constants: declared tensors of the model that are not trained; None builds them. Those of
            a release of statistics are always built, since the coordinator's could be others.

        Raises:
          Declined: if the run file is invalid, or the policy does not allow the run.
          Refused: if the policy or data.toml is invalid.
        """
        policy, table = LocalPolicy.read(self.folder.policy), SiteTable.read(self.folder.data)
        _refuse(outside_part(policy, text))
        config = built(text, table)
        _refuse(unlisted_architecture(policy, config))
        built_here = isinstance(config.source, StatesRelease)
        try:
            setup = bare_setup(config, form, None if built_here else constants)
        except Refused as error:
            raise _refused("the run", error) from error
        parameters = setup.network.shapes.length
        _refuse(refusal(policy, config, self.federation, parameters))
        return table, setup

    def approval(self, config: Config) -> Approval:
        """Returns the operator's decision about the run; `config` has this site's own keys."""
        local_keys = {"run": _MACHINE_KEYS, "data": SiteTable.read(self.folder.data).settled}
        model_file = model_file_digest(config.names["model"])
        federation = self.federation.digest()
        digest = approval_digest(federation, config.toml(), local_keys, model_file)
        return Approvals(self.folder.approvals).of(digest)

    def refuse_unapproved(self, config: Config, declared: bool = False) -> LocalPolicy:
        """Returns the current policy.

        Args:
          config: the run, as the site resolved it.
          declared: whether the coordinator has just declared the run: its run file is then stored
            for the person who decides, if the policy requires approval by hand.

        Raises:
          Declined: if the policy requires approval by hand, and the run is not approved.
        """
        policy = LocalPolicy.read(self.folder.policy)
        if policy.require.approve == "by_hand":
            approval = self.approval(config)
            if declared:
                Approvals(self.folder.approvals).record(approval.digest, config.toml())
            if approval.decision != "approved":
                raise Declined(Refusal(Code.APPROVAL, _unapproved(approval, self.folder.path)))
        return policy

    def rehearsed(self, table: SiteTable, setup: Setup) -> float:
        """Returns the seconds that the slowest sum takes here, for the largest cohort.

        Raises:
          Declined: if that is more than half of the time that the run gives this site, unless the
            policy allows simulations. A site of delay s has s deadlines, and one without delay one.
        """
        seconds, config = rehearsed_seconds(self.number, setup, table), setup.plan.config
        if not LocalPolicy.read(self.folder.policy).allow.simulation:
            delays = config.data.site_delays
            rounds = max(delays[self.number], 1) if delays else 1
            _refuse(too_slow(seconds, config.secure.deadline, rounds))
        return seconds

    def _party(self, declaration: Declaration, new: bool) -> RunParty:
        if declaration.terms.get("config") != declaration.file_digest:
            raise Declined(
                Refusal(
                    Code.RUN,
                    "the ledger's first line cites another run file, or none; the coordinator has "
                    "to declare the run with its own ledger",
                )
            )
        facts = declaration.text, declaration.examples, declaration.constants
        table, accepted = self.accepted(*facts)
        setup = accepted.at_site(self.number)
        config = setup.plan.config
        self.refuse_unapproved(config, declared=new)
        self.rehearsed(table, setup)
        state = self._state(declaration.run)
        ledger = state.ledger()
        ledger.extend(bytes(32), declaration.opening + b"\n")
        admission = Admission(
            setup,
            self.receipts,
            ledger,
            lambda: self.refuse_unapproved(config).budget,
            self.federation.digest(),
            declaration.run.hex(),
            declaration.digest,
            table.population,
        )
        if new:
            admission.refuse_spent()
        setup = self._with_population(setup, table, declaration.examples)
        work = SiteWork(self.number, setup, run=declaration.run, late=self.late)
        return RunParty(
            work,
            self._parties(work, declaration),
            admission,
            state.parties,
            FixedTime(setup.plan.config.secure.deadline),
            declaration.encode(),
        )

    def _parties(self, work: SiteWork, declaration: Declaration) -> MakesParties:
        """Returns the factory of parties: of masked sums for secure sums, of plain ones else."""
        if work.setup.plan.config.secured:
            region = self.federation.region_of(self.number)
            return MaskedParties(work, self.key.identity, self.federation.directory(region))
        return PlainParties(work, self.key, declaration.run, declaration.sealing)

    def _with_population(self, setup: Setup, table: SiteTable, form: ExampleForm) -> Setup:
        """Returns the run over the site's clients; over none if they cannot be read in time.

        A site without clients sends only its noise, because an error in its rows is private (rules
        of proof, section 9.1, S1). Whether the table exists, and its header has the declared
        columns, depends on no client, so the site declines if the table or a column is missing.
        The call takes `table.reading` seconds, whatever the table contains; if the policy allows
        simulations, it takes as long as reading does.
        """
        config = setup.plan.config
        empty = setup.over(synthetic_clients(config, form))

        def reading() -> Setup:
            source = config.parts["source"]
            if isinstance(source, ReadsTables):
                _refuse(_without_columns(header_lacks(source, Path(table.path))))
            try:
                read = readable_examples(config.parts["source"], table)
                population = site_population(read.examples, config, table, form, self.key.name)
            except Exception as error:  # any error in a file
                quoted = error.private if isinstance(error, Refused) else ""
                _log.error(
                    "NO CLIENT OF THIS SITE COUNTS: its table cannot be used: %s %s", error, quoted
                )
                return empty
            if read.left_out:
                _log.error("%s CLIENTS DO NOT COUNT:\n%s", about(read.left_out), read.reason)
            return setup.over(population)

        def late() -> Setup:
            _log.error(
                "NO CLIENT OF THIS SITE COUNTS: reading is %g s in data.toml, but the table takes "
                "longer; raise reading",
                table.reading,
            )
            return empty

        simulation = LocalPolicy.read(self.folder.policy).allow.simulation
        return FixedTime(0.0 if simulation else table.reading).cut_off(reading, late)

    def _state(self, run: bytes) -> RunState:
        return RunState(self.folder.state / run.hex())


def _without_columns(reason: str) -> Refusal | None:
    """Returns the refusal (`Code.TABLE`) for `reason`; None if `reason` is empty."""
    return Refusal(Code.TABLE, reason) if reason else None


def _unapproved(approval: Approval, folder: Path) -> str:
    """Returns the reason (for the site's log) for declining a run whose decision is `approval`."""
    return (
        f"the policy requires approval by hand, and the decision about this run is "
        f"{approval.decision}; read {approval.run_file}; to answer the run: privfed site approve "
        f"{folder} {approval.digest}"
    )


def built(text: str, table: SiteTable) -> Config:
    """Returns a site's configuration of the run file `text`. Raises `Declined` if it is invalid."""
    try:
        return site_config(text, table)
    except Declined:
        raise
    except Refused as error:
        raise _refused("the run file", error) from error


def _refused(what: str, error: Refused) -> Declined:
    return Declined(Refusal(Code.PROOF, f"{what} is refused: {public_text(error)}"))


def _refuse(reason: Refusal | None) -> None:
    if reason is not None:
        raise Declined(reason)
