"""A site's parties of sums that the coordinator sees: with the site's own noise, or none.

The sum leaves once for a question: that it is worked out is committed before it begins, and the sum
before it leaves, so that a site that is killed in between has dropped out, and one that is killed
later sends the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass

from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.plain_sum import SealedSums
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.party import Commit
from privfed.deploy.site.site_work import SiteWork
from privfed.secure.frames import BadMessage
from privfed.secure.masked.client_state import BadState

_BEGUN, _OVER = b"begun", b"over"
"""States of a party that has begun to work its sum out, and of one that answers nothing more."""


@dataclass
class PlainParty:
    """The party of one such sum; `state` is what it committed last, after so many `commits`."""

    parties: PlainParties
    question: Question
    state: bytes | None
    commit: Commit
    commits: int

    def handle(self, message: bytes) -> bytes:
        """The site's sum, committed. Raises `BadMessage` where it was lost."""
        if message:
            raise BadMessage("wrong type", "a step of a sum that has none")
        if self.state in (_BEGUN, _OVER):
            raise BadMessage("row lost", "a site that was cut off, or late, as its sum was made")
        if self.state is not None:
            return self.state
        self._committed(_BEGUN)
        answer = self.parties.sealed(self.question)
        self._committed(answer)
        return answer

    def sends_row(self, message: bytes) -> bool:
        """Whether it does: every answer is a sum."""
        return True

    def end(self) -> None:
        """Answer nothing more."""
        self._committed(_OVER)

    def _committed(self, state: bytes) -> None:
        self.commits += 1
        self.commit(state, self.commits)
        self.state = state


@dataclass(frozen=True)
class PlainParties:
    """Makes the parties of the site whose `work` and `key` these are, in a `run`.

    What they send is sealed to the `coordinator`'s key `[32]`.
    """

    work: SiteWork
    key: SiteKey
    run: bytes
    coordinator: bytes

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> PlainParty:
        """The party of the sum that answers `question`. Raises `BadState` for a stale `state`."""
        if state == b"":
            raise BadState("damaged", "an empty state")
        counted = {None: 0, _BEGUN: 1, _OVER: 3}.get(state, 2)
        if counted < least:
            raise BadState("stale", f"a state from before the last of {least} commits")
        return PlainParty(self, question, state, commit, least)

    def sealed(self, question: Question) -> bytes:
        """The site's sum for `question`, for the coordinator alone."""
        total = self.work.plain_sum(question)
        return SealedSums(self.run, question).seal(total, self.key, self.coordinator)
