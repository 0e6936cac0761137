"""A site's parties of sums that the coordinator sees: with the site's own noise, or none.

The sum leaves once for a question: that it is worked out is committed before it begins, and the sum
before it leaves, so that a site that is killed in between has dropped out, and one that is killed
later sends the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass

from privfed.deploy.messages.plain_sum import plain_bytes
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.party import Commit
from privfed.deploy.site.site_work import SiteWork
from privfed.secure.frames import BadMessage
from privfed.secure.masked.client_state import BadState

_BEGUN = b""
"""The state of a party that has begun to work its sum out."""


@dataclass
class PlainParty:
    """The party of one such sum; `state` is what it committed last."""

    work: SiteWork
    question: Question
    state: bytes | None
    commit: Commit

    def handle(self, message: bytes) -> bytes:
        """The site's sum, committed. Raises `BadMessage` where it was lost."""
        if message:
            raise BadMessage("wrong type", "a step of a sum that has none")
        if self.state == _BEGUN:
            raise BadMessage("row lost", "a site that was cut off while its sum was made")
        if self.state is None:
            self._committed(_BEGUN, 1)
            self._committed(plain_bytes(self.work.plain_sum(self.question)), 2)
        return self.state or _BEGUN

    def sends_row(self, message: bytes) -> bool:
        """Whether it does: every answer is a sum."""
        return True

    def _committed(self, state: bytes, count: int) -> None:
        self.commit(state, count)
        self.state = state


@dataclass(frozen=True)
class PlainParties:
    """Makes the parties of the site whose `work` this is."""

    work: SiteWork

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> PlainParty:
        """The party of the sum that answers `question`. Raises `BadState` for a stale `state`."""
        if least > (0 if state is None else 1 + bool(state)):
            raise BadState("stale", f"a state from before the last of {least} commits")
        return PlainParty(self.work, question, state, commit)
