"""A site's participation in the sums of one run: it checks, charges and answers each question.

Answers are sent at a fixed time. Training takes longer with more sampled clients and more rows, so
the time of a sum would reveal both (rules of proof, section 9.1, S1). A sum is therefore sent a
constant number of seconds after its question. If the work takes longer, the site counts as a
dropout. A rehearsal of the largest cohort (`privfed.deploy.site.site_setup`) ensures that such
dropouts are rare. Reading a table also takes a fixed time; a table that takes longer is ignored.

A machine that has just worked wakes up some microseconds sooner or later than one that has slept.
Each answer is therefore delayed further by a random fraction of the constant time.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from privfed.deploy.files.run_state import LedgerCopy, PartyStore
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.party import MakesParties, Party
from privfed.deploy.site.site_work import SiteWork
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.masked.client_state import BadState
from privfed.secure.summation import Aborted

_random = random.SystemRandom()
Work = TypeVar("Work")


class Late(Aborted):
    """Raised if a sum was not ready in time; the sum is not sent."""


@dataclass(frozen=True)
class FixedTime:
    """Returns the result of data-dependent work `seconds` after the work began.

    A random delay is added (`blur`). If `seconds` is 0, the result is returned when it is ready.
    """

    seconds: float
    blur: float = 0.02
    """Upper bound on a uniform random delay of an answer, as a fraction of `seconds`."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """Returns the result of `work`, or raises its error, at the fixed time.

        Raises:
          Late: at the next multiple of `seconds`, if the work took longer than `seconds`.
        """
        if not self.seconds:
            return work()
        began = self.clock()
        try:
            return work()
        finally:
            passed = self.clock() - began
            times = max(1, math.ceil(passed / self.seconds))
            self._wait(times * self.seconds - passed)
            if times > 1:
                raise Late("the sum was not ready in time, and is not sent")

    def cut_off(self, work: Callable[[], Work], late: Callable[[], Work]) -> Work:
        """Returns the result of `work`, or raises its error, at the fixed time.

        If `work` takes longer, it continues in its own thread, and the result of `late` is returned
        instead.
        """
        if not self.seconds:
            return work()
        began, pool = self.clock(), ThreadPoolExecutor(1)
        try:
            return pool.submit(work).result(self.seconds)
        except FutureTimeout:
            return late()
        finally:
            pool.shutdown(wait=False)
            self._wait(self.seconds - (self.clock() - began))

    def _wait(self, seconds: float) -> None:
        """Sleeps for `seconds` and a random delay."""
        blur = self.blur * self.seconds * _random.random()
        self.sleep(max(0.0, seconds + blur))


class Admits(Protocol):
    """Interface of the admission of a run's questions; `Admission` charges them to receipts."""

    @property
    def ledger(self) -> LedgerCopy:
        """The verified copy of the server's ledger."""

    @property
    def commits(self) -> int:
        """The number of states of the last sum's party that are recorded; 0 without any."""

    @property
    def last(self) -> tuple[int, int] | None:
        """Round and number of the last admitted exchange; None before the first."""

    def charge(self, question: Question, digest: str) -> None:
        """Admits a question, or raises `Declined`."""

    def committed(self, count: int) -> None:
        """Records that the party of the last admitted question stored `count` states."""

    def is_last(self, digest: str) -> bool:
        """Whether the last admitted question has this `digest`."""

    def refuse_spent(self) -> None:
        """Raises `Declined` if the run's next round would be declined."""


@dataclass
class RunParty:
    """Answers a site's messages in one run; the caller has verified the coordinator's signatures.

    A question is a coordinator's request for one sum; steps are the further messages of that sum.

    A question whose form differs from the run's is refused first: otherwise, whether it fails could
    depend on whether clients were sampled. Then `admission` declines the question, or charges it to
    the site's receipts durably, before clients are sampled.

    Before each answer, the state of a sum's party is stored durably in `store`, and the number of
    states so far in the receipts. After a restart the party resumes from `store`: the same bytes
    get the same answer, a row that was not sent is lost, and a state older than the receipts is
    refused. A row is sent `leaving.seconds` after its computation began, whatever the cohort.
    """

    work: SiteWork
    parties: MakesParties
    admission: Admits
    store: PartyStore
    leaving: FixedTime
    declaration: bytes
    """The bytes of the run's declaration."""
    _party: Party | None = field(default=None, init=False, repr=False)

    @property
    def head(self) -> bytes:
        """The hash of the last line in the copy of the coordinator's ledger, 32 bytes."""
        return self.admission.ledger.head

    def question(self, body: bytes) -> bytes:
        """Returns the answer to a question: starts its sum, or repeats the current sum's answer.

        Raises:
          Declined: if `admission` declines the question, or its ledger lines do not continue the
            site's copy.
          Aborted: if the question is malformed or of another form than the run's, the state of its
            party was lost, or the site's row was not ready in time (`Late`).
        """
        requested = _Request.decode(body)
        if (party := self._restored(body)) is None:
            self.work.refuse_other_form(requested.question)
            digest = hashlib.sha256(body).hexdigest()
            if self.admission.is_last(digest) and self.admission.commits:
                raise BadMessage(
                    "lost state", "the sum's party answered earlier, but its state was deleted"
                )
            self.admission.ledger.extend(requested.since, requested.lines)
            self.admission.charge(requested.question, digest)
            self.store.begin(body)
            self._party = party = self._party_of(requested.question)
        return self._handled(party, requested.invitation)

    def step(self, body: bytes) -> bytes:
        """Returns the answer to the next message of the current sum.

        Raises:
          Aborted: if no sum was started, the message is rejected, or the row is not ready in time
            (`Late`).
        """
        party = self._party or self._restored(None)
        if party is None:
            raise BadMessage("wrong type", "a message of a sum arrived, but no sum was started")
        return self._handled(party, body)

    def _restored(self, body: bytes | None) -> Party | None:
        """Returns the party of the current sum in its last committed state.

        Returns None if no question and state are stored, if `body` is not None and not the stored
        question, or if another question was charged last.
        Raises `BadMessage` if the state is damaged or too old: earlier answers are then unknown.
        """
        if (last := self.store.read()) is None or body not in (None, last[0]):
            return None
        if not self.admission.is_last(hashlib.sha256(last[0]).hexdigest()):
            return None
        try:
            self._party = self._party_of(_Request.decode(last[0]).question, last[1])
        except BadState as damaged:
            raise BadMessage("lost state", str(damaged)) from damaged
        return self._party

    def _party_of(self, question: Question, state: bytes | None = None) -> Party:
        """Returns the party of `question`, new or restored from a `state`.

        Whenever the party stores a state, the receipts record the number of states stored so far.
        """

        def commit(state: bytes, count: int) -> None:
            self.store.commit(state)
            self.admission.committed(count)

        return self.parties(question, state, commit, self.admission.commits)

    def _handled(self, party: Party, message: bytes) -> bytes:
        """Returns the party's answer; if it is a row, at the time that `leaving` fixes.

        If the row is late, ends the party and raises `Late`.
        """
        if not party.sends_row(message):
            return party.handle(message)
        try:
            return self.leaving.answer(functools.partial(party.handle, message))
        except Late:
            party.end()
            raise


def admitted_question(body: bytes) -> Question:
    """Returns the question in the stored `body` of an admitted one."""
    return _Request.decode(body).question


class _Request(NamedTuple):
    """A question, new lines of the coordinator's ledger, and the invitation to the sum.

    The `lines` follow the ledger line with the hash `since`. For plain sums, `invitation` is empty.
    """

    question: Question
    since: bytes
    lines: bytes
    invitation: bytes

    @classmethod
    def decode(cls, body: bytes) -> _Request:
        """Parses a question's body. Raises `BadMessage` if it is malformed."""
        reader = Reader(body)
        question = Question.decode(reader.sized())
        return cls(question, reader.take(32), reader.sized(), reader.rest())
