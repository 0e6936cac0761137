"""A region's coordinator: a party of the server's sums, whose row is the sum of its region.

Towards the server it answers like a site, with the states and the fixed words of
`privfed.deploy.site`. It has no clients, adds no noise and charges nothing. Towards its sites it is
a coordinator (`privfed.deploy.coordinator`), which forwards the server's signed messages.

*What it learns*: the sum of its region, with the noise of the region's sites, and which of these
survive; no site's sum. *What the server learns*: the total over the included regions, and which
regions these are (`privfed.secure.regional`).

The region's session runs once for each question, when the row is due: the party commits before that
(`privfed.secure.masked.committed_party`), so that a coordinator that is interrupted opens no second
session, and sites would answer none. It then counts as a dropout; later it repeats its answers byte
for byte. Do not restore its folder from a backup: a coordinator in an older state counts as
colluding with the server.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from accounting import regular
from accounting.durable import make_folder, write_atomically
from privfed.config.reading import read_resolved
from privfed.core.errors import Busy, Refused, public_text
from privfed.deploy.carriers.carrier import Carrier
from privfed.deploy.coordinator.answered import ANSWERED, AnsweredRecord
from privfed.deploy.coordinator.coordinator import Coordinator
from privfed.deploy.coordinator.sum_session import MaskedSession, SumSession
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.run_state import LedgerCopy, RunState
from privfed.deploy.messages.declaration import Declaration
from privfed.deploy.messages.envelope import Envelope, Kind
from privfed.deploy.messages.forwarded import ForwardedDeclaration
from privfed.deploy.messages.questions import Question
from privfed.deploy.messages.reported import reported
from privfed.deploy.region.region_work import RegionAdmission, RegionWork
from privfed.deploy.site.agent import Unsigned, replied
from privfed.deploy.site.joining import CONCURRENT_RUNS
from privfed.deploy.site.party import MaskedParties
from privfed.deploy.site.policy import Code, Declined, LocalPolicy, Refusal
from privfed.deploy.site.run_party import FixedTime, RunParty
from privfed.deploy.site.site_setup import away_from_server, bare_setup
from privfed.deploy.site.user_modules import outside_part
from privfed.privacy.integers import Integers
from privfed.run.setup import Setup
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.frames import BadMessage
from privfed.secure.primitives import KEY
from privfed.store.round_logs import ExclusionLog


@dataclass
class RegionCoordinator:
    """Answers the server's messages for a region of the `federation`.

    Attributes:
      key: the key of the region's coordinator.
      federation: the federation, which names the key.
      folder: the coordinator's folder, which only its owner may read.
      carrier: transport to the region's sites, by their numbers in the federation.
      seconds: seconds that sites have for each answer; at most those that the server waits.

    Raises:
      Refused: if the federation has no region with this key.
    """

    key: SiteKey
    federation: FederationFile
    folder: Path
    carrier: Carrier
    seconds: float = 60.0
    _runs: dict[bytes, RunParty] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        named = {region.coordinator: name for name, region in self.federation.regions.items()}
        name = named.get(str(self.key.public))
        if name is None:
            raise Refused(
                f"the key of {self.key.name} is {self.key.public}, but the federation "
                f"{self.federation.name} has no region with this coordinator; add the key to its "
                "regions"
            )
        self.name, self.number = name, sorted(self.federation.regions).index(name)
        make_folder(self.folder, 0o700)

    def answer(self, data: bytes) -> bytes:
        """Returns the answer to the message `data` of the server; never raises an `Exception`."""
        return replied(lambda: self._answer(Envelope.decode(data), data), lambda _: None)

    def _answer(self, envelope: Envelope, data: bytes) -> bytes:
        signed = envelope.signed_by(self.federation.coordinator_key.raw)
        if envelope.federation != bytes.fromhex(self.federation.digest()) or not signed:
            raise Unsigned
        match envelope.kind:
            case Kind.ANSWERED:
                return b""  # it has no receipts that a backup could lack
            case Kind.DECLARATION:
                return self._declared(envelope, data).head
            case Kind.QUESTION:
                answer = self._run(envelope.run).question(envelope.body)
                write_atomically(self._forwarded(envelope.run), data)  # the question was admitted
                return self._reported(envelope.run, answer)
            case Kind.STEP:
                return self._reported(envelope.run, self._run(envelope.run).step(envelope.body))
        raise BadMessage("wrong type", "a region's coordinator answers no such message")

    def _declared(self, envelope: Envelope, data: bytes) -> RunParty:
        """Returns the party of a declared run, after its sites were asked to join it.

        Raises `Declined` if the run is refused here, or too few sites of the region join it.
        """
        party = self._runs.get(envelope.run)
        if party is None or party.declaration != data:
            party = self._party(envelope, data)
        party.admission.refuse_spent()
        self._state(envelope.run).declare(data)
        self._runs.pop(envelope.run, None)
        while len(self._runs) >= CONCURRENT_RUNS:
            del self._runs[next(iter(self._runs))]
        self._runs[envelope.run] = party
        return party

    def _run(self, run: bytes) -> RunParty:
        """Returns the party of `run`, also after a restart. Raises `BadMessage` if undeclared."""
        path = self._state(run).folder / "declaration"
        if run not in self._runs:
            if not path.exists():
                raise BadMessage("wrong run", "the run was not declared")
            data = regular.read_bytes(path)
            self._runs[run] = self._party(Envelope.decode(data), data)
        return self._runs[run]

    def _party(self, envelope: Envelope, data: bytes) -> RunParty:
        declaration, state = Declaration.decode(envelope.body), self._state(envelope.run)
        if declaration.run != envelope.run:
            raise BadMessage("wrong run", "the declaration and its envelope name different runs")
        setup = self._setup(declaration)
        ledger = state.ledger()
        ledger.extend(bytes(KEY), declaration.opening + b"\n")
        region = self._coordinator(setup, ledger, ForwardedDeclaration(envelope.run, data))

        def gather() -> None:
            region.ledger = ledger.ledger
            _gather(region, setup)

        def region_sum(question: Question) -> Integers:
            asked = regular.read_bytes(self._forwarded(envelope.run))
            if Envelope.decode(asked).body != state.parties.question:
                raise BadMessage("lost state", "the server's message was replaced")
            gather()
            with region.opened(question, asked) as session:
                assert isinstance(session, MaskedSession)
                return session.integers()[0]

        work = RegionWork(self.number, setup, region_sum)
        keys = enumerate(self.federation.parties.values())
        parties = MaskedParties(work, self.key.identity, {number: key.raw for number, key in keys})
        admission = RegionAdmission(setup, ledger, state.parties, gather)
        return RunParty(work, parties, admission, state.parties, FixedTime(0.0), data)

    def _setup(self, declaration: Declaration) -> Setup:
        """Returns the declared run without clients. Raises `Declined` if it is refused here."""
        if (outside := outside_part(LocalPolicy(), declaration.text)) is not None:
            raise Declined(outside)
        if declaration.terms.get("config") != declaration.file_digest:
            raise Declined(Refusal(Code.RUN, "the ledger's first line cites another run file"))
        try:
            config = away_from_server(read_resolved(declaration.text, "the run"))
            if reason := self.federation.other_parties(config):
                raise Declined(Refusal(Code.SITES, reason))
            return bare_setup(config, declaration.examples, declaration.constants)
        except Declined:
            raise
        except Refused as error:
            raise Declined(Refusal(Code.PROOF, public_text(error))) from error

    def _coordinator(
        self, setup: Setup, ledger: LedgerCopy, declaration: ForwardedDeclaration
    ) -> Coordinator:
        """Returns the coordinator of the region's sums in one run."""
        directory = self.federation.directory(self.name)

        def session_of(question: Question) -> SumSession:
            algorithm = setup.algorithm_in(question.round)
            summation = _encoded(algorithm.summation).of_sites
            return MaskedSession.start_session(algorithm, summation, directory, question)

        return Coordinator(
            session_of,
            directory,
            self.carrier,
            self.key.identity,
            bytes.fromhex(self.federation.digest()),
            declaration,
            ledger.ledger,
            least=_encoded(setup.algorithm.summation).of_sites.limits.minimum,
            deadline=setup.plan.config.secure.deadline,
            seconds=self.seconds,
            names=self.federation.order,
            exclusions=self._exclusions(declaration.run),
            answered=AnsweredRecord(self.folder / ANSWERED),
        )

    def _reported(self, run: bytes, answer: bytes) -> bytes:
        """Returns the party's answer with the proofs against sites that deviated in this sum."""
        place = self._runs[run].admission.last
        return reported(answer, self._exclusions(run).proved(*place) if place else ())

    def _exclusions(self, run: bytes) -> ExclusionLog:
        folder = self._state(run).folder
        return ExclusionLog(folder / "excluded.jsonl", folder / "proofs")

    def _forwarded(self, run: bytes) -> Path:
        """Returns the path of the server's last question, as it was signed."""
        return self._state(run).folder / "envelope"

    def _state(self, run: bytes) -> RunState:
        return RunState(self.folder / run.hex())


def _encoded(summation: object) -> EncodedSummation:
    assert isinstance(summation, EncodedSummation)  # `other_parties` refuses other runs
    return summation


def _gather(region: Coordinator, setup: Setup) -> None:
    """Makes the region's sites join the run.

    Raises `Declined` if too few are available, or more were proved Byzantine than the noise that
    counts allows for.
    """
    most = _encoded(setup.algorithm.summation).of_sites.limits.colluders
    culprits = len(region.exclusions.before(sys.maxsize))
    if culprits > most:
        reason = (
            f"{culprits} sites of the region were proved Byzantine in secure sums, but epsilon "
            f"holds only if at most {most} is; begin a new run without them"
        )
        raise Declined(Refusal(Code.SITES, reason))
    try:
        region.gather()
    except Busy as few:
        raise Declined(Refusal(Code.SITES, str(few))) from few
