"""A site's party of a sum: the object that takes part in one sum for the site.

A party commits (stores its state durably) before each answer.

The coordinator sees plain sums, with or without the site's own noise. A party computes at most one
sum per question: it stores a mark before the computation, and the sum before it sends the sum. A
site that is killed between these two commits counts as a dropout. A site that is killed later sends
the same bytes again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.core.errors import Refused
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.questions import Question, SealedSums
from privfed.deploy.site.site_work import SiteWork
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.client_state import BadState
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.policy import Expected, Masking

Commit = Callable[[bytes, int], None]
"""A function that stores a state and the number of commits durably, before an answer is sent."""


_BEGUN, _OVER = b"begun", b"over"
"""State of a party that has begun to compute its sum, and state of one that answers no more."""


@dataclass
class PlainParty:
    """The party of one plain sum.

    Attributes:
      parties: the object that made this party; its method `sealed` computes the sum.
      question: the coordinator's request.
      state: the party's last committed state, as bytes: a mark that it has begun or is over, or the
        sealed sum that is sent; None before the first commit.
      commit: stores a further state, and the number of commits, durably.
      commits: number of recorded commits so far.
    """

    parties: PlainParties
    question: Question
    state: bytes | None
    commit: Commit
    commits: int

    def handle(self, message: bytes) -> bytes:
        """Computes the site's sealed sum, commits and returns it; later calls return the same.

        Raises `BadMessage` if `message` is not empty, if an earlier computation of the sum was
        interrupted, or after `end` (the sum was late).
        """
        if message:
            raise BadMessage("wrong type", "a plain sum has no further steps")
        if self.state in (_BEGUN, _OVER):
            raise BadMessage(
                "row lost", "the site was interrupted, or late, while it computed its sum"
            )
        if self.state is not None:
            return self.state
        self._committed(_BEGUN)
        answer = self.parties.sealed(self.question)
        self._committed(answer)
        return answer

    def sends_row(self, message: bytes) -> bool:
        """Always true: every answer is a sum."""
        return True

    def end(self) -> None:
        """Ends the party durably: it then answers no further message."""
        self._committed(_OVER)

    def _committed(self, state: bytes) -> None:
        self.commits += 1
        self.commit(state, self.commits)
        self.state = state


@dataclass(frozen=True)
class PlainParties:
    """Makes parties of plain sums.

    Attributes:
      work: computes the site's sums.
      key: the site's signing key.
      run: hash of the first line of the run's ledger, 32 bytes.
      coordinator: the coordinator's X25519 key, 32 bytes, to which sums are sealed.
    """

    work: SiteWork
    key: SiteKey
    run: bytes
    coordinator: bytes

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> PlainParty:
        """Returns the party of the sum for `question`.

        Args:
          question: the question.
          state: the party's stored state; None for a new party.
          commit: stores each further state, and the number of commits, durably.
          least: number of commits that the receipts record.

        Raises:
          BadState: if `state` is damaged, or has fewer than `least` commits.
        """
        if state == b"":
            raise BadState("damaged", "the state is empty")
        counted = {None: 0, _BEGUN: 1, _OVER: 3}.get(state, 2)
        if counted < least:
            raise BadState("stale", f"the state has {counted} commits, but {least} were recorded")
        return PlainParty(self, question, state, commit, least)

    def sealed(self, question: Question) -> bytes:
        """Returns the site's sum for `question`, sealed for the coordinator."""
        total = self.work.plain_sum(question)
        return SealedSums(self.run, question).seal(total, self.key, self.coordinator)


@dataclass(frozen=True)
class MaskedParties:
    """Makes parties of masked sums.

    Attributes:
      work: computes the site's rows.
      identity: the site's signing key.
      directory: the public key of each party of the session.
    """

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> CommittedParty:
        """Returns the party of the sum for `question`; the arguments are those of `PlainParties`.

        Raises `BadState` if `state` is damaged, or has fewer than `least` commits.
        """
        client = self._client(question, state)
        return CommittedParty(client, lambda state: commit(state, client.progress.commits), least)

    def _client(self, question: Question, state: bytes | None) -> MaskingClient:
        work = self.work
        summation, encoding = work.session_summation, work.encoding(question)
        if not isinstance(summation.protocol, Masking):
            raise Refused(
                'secure.protocol is not "masks", but sites on their own machines send masked '
                'sums; use "masks"'
            )
        codec = summation.codec(encoding, work.width(question))
        about = (question.round, question.number, question.model_hash)
        terms = (
            self.identity,
            self.directory,
            summation.protocol.within(summation.limits),
            Expected(*about, codec),
            functools.partial(work.row, question),
            summation.limits,
            work.layers(question),
        )
        if state is None:
            return MaskingClient(work.site, *terms)
        return MaskingClient.from_bytes(state, *terms)


Party = PlainParty | CommittedParty
"""Answers each message of one sum once, and repeats the last answer."""
MakesParties = PlainParties | MaskedParties
"""Makes a site's parties for the sums of one run, from the arguments:

- the question that the sum answers,
- the last committed state; None for a new party,
- a function that stores further states,
- the number of commits that the receipts record; the state must have at least as many.
"""
