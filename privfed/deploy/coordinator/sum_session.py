"""One sum over sites, as its server opens it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from privfed.deploy.coordinator.masked_session import MaskedSession
from privfed.deploy.coordinator.plain_session import PlainSession
from privfed.deploy.messages.questions import Question
from privfed.privacy.mechanism import BoundedSum
from privfed.round.algorithm import Algorithm
from privfed.secure.culprit import Culprit
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.identities import Directory
from privfed.secure.primitives import KeyPair


class SumSession(Protocol):
    """The server of one sum, whatever its protocol."""

    @property
    def invitation(self) -> bytes:
        """What every site is invited by, beside the question."""
        ...

    @property
    def awaits_rows(self) -> bool:
        """Whether what sites answer next follows from their clients' data, and takes its time."""
        ...

    def handle(self, site: int, answer: bytes) -> None:
        """Take a site's answer. Raises `Aborted` for one that counts as dropped."""
        ...

    def proceed(self) -> Mapping[int, bytes]:
        """The next messages to sites; none where the sum may be opened. Raises `Aborted`."""
        ...

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Which sites were proved to lie so far."""
        ...

    def total(self) -> BoundedSum:
        """The sum, opened. Raises `Aborted`."""
        ...


def begun(
    algorithm: Algorithm, directory: Directory, question: Question, run: bytes, sealing: KeyPair
) -> SumSession:
    """A new sum, over the sites of `directory`, that answers `question` of `run`.

    What the coordinator is to see is sealed to its `sealing` key.
    """
    if isinstance(algorithm.summation, EncodedSummation):
        return MaskedSession.begun(algorithm, algorithm.summation, directory, question)
    return PlainSession(algorithm, directory, question, run, sealing)
