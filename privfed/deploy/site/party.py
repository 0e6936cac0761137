"""A site's party of one sum, for any protocol: it commits before it answers.

It includes the parties of plain sums, which the coordinator sees, with the site's noise or none.

A plain sum leaves once per question. Its computation is committed before it begins, and the sum
before it leaves. So a site that is killed in between has dropped out, and one that is killed later
sends the same bytes again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.core.errors import Refused
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.questions import Question, SealedSums
from privfed.deploy.site.site_work import SiteWork
from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.client_state import BadState
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode
from privfed.secure.masked.policy import Expected, Masking
from privfed.secure.summation import Session

Commit = Callable[[bytes, int], None]
"""Makes a state durable, with the number of commits, before an answer leaves."""


class Party(Protocol):
    """Contract of parties: answers each message of one sum once, and repeats the last answer."""

    def handle(self, message: bytes) -> bytes:
        """Returns the committed answer to the next message. Raises `Aborted`."""
        ...

    def end(self) -> None:
        """Commits that the party answers nothing more."""
        ...

    def sends_row(self, message: bytes) -> bool:
        """Whether the answer depends on clients' data, so that its time would reveal something."""
        ...


class MakesParties(Protocol):
    """Contract of a factory of a site's parties for the sums of one run."""

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> Party:
        """Returns the party of a sum.

        Args:
          question: the question that the sum answers.
          state: the last committed state; None for a new party.
          commit: stores further states.
          least: number of commits before the last answer.

        Raises:
          BadState: if the state is damaged, or older than `least` commits.
        """
        ...


_BEGUN, _OVER = b"begun", b"over"
"""States of a party that has begun to compute its sum, and of one that answers nothing more."""


@dataclass
class PlainParty:
    """The party of one plain sum, with its last committed `state` after `commits` commits."""

    parties: PlainParties
    question: Question
    state: bytes | None
    commit: Commit
    commits: int

    def handle(self, message: bytes) -> bytes:
        """Computes and commits the site's sum, and returns it; later calls return the same sum.

        Raises `BadMessage` if `message` is not empty, or if the site was interrupted or late while
        it computed the sum.
        """
        if message:
            raise BadMessage("wrong type", "a step of a sum without steps")
        if self.state in (_BEGUN, _OVER):
            raise BadMessage(
                "row lost", "a site that was interrupted, or late, while its sum was computed"
            )
        if self.state is not None:
            return self.state
        self._committed(_BEGUN)
        answer = self.parties.sealed(self.question)
        self._committed(answer)
        return answer

    def sends_row(self, message: bytes) -> bool:
        """True: every answer is a sum."""
        return True

    def end(self) -> None:
        """Commits that the party answers nothing more."""
        self._committed(_OVER)

    def _committed(self, state: bytes) -> None:
        self.commits += 1
        self.commit(state, self.commits)
        self.state = state


@dataclass(frozen=True)
class PlainParties:
    """Makes parties of plain sums for the site with this `work` and `key`, in a `run`.

    Their sums are sealed to the `coordinator`'s key `[32]`.
    """

    work: SiteWork
    key: SiteKey
    run: bytes
    coordinator: bytes

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> PlainParty:
        """Returns the party of the sum for `question`. Raises `BadState` for a stale `state`."""
        if state == b"":
            raise BadState("damaged", "an empty state")
        counted = {None: 0, _BEGUN: 1, _OVER: 3}.get(state, 2)
        if counted < least:
            raise BadState("stale", f"a state from before the last of {least} commits")
        return PlainParty(self, question, state, commit, least)

    def sealed(self, question: Question) -> bytes:
        """Returns the site's sum for `question`, sealed for the coordinator."""
        total = self.work.plain_sum(question)
        return SealedSums(self.run, question).seal(total, self.key, self.coordinator)


class MaskedParty:
    """A committed party of a masked sum, which sends its row in answer to its inbox."""

    def __init__(self, client: MaskingClient, commit: Commit, least: int) -> None:
        self._party = CommittedParty(
            client, lambda state: commit(state, client.progress.commits), least
        )

    def handle(self, message: bytes) -> bytes:
        """Returns the committed answer to the next message. Raises `Aborted`."""
        return self._party.handle(message)

    def end(self) -> None:
        """Commits that the party answers nothing more."""
        self._party.end()

    def sends_row(self, message: bytes) -> bool:
        """Whether the row is requested. Raises `Aborted` for bytes that are no message."""
        return isinstance(decode(message), Inbox)


@dataclass(frozen=True)
class MaskedParties:
    """Makes parties of masked sums for the site with this `work` and `identity`."""

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> MaskedParty:
        """Returns the party of the sum for `question`. Raises `BadState`."""
        return MaskedParty(self._client(question, state), commit, least)

    def _client(self, question: Question, state: bytes | None) -> MaskingClient:
        work = self.work
        summation, encoding = work.encoded_summation, work.encoding(question)
        if not isinstance(summation.protocol, Masking):
            raise Refused(
                'secure.protocol is not "masks", but sites on machines of their own send masked '
                'sums; use "masks"'
            )
        codec = summation.codec(encoding, work.width(question))
        about = (question.round, question.number, question.model_hash)
        noise = None
        if isinstance(encoding.noise, Layers):
            keys = Session(*about, streams=work.setup.streams).layer_keys(work.site)
            noise = ClientNoise(encoding.noise, keys)
        terms = (
            self.identity,
            self.directory,
            summation.protocol.within(summation.limits),
            Expected(*about, codec),
            functools.partial(work.row, question),
            summation.limits,
            noise,
        )
        if state is None:
            return MaskingClient(work.site, *terms)
        return MaskingClient.from_bytes(state, *terms)
