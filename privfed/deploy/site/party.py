"""A site's party of one sum, whatever the sum's protocol: it commits before it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from privfed.deploy.messages.questions import Question

Commit = Callable[[bytes, int], None]
"""Makes a state durable, and then how often that was done before: before an answer leaves."""


class Party(Protocol):
    """Answers the server's messages of one sum, each once, and the last one's again."""

    def handle(self, message: bytes) -> bytes:
        """The answer to the next message, committed. Raises `Aborted`."""
        ...

    def sends_row(self, message: bytes) -> bool:
        """Whether `message` asks for what follows from clients' data, so that time would tell."""
        ...


class MakesParties(Protocol):
    """Makes a site's parties of the sums of one run."""

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> Party:
        """The party of the sum that answers `question`: new, or as of a committed `state`.

        Raises `BadState` for a state that is damaged, or from before the last of `least` commits.
        """
        ...
