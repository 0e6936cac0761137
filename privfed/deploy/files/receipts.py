"""A site's own ledger, `receipts.jsonl`: one receipt per exchange, durable before the answer.

The lines are hash-chained (`accounting.chain`). A receipt states the exchange (federation, run,
round, exchange) and digests of the model, of all bytes of the question and of the configuration. It
also states the two events that the round charges to each client of this site. One holds against a
server that colludes with other sites, the other if only this site is trusted (rules of proof,
section 9.6). Other lines state the number of states that a sum's party has stored (`Commits`), or
that receipts were lost (`Lost`). A line contains no time, no number of clients and no client data.

Order: a receipt is durable before clients are sampled, and the answer is sent after that. A receipt
that a crash left incomplete is removed and costs nothing: no clients were sampled for it, and no
answer was sent. A complete receipt is charged, whether its answer arrived or not. All lines of a
file concern the clients of one table; a site folder has one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

from accounting import chain, durable, regular
from accounting.documents import encoded
from accounting.errors import LedgerBroken, Unaccountable
from accounting.events import Spending
from accounting.guarantee import Gate, Guarantee, guarantee, stated, unbounded
from privfed.core.errors import public_text
from privfed.deploy.files.receipt import (
    AnsweredRun,
    Commits,
    Line,
    Lost,
    Receipt,
    RunReceipts,
    charges_restated,
    read_line,
)
from privfed.deploy.files.witness import ReceiptsWitness
from privfed.deploy.messages.place import Place
from privfed.deploy.site.policy import Code, Declined, Refusal, SpendingLimit
from privfed.plan.assumed import Assumed, terms_are_whole
from privfed.plan.assumptions import Incomposable


class Receipts:
    """The receipts in the file at `path`; only one process at a time may append.

    Use `Receipts.load` to read the file, and `Receipts.recover` to append to it.
    """

    def __init__(self, path: Path, links: Iterable[chain.Link], torn: bool = False) -> None:
        self.path = path
        self.witness: ReceiptsWitness | None = None
        self.lost = False
        self.torn = torn
        self.head = chain.START
        self._runs: dict[str, RunReceipts] = {}
        self._heads: dict[Receipt, str] = {}
        self._gates: dict[SpendingLimit, Gate] = {}
        self.failed = False
        for number, link in enumerate(links, start=1):
            try:
                self._take(read_line(link), link["hash"])
            except (Declined, LedgerBroken) as error:
                why = error.refusal.reason if isinstance(error, Declined) else error
                raise LedgerBroken(f"{path}, line {number}: {why}") from None
        self._size = path.stat().st_size

    @classmethod
    def load(cls, path: Path) -> Receipts:
        """Reads and verifies the file without changes; ignores an incomplete last line.

        Raises:
          LedgerBroken: if the file cannot be read, or its lines are no valid chain of receipts.
        """
        try:
            links, torn = chain.read(path)
        except OSError as error:
            raise LedgerBroken(
                f"receipts cannot be read: {public_text(error)}; make the file readable for this "
                "user"
            ) from error
        return cls(path, links, torn)

    @classmethod
    def recover(cls, path: Path, witness: Path | None = None) -> Receipts:
        """Loads the receipts, and removes an incomplete last line, which was never answered.

        Appends to the `witness` the lines that it lacks, and all later lines. Raises `LedgerBroken`
        as `load` does, if the file lacks lines of the witness, or if the witness is unusable.
        """
        receipts = cls.load(path)
        if witness is not None:
            receipts.witness = ReceiptsWitness(witness, path)
        if receipts.torn:
            lines, newline, _ = regular.read_bytes(path).rpartition(b"\n")
            mode = path.stat().st_mode & 0o777
            durable.write_atomically(path, lines + newline)
            path.chmod(mode)
            return cls.recover(path, witness)
        if receipts.witness is not None:
            receipts.witness.refuse_missing()
            receipts.witness.catch_up()
        return receipts

    @property
    def runs(self) -> tuple[AnsweredRun, ...]:
        """Summaries of the answered runs, oldest first."""
        return tuple(
            AnsweredRun(
                federation=run.first.federation,
                run=run.first.run,
                rounds=len(run.rounds),
                exchanges=len(run.lines),
                last_round=run.last[0],
                charged=run.first.prepaid_rounds or len(run.rounds),
            )
            for run in self._runs.values()
        )

    @property
    def populations(self) -> frozenset[str]:
        """The names of all populations that were charged."""
        return frozenset(run.first.population for run in self._runs.values())

    def last(self, run: str) -> Receipt | None:
        """Returns the last receipt of `run`; None if there is none."""
        answered = self._runs.get(run)
        return answered.lines[answered.last] if answered else None

    @property
    def assumed(self) -> Assumed:
        """The joint adversary of all runs, against which epsilon over all runs holds."""
        return self._joint()

    def _joint(self, now: Assumed | None = None) -> Assumed:
        """Returns the joint adversary of all runs and, if given, of `now`.

        It trusts only the parties that all of these adversaries trust.
        """
        each = [*(run.first.assumes for run in self._runs.values()), now]
        known = [assumed for assumed in each if assumed is not None]
        joint = reduce(or_, known, Assumed())
        trusted = reduce(and_, ({*assumed.trusts} for assumed in known)) if known else set()
        return replace(joint, trusts=tuple(sorted(trusted)))

    def spending(self, alone: bool = False, now: Assumed | None = None) -> Spending:
        """Returns the charges to each client of this site over all runs.

        Args:
          alone: whether to count the charges that hold if only this site is trusted, instead of
            those against a server that colludes with other sites.
          now: adversary of a requested run, if any; it is part of the joint adversary.

        Raises:
          Incomposable: if a run gives no guarantee against that adversary, or receipts were lost.
        """
        if self.lost:
            raise Incomposable("receipts of this site were lost (privfed site recover)")
        joint = self._joint(now)
        return sum((run.spending(alone, joint) for run in self._runs.values()), Counter())

    def following(
        self, spending: Spending, assumed: Assumed | None, against: str | None
    ) -> tuple[Spending, Spending]:
        """Returns the charges so far, then a further run's, for the joint adversary of all runs.

        Args:
          spending: planned charges of the further run.
          assumed: adversary of the further run.
          against: "sites" for charges against a server that colludes with other sites, "others"
            for charges if only this site is trusted; None if these are the same.

        Raises:
          Incomposable: as `spending` does.
        """
        return self.spending(now=assumed), charges_restated(
            spending, assumed, against, self._joint(assumed)
        )

    def guarantees(self, delta: float) -> tuple[Guarantee, Guarantee | None]:
        """Returns guarantees at `delta`: against colluding sites, and if only this site is trusted.

        The second is None if every line charges the same event for both.
        """
        both = any(each.alone for run in self._runs.values() for each in run.lines.values())
        bound = self._guarantee(delta)
        if not both:
            return bound, None
        alone = self._guarantee(delta, alone=True)
        return replace(bound, against="sites"), replace(alone, against="others")

    def _guarantee(self, delta: float, alone: bool = False) -> Guarantee:
        """Returns the guarantee of all runs at `delta`; infinite epsilon if `spending` fails."""
        try:
            with terms_are_whole():
                return guarantee(self.spending(alone), delta)
        except Incomposable as error:
            return unbounded({}, delta, str(error))
        except Unaccountable as error:  # other units or relations, which `affords` never accepts
            raise LedgerBroken(f"{self.path}: {public_text(error)}") from None

    def affords(self, limit: SpendingLimit, receipt: Receipt, rounds: int = 1) -> bool:
        """Whether epsilon of all charges and that of `receipt` is at most the limit.

        False once receipts were lost, or if no joint bound is known.

        Args:
          limit: delta, and the largest epsilon against a server that colludes with other sites.
          receipt: the exchange to charge; if its round or all rounds are charged: true.
          rounds: expected rounds of the run; they affect only the speed.
        """
        if self.lost:
            return False
        run = self._runs.get(receipt.run)
        if run is not None and (run.first.prepaid_rounds or receipt.round in run.rounds):
            return True
        gate = self._gates.setdefault(
            limit, Gate(limit.epsilon, limit.delta, "tightest", max(1, rounds))
        )
        try:
            before, following = self.following(
                {receipt.event: receipt.prepaid_rounds or 1},
                receipt.assumes,
                "sites" if receipt.alone else None,
            )
            total = Counter(before) + Counter(following)
            if not receipt.prepaid_rounds:
                (event,) = following
                return gate.affords(total - Counter({event: 1}), event)
            return guarantee(total, limit.delta).epsilon <= limit.epsilon
        except (Unaccountable, Incomposable):  # other units, relations or adversaries
            return False

    def charged(self, receipt: Receipt, limit: SpendingLimit, rounds: int = 1) -> str:
        """Charges `receipt` durably, before clients are sampled, unless it was charged already.

        Args:
          receipt: the exchange to charge.
          limit: the site's budget.
          rounds: as for `affords`.

        Returns:
          The hash of the line of `receipt`, in hexadecimal.

        Raises:
          Declined: if the exchange already answered another question, precedes the run's last or
            is not prepaid, if the federation, configuration or event differs from the run's (as
            for `refuse`), or if `affords` is false; nothing is charged.
          LedgerBroken: if another process wrote to the file, or an earlier line could not be
            written.
        """
        self._refuse_another_writer()
        if (head := self._head_of(receipt)) is not None:
            return head
        self.refuse(receipt, limit, rounds)
        self._append(receipt)
        return self.head

    def refuse(self, receipt: Receipt, limit: SpendingLimit, rounds: int = 1) -> None:
        """Raises `Declined` as `RunReceipts.refuse_replay` does, or if `affords` is false."""
        if run := self._runs.get(receipt.run):
            run.refuse_replay(receipt)
        if not self.affords(limit, receipt, rounds):
            raise Declined(
                Refusal(
                    Code.BUDGET,
                    f"budget.epsilon is {limit.epsilon:g} at delta {limit.delta:g}, but with this "
                    f"site's receipts round {receipt.round} of run {receipt.run} would exceed it",
                )
            )

    def committed(self, run: str, count: int) -> None:
        """Records durably that the party of the last exchange of `run` stored `count` states."""
        round, exchange = self._runs[run].last
        self._append(Commits(run, round, exchange, count))

    def commits(self, run: str) -> int:
        """Returns the recorded number of states stored in the last exchange of `run`, or 0."""
        return self._runs[run].commits if run in self._runs else 0

    def to_json(self, limit: SpendingLimit) -> dict[str, Any]:
        """Returns the JSON object of `privfed site receipts --json`; `limit` is the budget."""
        bound, alone = self.guarantees(limit.delta)
        return {
            "runs": encoded(self.runs),
            "guarantees": stated(bound, alone) if self.runs else [],
            "budget": limit.model_dump(),
            "assumes": self.assumed.to_json(),
            "head": self.head,
            "torn": self.torn,
            "lost": self.lost,
        }

    def _head_of(self, receipt: Receipt) -> str | None:
        """Returns the hash of the line of an equal receipt; None if there is no such line."""
        run = self._runs.get(receipt.run)
        return self._heads[receipt] if run and run.lines.get(receipt.place) == receipt else None

    def answered(self, place: Place) -> bool:
        """Whether there is a receipt for the exchange `place`."""
        lines = self._runs[place.run].lines if place.run in self._runs else {}
        return (place.round, place.exchange) in lines

    def has_question(self, run: str, question: str) -> bool:
        """Whether `run` has a receipt for the question with this SHA-256, in hexadecimal."""
        lines = self._runs[run].lines if run in self._runs else {}
        return any(line.question == question for line in lines.values())

    def declare_lost(self) -> None:
        """Records durably that receipts were lost."""
        self._append(Lost())

    def _append(self, line: Line) -> None:
        """Appends a line durably. Raises `LedgerBroken` if another process changed the file."""
        self._refuse_another_writer()
        text, link = chain.sealed(self.head, line.to_json())
        self.failed = True  # until the line is durable: a part of it may be in the file
        durable.append(self.path, text)
        if self.witness is not None:
            self.witness.append(text)
        self._take(line, link["hash"])
        self._size += len(text)
        self.failed = False

    def _refuse_another_writer(self) -> None:
        if self.failed or self.torn or self.path.stat().st_size != self._size:
            raise LedgerBroken(
                f"{self.path}: another process wrote to this file, or a line could not be written; "
                "start the site again"
            )

    def _take(self, line: Line, head: str) -> None:
        if isinstance(line, Lost):
            self.lost = True
        elif isinstance(line, Receipt):
            run = self._runs.setdefault(line.run, RunReceipts(line))
            run.take(line)
            self._heads[line] = head
        elif line.run in self._runs:
            self._runs[line.run].note(line)
        else:
            raise LedgerBroken("states commits of a run that was never answered")
        self.head = head
