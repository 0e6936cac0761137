"""The server's side of sums over remote sites: declares the run and asks for sums."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accounting import regular
from accounting.ledger import Ledger
from privfed.client.exchange import Exchange
from privfed.core.errors import Broken, Busy
from privfed.deploy.carriers.carrier import UNREACHABLE, Carrier
from privfed.deploy.coordinator.answered import AnsweredRecord
from privfed.deploy.coordinator.sum_session import SumSession
from privfed.deploy.messages.declaration import Declaration
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.messages.forwarded import ForwardedDeclaration
from privfed.deploy.messages.place import Place
from privfed.deploy.messages.questions import Question
from privfed.privacy.mechanism import BoundedSum, PublicState
from privfed.round.world import Exclusions, NoExclusions
from privfed.secure.frames import BadMessage, sized
from privfed.secure.identities import Directory
from privfed.secure.summation import Aborted

_log = logging.getLogger(__name__)
_HINTS = {Reply.UNSIGNED: "(it has agreed on another federation file)"}
"""Explanations of replies that carry no reason."""
_AGAIN = 1.0
"""Seconds until an unavailable site is asked again."""


@dataclass
class Coordinator:
    """Sums over remote sites: declares the run, asks for sums and opens them.

    Every message is signed, and bound to the federation and the run. Sites receive the lines of the
    ledger as it grows; a site that was unavailable receives the declaration again. A site whose
    answer is late or invalid counts as a dropout of that sum.

    Attributes:
      session_of: returns the session of the sum for a question.
      directory: public key of each site, or of each region's coordinator, which count as sites.
      carrier: transport to the sites.
      key: the coordinator's signing key.
      federation: hash of the federation file.
      declaration: declaration of the run.
      ledger: ledger of the run.
      least: smallest number of available sites with which a round begins.
      deadline: seconds, in addition to `seconds`, for answers to declarations and for sums.
      seconds: seconds that sites have for each answer.
      patience: seconds that a round waits for `least` sites.
      names: names of the sites; empty to use their numbers.
      exclusions: record of sites identified as Byzantine; they are asked in no later round.
      answered: record of the last exchange that each site answered.
      sleep: waits for a number of seconds.
    """

    session_of: Callable[[Question], SumSession]
    directory: Directory
    carrier: Carrier
    key: Ed25519PrivateKey
    federation: bytes
    declaration: Declaration | ForwardedDeclaration
    ledger: Ledger
    least: int
    deadline: float = 0.0
    seconds: float = 60.0
    patience: float = 0.0
    names: tuple[str, ...] = ()
    exclusions: Exclusions = field(default_factory=NoExclusions)
    answered: AnsweredRecord = field(default_factory=AnsweredRecord)
    sleep: Callable[[float], None] = time.sleep
    _heads: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)
    """Hash of the last ledger line that each available site has seen."""
    _away: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    """The reason why each other site is unavailable."""

    def gather(self) -> None:
        """Declares the run to unavailable sites, repeatedly, until `least` sites are available.

        A site is available from its answer to the declaration until one of its answers is invalid,
        a refusal, or late. Excluded sites do not count. Raises `Busy` if fewer than `least` sites
        are available after `patience` seconds.
        """
        until = time.monotonic() + self.patience
        while True:
            self._declare()
            if len(self._heads.keys() - self._left_out()) >= self.least:
                return
            if time.monotonic() >= until:
                raise Busy(
                    f"{len(self._heads)} of {len(self.directory)} sites are available, but a "
                    f"round needs {self.least} ({self._reasons()}); nothing was charged; start "
                    "the run again when enough sites are available"
                )
            self.sleep(_AGAIN)

    def sum(self, round: int, number: int, exchange: Exchange, state: PublicState) -> BoundedSum:
        """Returns the sum over the surviving sites for one exchange, with the sites' noise.

        Args:
          round: round number.
          number: number of the exchange in the round.
          exchange: the clients' task and the broadcast model.
          state: the mechanism's public state.

        Raises:
          Aborted: if the sum cannot be completed, for example with too few surviving sites.
        """
        question = Question(round, number, exchange, state)
        with self.opened(question, question.encode()) as session:
            return session.total()

    @contextlib.contextmanager
    def opened(self, question: Question, stated: bytes) -> Iterator[SumSession]:
        """Runs the session of the sum for `question`, whose total can be opened in the context.

        Then records the sites identified as Byzantine.

        Args:
          question: the question.
          stated: bytes from which sites read the question.

        Raises:
          Aborted: if the sum cannot be completed.
        """
        session = self.session_of(question)
        excluded = self.exclusions.before(question.round)
        head, start = self.ledger.head(), sized(stated)
        bodies: Mapping[int, bytes] = {
            site: start + since + sized(self._lines(since)) + session.invitation
            for site, since in self._heads.items()
            if site not in excluded
        }
        answers = self._stepped(session, Kind.QUESTION, bodies)
        self._heads = dict.fromkeys(answers, head)
        place = Place(self.declaration.run.hex(), question.round, question.number)
        self._note(answers, place)
        try:
            while bodies := session.proceed():
                self._stepped(session, Kind.STEP, bodies)
            yield session
        finally:
            for culprit in session.culprits:
                self.exclusions.note(culprit)

    def _stepped(
        self, session: SumSession, kind: Kind, bodies: Mapping[int, bytes]
    ) -> Collection[int]:
        """Sends each site its message in `bodies`; returns the sites that answered validly."""
        seconds = self.seconds + (self.deadline if session.awaits_rows else 0.0)
        useful = []
        for site, answer in self._answers(kind, bodies, seconds).items():
            try:
                session.handle(site, answer)
            except Aborted as refused:  # counts as dropped out
                self._lost(site, str(refused))
            else:
                useful.append(site)
        return useful

    def _declare(self) -> None:
        """Declares the run to unavailable sites, except excluded ones.

        Each answers with the hash of the last ledger line that it has seen. It becomes available
        only if the coordinator's ledger contains that line.
        """
        self._away |= dict.fromkeys(self._left_out(), "it was proved Byzantine in a secure sum")
        informed = self._heads.keys() | self._left_out()
        absent = self._with_receipts(site for site in self.directory if site not in informed)
        if not absent:
            return
        body = self.declaration.encode()
        for site, head in self._answers(
            Kind.DECLARATION, dict.fromkeys(absent, body), self.seconds + self.deadline
        ).items():
            if self.ledger.holds(head):
                self._heads[site] = head
                self._away.pop(site, None)
            else:
                self._away[site] = "it saw ledger lines that this ledger lacks"
                _log.warning("%s: %s", self._name(site), self._away[site])

    def _note(self, sites: Iterable[int], place: Place) -> None:
        """Records that `sites` answered the exchange `place`; only logs a failure to record it."""
        try:
            self.answered.note((self.directory[site] for site in sites), place)
        except Broken as error:
            _log.error("%s", error)

    def _with_receipts(self, sites: Iterable[int]) -> list[int]:
        """Returns the `sites` that confirm a receipt for the last exchange that they answered.

        Also returns sites for which no such exchange is recorded. The others become unavailable.
        """
        places = {site: self.answered.of(self.directory[site]) for site in sites}
        known = {site: place.encode() for site, place in places.items() if place is not None}
        agreed = self._answers(Kind.ANSWERED, known, self.seconds) if known else {}
        return [site for site, place in places.items() if place is None or site in agreed]

    def _left_out(self) -> frozenset[int]:
        return self.exclusions.before(sys.maxsize)

    def _lines(self, since: bytes) -> bytes:
        """Returns the ledger's lines after the line whose hash is `since`."""
        trail = [head.hash for head in self.ledger.trail()]
        lines = regular.read_bytes(self.ledger.path).split(b"\n")[:-1]
        return b"".join(line + b"\n" for line in lines[trail.index(since.hex()) + 1 :])

    def _answers(self, kind: Kind, bodies: Mapping[int, bytes], seconds: float) -> dict[int, bytes]:
        """Sends each site its body, and returns the bodies of answers within `seconds`, by site.

        The other sites in `bodies` become unavailable.
        """
        deadline = time.monotonic() + seconds
        run = self.declaration.run
        for site, body in bodies.items():
            envelope = Envelope(self.federation, run, kind, body).signed(self.key)
            self.carrier.send(site, envelope.encode(), deadline)
        answers: dict[int, bytes] = {}
        awaited = set(bodies)
        while awaited and (arrived := self.carrier.receive(deadline)):
            for site, data in arrived:
                if site in awaited and (answer := self._read(site, data)) is not None:
                    answers[site] = answer
                awaited.discard(site)
        for site in awaited:
            self._lost(site, "no answer")
        return answers

    def _read(self, site: int, data: bytes) -> bytes | None:
        """Returns the body of a site's answer, the bytes `data`.

        Returns None, and marks the site as unavailable, for `UNREACHABLE`, for an invalid answer,
        and for any reply other than `ANSWERED`.
        """
        if data == UNREACHABLE:
            self._lost(site, "no agent answers there")
            return None
        try:
            reply, body = read_answer(data)
        except BadMessage:
            self._lost(site, "it sent an invalid answer")
            return None
        if reply == Reply.ANSWERED:
            return body
        word = body[:32].decode("ascii", "replace")
        shown = word if reply == Reply.DECLINED and word.isidentifier() else ""
        hint = _HINTS.get(reply, shown)
        self._lost(site, f"{reply.name.lower()} {hint}".strip())
        return None

    def _lost(self, site: int, why: str) -> None:
        """Marks `site` as unavailable, until the run is declared to it again."""
        self._heads.pop(site, None)
        if self._away.get(site) != why:
            _log.warning("%s: %s", self._name(site), why)
        self._away[site] = why

    def _name(self, site: int) -> str:
        return self.names[site] if self.names else f"site {site}"

    def _reasons(self) -> str:
        """Returns a text that lists the unavailable sites, each with the reason."""
        return "; ".join(f"{self._name(site)}: {why}" for site, why in sorted(self._away.items()))
