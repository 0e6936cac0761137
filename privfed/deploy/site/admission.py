"""Charges a question to a site's receipts before it is answered, or declines it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.run_state import LedgerCopy
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.policy import Code, Declined, Refusal, SpendingLimit
from privfed.run.setup import Setup

_LEAST_FREE = 10_000_000
"""Bytes that a site's disk needs to join a run: receipts, states of sums and the log."""


@dataclass(frozen=True)
class Admission:
    """Charges the questions of one run to a site's receipts, within the site's current budget.

    A question is a coordinator's request for one sum.

    The cost of a round follows from the plan, which every site computes from public facts (rules of
    proof, section 9.6), and never from the coordinator's claims. A question is declined unless the
    coordinator's ledger already charges its round.

    Attributes:
      setup: plan and model of the run.
      receipts: the site's receipts.
      ledger: the site's copy of the coordinator's ledger.
      limit: returns the current budget.
      federation: digest of the federation file. Digests are 64 hexadecimal digits.
      run: digest that identifies the run.
      config: digest of the declaration.
      population: the site's name for its clients.
    """

    setup: Setup
    receipts: Receipts
    ledger: LedgerCopy
    limit: Callable[[], SpendingLimit]
    federation: str
    run: str
    config: str
    population: str

    def charge(self, question: Question, digest: str) -> None:
        """Charges the question durably.

        A question that repeats the last charged one is not charged again.

        Args:
          question: the question to charge.
          digest: digest of all bytes of the question; an exchange answers one question only.

        Raises:
          Declined: if the run has no such exchange, the coordinator's ledger does not charge its
            round, the exchange precedes the last one, or `Receipts.charged` declines it; nothing is
            charged.
          LedgerBroken: as `Receipts.charged` does.
        """
        rounds = self.setup.plan.config.run.rounds
        refuse_uncharged_question(question, self.setup, self.ledger)
        receipt = self._receipt(question.round, question.number, question.model_hash.hex(), digest)
        last = self.receipts.last(self.run)
        if last is not None and receipt.place < last.place:
            reason = f"round {question.round}, exchange {question.number} precedes the last one"
            raise Declined(Refusal(Code.ROUND, reason))
        self.receipts.charged(receipt, self.limit(), rounds)

    def refuse_spent(self) -> None:
        """Raises `Declined` if the site's receipts or budget forbid the run's next round.

        Does nothing after the last round. Call it when a run is declared, so that the coordinator
        charges no round that this site would decline.
        """
        self._refuse_without_space()
        last, rounds = self.receipts.last(self.run), self.setup.plan.config.run.rounds
        following, nothing = last.round + 1 if last else 1, "0" * 64
        if following <= rounds:
            receipt = self._receipt(following, 0, nothing, nothing)
            self.receipts.refuse(receipt, self.limit(), rounds)

    def _refuse_without_space(self) -> None:
        """Declines if a receipt could not be written, or the site's disk is nearly full.

        A site that fails in every round would spend the budgets of all other sites.
        """
        path = self.receipts.path
        if self.receipts.failed or shutil.disk_usage(path.parent).free < _LEAST_FREE:
            reason = (
                f"{path} cannot be written: its disk is full, or an earlier write failed; free "
                "space, and start the agent again"
            )
            raise Declined(Refusal(Code.STORAGE, reason))

    def _receipt(self, round: int, exchange: int, model: str, question: str) -> Receipt:
        plan = self.setup.plan
        rounds, parts = plan.config.run.rounds, plan.config.data.sites_per_client
        return Receipt(
            federation=self.federation,
            run=self.run,
            round=round,
            exchange=exchange,
            model=model,
            question=question,
            config=self.config,
            event=plan.event_in(round),
            alone=plan.other_in(round),
            prepaid_rounds=rounds if parts > 1 else 0,
            population=self.population,
            assumes=plan.assumed,
        )

    def committed(self, count: int) -> None:
        """Records durably that the party of the last charged question stored `count` states."""
        self.receipts.committed(self.run, count)

    @property
    def commits(self) -> int:
        """The number of states of the last sum's party that the receipts record; 0 without any.

        A restored state with fewer commits is out of date.
        """
        return self.receipts.commits(self.run)

    @property
    def last(self) -> tuple[int, int] | None:
        """Round and number of the last charged exchange; None before the first."""
        last = self.receipts.last(self.run)
        return last.place if last else None

    def is_last(self, digest: str) -> bool:
        """Whether the run's last receipt is of the question with this `digest`."""
        last = self.receipts.last(self.run)
        return last is not None and last.question == digest


def refuse_uncharged_question(question: Question, setup: Setup, ledger: LedgerCopy) -> None:
    """Raises `Declined` if the run lacks the exchange, or the coordinator did not charge it.

    The round must be one of those of the run, and the exchange number, from 0, below the number of
    exchanges in that round. The coordinator's `ledger` must charge the round as planned.
    """
    rounds = setup.plan.config.run.rounds
    exchanges = setup.algorithm_in(question.round).exchanges
    if not (1 <= question.round <= rounds and 0 <= question.number < exchanges):
        reason = (
            f"round {question.round}, exchange {question.number} does not exist: the run has "
            f"{rounds} rounds of {exchanges} exchanges"
        )
        raise Declined(Refusal(Code.ROUND, reason))
    charge = ledger.ledger.charged(question.round)
    if charge is None or charge.event != setup.plan.event_in(question.round):
        reason = f"the coordinator's ledger does not charge round {question.round} as planned"
        raise Declined(Refusal(Code.LEDGER, reason))
