"""A site's part in the sums of one run: each question is checked first, and charged.

Also the time at which an answer leaves: fixed, independent of the data.

Training takes longer the more clients were sampled, and the more rows they have, so the time of a
sum would reveal both (rules of proof, section 9.1, S1). The sum therefore waits until `seconds`
have passed, a constant of the run that is large enough for the largest cohort. If work takes
longer, the site has dropped out; this must be rare enough to be charged, or never happen: rehearse
it (`privfed.deploy.site.site_setup`). Reading a site's table also takes longer the larger it is. It
is cut off at a fixed time, since clients that are not read by then do not count.

A machine that has just worked wakes up some microseconds sooner or later than one that has slept.
So an answer leaves later by a fraction of `seconds` that is drawn afresh.
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
from typing import NamedTuple, TypeVar

from privfed.deploy.files.run_state import PartyStore
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.admission import Admission
from privfed.deploy.site.party import MakesParties, Party
from privfed.deploy.site.site_work import SiteWork
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.masked.client_state import BadState
from privfed.secure.summation import Aborted

_random = random.SystemRandom()
Work = TypeVar("Work")


class Late(Aborted):
    """A sum that was not ready in time; it never leaves."""


@dataclass(frozen=True)
class FixedTime:
    """Releases data-dependent results `seconds` after the request; 0 means at once.

    An answer that took longer is never sent, and a table that took longer is ignored.
    """

    seconds: float
    blur: float = 0.02
    """Upper bound on a uniform random delay of an answer, as a fraction of `seconds`."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """Returns or raises the result of `work` at the fixed time.

        Raises:
          Late: at the next multiple of the fixed time, if the work took longer.
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
        """Returns or raises the result of `work` at the fixed time, or that of `late` if it took
        longer.

        Work that is cut off is not interrupted; its result is ignored.
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
        """Sleeps for `seconds` plus a random delay."""
        blur = self.blur * self.seconds * _random.random()
        self.sleep(max(0.0, seconds + blur))


@dataclass
class RunParty:
    """A site's answers in one run; the caller has verified the coordinator's signatures.

    A question of another form than the run's is refused first: some would make work fail only if
    clients were sampled. `admission` declines questions that the site's policy does not allow, and
    charges the site's receipts, durably, before clients are sampled.

    The actions of a sum's party are committed to `store`, and then to the receipts, before each
    answer. A killed party resumes from there: the same bytes get the same answer, a row that was
    requested and did not leave is lost, and an older state is refused. A row leaves at the time set
    by `leaving`, whatever the cohort.
    """

    work: SiteWork
    parties: MakesParties
    admission: Admission
    store: PartyStore
    leaving: FixedTime
    declaration: bytes
    """The byte form of its declaration; equal bytes are the same run."""
    _party: Party | None = field(default=None, init=False, repr=False)

    @property
    def head(self) -> bytes:
        """The last line `[32]` that was seen of the coordinator's ledger."""
        return self.admission.ledger.head

    def question(self, body: bytes) -> bytes:
        """Answers a question, which starts a sum or repeats the current sum's answer."""
        requested = _Request.decode(body)
        if (party := self._restored(body)) is None:
            self.work.refuse_other_form(requested.question)
            digest = hashlib.sha256(body).hexdigest()
            if self.admission.is_last(digest) and self.admission.commits:
                raise BadMessage(
                    "lost state", "its party answered before, and its state was deleted"
                )
            self.admission.ledger.extend(requested.since, requested.lines)
            self.admission.charge(requested.question, digest)
            self.store.begin(body)
            self._party = party = self._party_of(requested.question)
        return self._handled(party, requested.invitation)

    def step(self, body: bytes) -> bytes:
        """Answers the next message of the current sum."""
        party = self._party or self._restored(None)
        if party is None:
            raise BadMessage("wrong type", "a step of a sum that was not started")
        return self._handled(party, body)

    def _restored(self, body: bytes | None) -> Party | None:
        """Returns the current party in its last committed state; None if it answers another
        question.

        Without a `body` any question matches. Raises `BadMessage` for an unusable state: its
        earlier answers are unknown, and it answers nothing else.
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
        """Returns the party of `question`, new or from a `state`.

        Each of its commits is in the receipts before an answer leaves.
        """

        def commit(state: bytes, count: int) -> None:
            self.store.commit(state)
            self.admission.committed(count)

        return self.parties(question, state, commit, self.admission.commits)

    def _handled(self, party: Party, message: bytes) -> bytes:
        """Returns the party's answer, at the fixed time if it depends on clients' data."""
        if not party.sends_row(message):
            return party.handle(message)
        try:
            return self.leaving.answer(functools.partial(party.handle, message))
        except Late:
            party.end()
            raise


class _Request(NamedTuple):
    """A question, lines of the coordinator's ledger that follow `since`, and an invitation."""

    question: Question
    since: bytes
    lines: bytes
    invitation: bytes

    @classmethod
    def decode(cls, body: bytes) -> _Request:
        """Parses a question's body. Raises `BadMessage`."""
        reader = Reader(body)
        question = Question.decode(reader.sized())
        return cls(question, reader.take(32), reader.sized(), reader.rest())
