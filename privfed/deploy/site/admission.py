"""What a site charges itself for a question before it answers, or why it declines."""

from __future__ import annotations

from dataclasses import dataclass

from privfed.deploy.files.receipts import Receipt, Receipts
from privfed.deploy.messages.questions import Question
from privfed.deploy.policies.codes import Code, Declined, Refusal
from privfed.deploy.policies.policy import SpendingLimit
from privfed.run.setup import Setup


@dataclass(frozen=True)
class Admission:
    """Charges the questions of one run to a site's `receipts`, within `limit`.

    What a round costs follows from the plan, which every site makes from public facts alone
    (PRIVACY, section 9.6), and never from what the coordinator says. `federation`, `run` and
    `config` are digests, 64 hexadecimal digits.
    """

    setup: Setup
    receipts: Receipts
    limit: SpendingLimit
    federation: str
    run: str
    config: str

    def __call__(self, question: Question, digest: str) -> None:
        """Charge the question, durably. Raises `Declined`, charging nothing.

        `digest` is of all its bytes, so that an exchange is answered to one question only. The last
        one may come again, where no answer to it was committed: it is charged once.
        """
        plan = self.setup.plan
        run, parts = plan.config.run, plan.config.data.sites_per_client
        self._refuse_uncharged(question, run.rounds)
        receipt = Receipt(
            federation=self.federation,
            run=self.run,
            round=question.round,
            exchange=question.number,
            model=question.model_hash.hex(),
            question=digest,
            config=self.config,
            event=plan.event,
            alone=plan.other,
            at_once=run.rounds if parts > 1 else 0,
        )
        last = self.receipts.last(self.run)
        if last is not None and receipt.place < last.place:
            reason = f"round {question.round}, exchange {question.number} is over"
            raise Declined(Refusal(Code.ROUND, reason))
        self.receipts.charged(receipt, self.limit, run.rounds)

    def _refuse_uncharged(self, question: Question, rounds: int) -> None:
        """Raises `Declined` for a round or an exchange that no charge of this run is for."""
        exchanges = self.setup.algorithm.exchanges
        if not (1 <= question.round <= rounds and 0 <= question.number < exchanges):
            reason = (
                f"round {question.round}, exchange {question.number}; the run has {rounds} rounds "
                f"of {exchanges} exchanges"
            )
            raise Declined(Refusal(Code.ROUND, reason))
