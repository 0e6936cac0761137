"""A site's parties of masked sums."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.messages.questions import Question
from privfed.deploy.site.party import Commit
from privfed.deploy.site.site_work import SiteWork
from privfed.errors import Refused
from privfed.privacy.noise.shares import Layers
from privfed.secure.identities import Directory
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.expected import Expected, Masking
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode
from privfed.secure.summation import Session


class MaskedParty:
    """A committed party of a masked sum, which sends its row in answer to its inbox."""

    def __init__(self, client: MaskingClient, commit: Commit, least: int) -> None:
        self._party = CommittedParty(
            client, lambda state: commit(state, client.progress.commits), least
        )

    def handle(self, message: bytes) -> bytes:
        """The answer to the next message, committed. Raises `Aborted`."""
        return self._party.handle(message)

    def end(self) -> None:
        """Answer nothing more."""
        self._party.end()

    def sends_row(self, message: bytes) -> bool:
        """Whether the row is asked for. Raises `Aborted` for bytes that are no message."""
        return isinstance(decode(message), Inbox)


@dataclass(frozen=True)
class MaskedParties:
    """Makes the parties of the site whose `work` and `identity` these are, in a `directory`."""

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory

    def __call__(
        self, question: Question, state: bytes | None, commit: Commit, least: int
    ) -> MaskedParty:
        """The party of the sum that answers `question`. Raises `BadState`."""
        return MaskedParty(self._client(question, state), commit, least)

    def _client(self, question: Question, state: bytes | None) -> MaskingClient:
        work = self.work
        summation, encoding = work.encoded_summation, work.encoding(question)
        if not isinstance(summation.protocol, Masking):
            raise Refused("secure.protocol: sites on machines of their own send masked sums")
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
