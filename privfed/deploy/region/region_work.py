"""A region's part in the server's sums: its row is its sites' sum, and no question is charged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from privfed.deploy.files.run_state import LedgerCopy, PartyStore
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.admission import refuse_uncharged_question
from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.deploy.site.run_party import admitted_question
from privfed.deploy.site.site_work import SiteWork
from privfed.privacy.integers import Integers
from privfed.run.setup import Setup
from privfed.secure.encoded_sum import EncodedSummation


class RegionWork(SiteWork):
    """The work of a region's coordinator: it has no clients, and its row is the region's sum.

    Args:
      number: number of the region.
      setup: the run, without clients.
      region_sum: returns the sum of the region's sites for a question.
    """

    def __init__(
        self, number: int, setup: Setup, region_sum: Callable[[Question], Integers]
    ) -> None:
        super().__init__(number, setup)
        self._region_sum = region_sum

    @property
    def session_summation(self) -> EncodedSummation:
        """The summation of the session of all regions' coordinators."""
        return self.encoded_summation.of_top

    def row(self, question: Question) -> Integers:
        """Returns the region's sum `[m]`, which has the noise of its sites and no other."""
        return self._region_sum(question)


@dataclass(frozen=True)
class RegionAdmission:
    """Admits questions that the server's ledger charges, in the order of exchanges.

    The sites charge them to their receipts. The last admitted question is that in `store`.

    Attributes:
      setup: plan and model of the run.
      ledger: the verified copy of the server's ledger.
      store: the files of the current sum.
      gather: raises `Declined` if too few sites of the region are available.
    """

    setup: Setup
    ledger: LedgerCopy
    store: PartyStore
    gather: Callable[[], None]

    @property
    def commits(self) -> int:
        """0: the number of stored states is not recorded elsewhere."""
        return 0

    @property
    def last(self) -> tuple[int, int] | None:
        """Round and number of the last admitted exchange; None before the first."""
        body = self.store.question
        question = admitted_question(body) if body is not None else None
        return (question.round, question.number) if question else None

    def charge(self, question: Question, digest: str) -> None:
        """Admits a question.

        Raises:
          Declined: if the run has no such exchange, the server's ledger does not charge its round,
            or this exchange or a later one was asked before by another question.
        """
        refuse_uncharged_question(question, self.setup, self.ledger)
        place, last = (question.round, question.number), self.last
        if last is not None and place <= last and not self.is_last(digest):
            reason = f"round {place[0]}, exchange {place[1]} does not follow the last one"
            raise Declined(Refusal(Code.ROUND, reason))

    def committed(self, count: int) -> None:
        """Does nothing: see `commits`."""

    def is_last(self, digest: str) -> bool:
        """Whether the stored question has this `digest`."""
        body = self.store.question
        return body is not None and hashlib.sha256(body).hexdigest() == digest

    def refuse_spent(self) -> None:
        """Raises `Declined` if too few sites are available for a round."""
        self.gather()
