"""What a site charges itself for a question before it answers, or why it declines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.run_state import LedgerCopy
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.policy import Code, Declined, Refusal, SpendingLimit
from privfed.run.setup import Setup


@dataclass(frozen=True)
class Admission:
    """Charges the questions of one run to a site's `receipts`, within `limit`, as it is then.

    What a round costs follows from the plan, which every site makes from public facts alone
    (PRIVACY, section 9.6), and never from what the coordinator says. The coordinator's own ledger,
    of which `ledger` is the site's copy, has to state the charge first. `federation`, `run` and
    `config` are digests, 64 hexadecimal digits; `population` is what the site calls its people.
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
        """Charge the question, durably. Raises `Declined`, charging nothing.

        `digest` is of all its bytes, so that an exchange is answered to one question only. The last
        one may come again, where no answer to it was committed: it is charged once.
        """
        rounds = self.setup.plan.config.run.rounds
        self._refuse_uncharged(question, rounds)
        receipt = self._receipt(question.round, question.number, question.model_hash.hex(), digest)
        last = self.receipts.last(self.run)
        if last is not None and receipt.place < last.place:
            reason = f"round {question.round}, exchange {question.number} is over"
            raise Declined(Refusal(Code.ROUND, reason))
        self.receipts.charged(receipt, self.limit(), rounds)

    def refuse_spent(self) -> None:
        """Raises `Declined` where not even the run's next round may be charged.

        So that whoever declares the run is told before it charges a round that nobody answers.
        """
        last, rounds = self.receipts.last(self.run), self.setup.plan.config.run.rounds
        following, nothing = last.round + 1 if last else 1, "0" * 64
        if following <= rounds:
            receipt = self._receipt(following, 0, nothing, nothing)
            self.receipts.refuse(receipt, self.limit(), rounds)

    def _receipt(self, round: int, exchange: int, model: str, question: str) -> Receipt:
        """What an exchange of the run is charged."""
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
            at_once=rounds if parts > 1 else 0,
            population=self.population,
            assumes=plan.assumed,
        )

    def committed(self, count: int) -> None:
        """Note, durably, how often the party of the question in hand has committed."""
        self.receipts.committed(self.run, count)

    @property
    def commits(self) -> int:
        """How often the party of the last question had committed when it answered."""
        return self.receipts.commits(self.run)

    def is_last(self, digest: str) -> bool:
        """Whether the last question that was charged is the one of this `digest`."""
        last = self.receipts.last(self.run)
        return last is not None and last.question == digest

    def _refuse_uncharged(self, question: Question, rounds: int) -> None:
        """Raises `Declined` for a round or an exchange that no charge of this run is for."""
        exchanges = self.setup.algorithm_in(question.round).exchanges
        if not (1 <= question.round <= rounds and 0 <= question.number < exchanges):
            reason = (
                f"round {question.round}, exchange {question.number}; the run has {rounds} rounds "
                f"of {exchanges} exchanges"
            )
            raise Declined(Refusal(Code.ROUND, reason))
        charge = self.ledger.ledger.charged(question.round)
        if charge is None or charge.event != self.setup.plan.event_in(question.round):
            reason = f"the coordinator's ledger states no such charge of round {question.round}"
            raise Declined(Refusal(Code.LEDGER, reason))
