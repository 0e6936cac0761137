"""A site's agent, which answers the coordinator by protocol messages or by fixed words."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from privfed.core.errors import Broken, Busy, Refused
from privfed.deploy.carriers.local_socket import LocalServer, refuse_socket_path
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import PublicKey, SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.run_state import stored_questions
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.files.witness import ReceiptsWitness
from privfed.deploy.messages.declaration import Declaration
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, answered, greeting
from privfed.deploy.messages.forwarded import forwarded_body
from privfed.deploy.messages.place import Place
from privfed.deploy.site.agent_log import event
from privfed.deploy.site.joining import CONCURRENT_RUNS, Membership
from privfed.deploy.site.late_rows import LateWork
from privfed.deploy.site.policy import Code, Declined, LocalPolicy
from privfed.deploy.site.run_party import RunParty
from privfed.deploy.site.status import DeclinedCounts
from privfed.secure.frames import BadMessage
from privfed.secure.summation import Aborted
from privfed.store.folders import held_alone

_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""


@dataclass
class Agent:
    """Checks each message of a site's coordinator, and answers it.

    The full reasons for refusals and failures are in the site's own log only.

    Attributes:
      key: the site's key.
      coordinator: the public key of the coordinator that asks this site.
      federation: hash of the federation file.
      join: returns the site's `RunParty` for a declaration; raises `Declined` if the site declines.
      refuse_rolled_back: raises `Declined` if the receipts lack the given exchange.
      parties: the `RunParty` of each declared run, by hash of the run.
      concurrent_runs: largest number of runs in `parties`; a further run replaces the oldest.
      declined: counts declined messages.
      server: the server's public key, if `coordinator` is the coordinator of a region, which
        forwards the server's messages; otherwise None.
      late: the late sums of the site.
    """

    key: SiteKey
    coordinator: PublicKey
    federation: bytes
    join: Callable[[Declaration], RunParty]
    refuse_rolled_back: Callable[[Place], None]
    parties: dict[bytes, RunParty]
    concurrent_runs: int
    declined: DeclinedCounts
    server: PublicKey | None = None
    late: LateWork = field(default_factory=LateWork)

    def answer(self, data: bytes) -> bytes:
        """Returns the answer to the message `data`; never raises an `Exception`."""
        return replied(lambda: self._answer(Envelope.decode(data), data), self.declined.add)

    def _answer(self, envelope: Envelope, data: bytes) -> bytes:
        signed = envelope.signed_by(self.coordinator.raw)
        if envelope.federation != self.federation or not signed:
            raise Unsigned
        if self.server is not None:
            envelope = replace(envelope, body=forwarded_body(envelope, self.server))
        match envelope.kind:
            case Kind.HELLO:
                return greeting(self.key, data)
            case Kind.ANSWERED:
                self.refuse_rolled_back(Place.decode(envelope.body))
                return b""
            case Kind.DECLARATION:
                return self._joined(envelope).head
            case Kind.QUESTION:
                return self._question(envelope)
            case Kind.STEP:
                return self._party(envelope.run).step(envelope.body)

    def _question(self, envelope: Envelope) -> bytes:
        """Returns the answer to a question, and logs the event "answered"."""
        self.late.refuse_beside(envelope.run)
        party, run = self._party(envelope.run), envelope.run.hex()
        answer = party.question(envelope.body)
        last = party.admission.last
        place = {"round": last[0], "exchange": last[1]} if last else {}
        _log.info("answered a question of %s", run, extra=event("answered", run=run, **place))
        return answer

    def _joined(self, envelope: Envelope) -> RunParty:
        """Returns the party of the declared run; the earlier one if the same bytes were declared.

        Raises:
          Declined: if the site does not join the run, or would decline its next round.
          BadMessage: if the declaration is malformed, or of another run than the envelope.
        """
        declaration = Declaration.decode(envelope.body)
        if declaration.run != envelope.run:
            raise BadMessage("wrong run", "the declaration and its envelope name different runs")
        last = self.parties.get(envelope.run)
        if last is not None and last.declaration == declaration.encode():
            last.admission.refuse_spent()
            return last
        self.late.refuse_beside(None)
        party = self.join(declaration)
        self.parties.pop(envelope.run, None)
        while len(self.parties) >= self.concurrent_runs:
            del self.parties[next(iter(self.parties))]
        self.parties[envelope.run] = party
        run = envelope.run.hex()
        _log.info("joined the run %s", run, extra=event("joined", run=run))
        return party

    def _party(self, run: bytes) -> RunParty:
        """Returns the party of `run`. Raises `BadMessage` if the run was not declared."""
        if run not in self.parties:
            raise BadMessage("wrong run", "the run was not declared")
        return self.parties[run]


class Unsigned(Exception):
    """Raised for a message of another federation, or one that the coordinator did not sign."""


def replied(answer: Callable[[], bytes], count: Callable[[Code], None]) -> bytes:
    """Returns the reply with the body that `answer` returns, or without one if `answer` raises.

    Args:
      answer: returns the body of the reply.
      count: called with the code if `answer` raises `Declined`.
    """
    try:
        return answered(Reply.ANSWERED, answer())
    except Unsigned:
        return answered(Reply.UNSIGNED)
    except Declined as declined:
        code, reason = declined.code, declined.refusal.reason
        _log.warning("declined: %s: %s", code, reason, extra=event("declined", code=code.value))
        count(code)
        return answered(Reply.DECLINED, code.encode())
    except Aborted as malformed:
        _log.warning("not answered: %s", malformed, extra=event("malformed"))
        return answered(Reply.MALFORMED)
    except Exception:  # its text may quote data, and stays in the site's log
        _log.exception("failed", extra=event("failed"))
        return answered(Reply.FAILED)


LARGEST = 1 << 30
"""Bytes of the largest message that a site accepts."""


def open_member(folder: SiteFolder, alone: bool = True) -> Membership:
    """Checks key, federation file, policy, data.toml and receipts; returns the site's membership.

    Args:
      folder: the site's folder.
      alone: whether only this process uses the folder; if so, an incomplete last line of the
        receipts is removed.

    Raises:
      Refused: if a file is invalid, the receipts charge another population, or the federation does
        not name the site's key.
      Broken: if the key cannot be used, or other users have access to the folder.
      LedgerBroken: if the receipts cannot be read, their hash chain is broken, or they lack lines
        of their witness or the question of a run's current sum.
    """
    _refuse_open_folder(folder.path)
    key, federation = SiteKey.read(folder.key), FederationFile.read(folder.federation)
    LocalPolicy.read(folder.policy)
    table = SiteTable.read(folder.data)
    population, witness = table.population, table.witness_path
    questions = stored_questions(folder.state)
    if alone:
        receipts = Receipts.recover(folder.receipts, witness)
    else:
        receipts = Receipts.load(folder.receipts)
        if witness is not None:
            ReceiptsWitness(witness, folder.receipts).refuse_missing()
    if others := receipts.populations - {population}:
        raise Refused(
            f"{folder.data}: population is {population!r}, but {folder.receipts} charges another "
            f"population ({', '.join(sorted(others))}); use a separate site folder for each table"
        )
    member = Membership(folder, key, federation, receipts)
    _ = member.number
    member.refuse_older_receipts(questions)
    return member


def _refuse_open_folder(path: Path) -> None:
    """Raises `Broken` if other users may access the folder at `path`."""
    if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise Broken(
            f"{path} has mode {mode:o}, which gives other users access; set it to 700 (chmod 700)"
        )


def agent_of(member: Membership) -> Agent:
    """Returns the agent of a site, which resumes the `CONCURRENT_RUNS` runs declared last."""
    federation = member.federation
    region = federation.region_of(member.number)
    return Agent(
        member.key,
        federation.key_asking(region),
        bytes.fromhex(federation.digest()),
        member.join,
        member.refuse_rolled_back,
        member.rejoined(),
        CONCURRENT_RUNS,
        DeclinedCounts(member.folder.declined),
        federation.coordinator_key if region else None,
        member.late,
    )


@contextlib.contextmanager
def serving(folder: SiteFolder, path: Path | None = None) -> Iterator[Membership]:
    """Serves the site in `folder` at its socket until the block ends; yields its membership.

    Args:
      folder: the site's folder.
      path: where the socket is created, if not in `folder`, which then has a link to it.

    Raises:
      Busy: if another process serves the folder.
      Refused, Broken, LedgerBroken: as `open_member` does; `Refused` also if the socket's path is
        too long.
    """
    with held_alone(folder.path, Busy(f"another agent serves {folder.path}; stop it first")):
        answers_at = path or folder.socket
        refuse_socket_path(answers_at)  # before runs are resumed, which takes longer
        member = open_member(folder)
        with (
            _linked(folder.socket, answers_at),
            LocalServer(answers_at, agent_of(member).answer, LARGEST).serving(),
        ):
            yield member


@contextlib.contextmanager
def _linked(link: Path, path: Path) -> Iterator[None]:
    """Returns a context in which `link` leads to `path`, where the socket is created later.

    A link or socket that a killed agent left at `link` is replaced.
    """
    if link.is_symlink():
        link.unlink()
    if link.absolute() == path.absolute():
        yield
        return
    if link.is_socket():
        link.unlink()
    link.symlink_to(path.absolute())
    try:
        yield
    finally:
        link.unlink(missing_ok=True)
