"""A site's part in the sums of one run: each question checked first, and charged.

When a site's answer leaves: at a fixed time after it was asked for, whatever it was made of.

Training takes longer the more clients were drawn, and the more rows they have: when a sum leaves
would tell of both (PRIVACY, section 9.1, S1). So it waits until `seconds` are over, a constant of
the run that is large enough for the largest cohort. Where work was not done by then, the site has
dropped out, which is to be rare enough to be charged, or never: rehearse it
(`privfed.deploy.site.site_setup`). Reading a site's table takes longer the more it holds, too: it
is given up at that time, since who is not read by then does not count.

A machine that has just worked wakes up some microseconds sooner or later than one that has slept.
So an answer leaves a little later than that, by a part of `seconds` that is drawn afresh.
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
    """A sum that was not ready in time: it does not leave, nor does it later."""


@dataclass(frozen=True)
class FixedTime:
    """What follows from data leaves `seconds` after it was asked for; 0: at once.

    An answer that took longer than that never leaves, and a table that did is nobody's.
    """

    seconds: float
    blur: float = 0.02
    """An answer leaves up to this part of `seconds` later, uniformly."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """What `work` answers, or raises, no sooner and no later.

        Raises `Late` where it took longer, once so much time is over for a further time.
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
                raise Late("the sum was not ready in time, and does not leave")

    def cut_off(self, work: Callable[[], Work], late: Callable[[], Work]) -> Work:
        """What `work` returns, or raises, no sooner and no later; what `late` does if it is not.

        What `work` still does then is not ended, and comes to nothing.
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
        """Sleep so long, and up to the blur longer."""
        blur = self.blur * self.seconds * _random.random()
        self.sleep(max(0.0, seconds + blur))


@dataclass
class RunParty:
    """What one site answers of one run, whose coordinator is known to have signed all of it.

    A question of another form than the run's is refused first: on some of them work fails where
    somebody was drawn, and nowhere else. `admission` declines what the site's policy does not
    allow, and charges the site's receipts, durably, before a coin is drawn.

    What the sum's party does is committed to `store`, and then to the receipts, before it is
    answered; a party that was killed goes on from there: the same bytes have the same answer, a row
    that was asked for and did not leave is lost, and a state from before is refused. A row leaves
    when `leaving` says, whoever was drawn.
    """

    work: SiteWork
    parties: MakesParties
    admission: Admission
    store: PartyStore
    leaving: FixedTime
    declaration: bytes
    """The byte form of the declaration that it goes by: the same bytes are no other run."""
    _party: Party | None = field(default=None, init=False, repr=False)

    @property
    def head(self) -> bytes:
        """The last line `[32]` that was seen of the coordinator's ledger."""
        return self.admission.ledger.head

    def question(self, body: bytes) -> bytes:
        """The answer to a question: of a sum that begins, or of the one in hand, once more."""
        asked = _Asked.decode(body)
        if (party := self._restored(body)) is None:
            self.work.refuse_other_form(asked.question)
            digest = hashlib.sha256(body).hexdigest()
            if self.admission.is_last(digest) and self.admission.commits:
                raise BadMessage("lost state", "its party answered before, and is forgotten")
            self.admission.ledger.extend(asked.since, asked.lines)
            self.admission.charge(asked.question, digest)
            self.store.begin(body)
            self._party = party = self._party_of(asked.question)
        return self._handled(party, asked.invitation)

    def step(self, body: bytes) -> bytes:
        """The answer to the next message of the sum in hand."""
        party = self._party or self._restored(None)
        if party is None:
            raise BadMessage("wrong type", "a step of a sum that was not begun")
        return self._handled(party, body)

    def _restored(self, body: bytes | None) -> Party | None:
        """The party in hand as it was committed last; None where it is none of the question `body`.

        Any question is meant where none is given. Raises `BadMessage` for a state that is of no
        use: what it answered is not known, and nothing else is answered.
        """
        if (last := self.store.read()) is None or body not in (None, last[0]):
            return None
        if not self.admission.is_last(hashlib.sha256(last[0]).hexdigest()):
            return None
        try:
            self._party = self._party_of(_Asked.decode(last[0]).question, last[1])
        except BadState as damaged:
            raise BadMessage("lost state", str(damaged)) from damaged
        return self._party

    def _party_of(self, question: Question, state: bytes | None = None) -> Party:
        """The party of `question`, whose every commit is in the receipts before an answer leaves.

        It is new, or as of a `state`.
        """

        def commit(state: bytes, count: int) -> None:
            self.store.commit(state)
            self.admission.committed(count)

        return self.parties(question, state, commit, self.admission.commits)

    def _handled(self, party: Party, message: bytes) -> bytes:
        """Its answer: at the fixed time where it follows from clients' data."""
        if not party.sends_row(message):
            return party.handle(message)
        try:
            return self.leaving.answer(functools.partial(party.handle, message))
        except Late:
            party.end()
            raise


class _Asked(NamedTuple):
    """A question, lines of the coordinator's ledger that follow `since`, and an invitation."""

    question: Question
    since: bytes
    lines: bytes
    invitation: bytes

    @classmethod
    def decode(cls, body: bytes) -> _Asked:
        """Raises `BadMessage`."""
        reader = Reader(body)
        question = Question.decode(reader.sized())
        return cls(question, reader.take(32), reader.sized(), reader.rest())
