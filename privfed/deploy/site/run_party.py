"""A site's part in the sums of one run: each question checked first, and charged."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.files.party_store import PartyStore
from privfed.deploy.messages.questions import Question
from privfed.deploy.site.admission import Admission
from privfed.deploy.site.fixed_time import FixedTime
from privfed.deploy.site.site_work import SiteWork
from privfed.errors import Refused
from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.identities import Directory
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.client_state import BadState
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.expected import Expected, Masking
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import decode
from privfed.secure.masked.row_messages import Inbox
from privfed.secure.summation import Session


@dataclass
class RunParty:
    """What one site answers of one run, whose coordinator is known to have signed all of it.

    A question of another form than the run's is refused first: on some of them work fails where
    somebody was drawn, and nowhere else. `admission` declines what the site's policy does not
    allow, and charges the site's receipts, durably, before a coin is drawn.

    What the sum's party does is committed to `store`, and then to the receipts, before it is
    answered; a party that was killed goes on from there: the same bytes have the same answer, a row
    that was asked for and did not leave is lost, and a state from before is refused. A masked row
    leaves when `leaving` says, whoever was drawn.
    """

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory
    admission: Admission
    store: PartyStore
    leaving: FixedTime
    _party: CommittedParty | None = field(default=None, init=False, repr=False)

    @property
    def head(self) -> bytes:
        """The last line `[32]` that was seen of the coordinator's ledger."""
        return self.admission.ledger.head

    def question(self, body: bytes) -> bytes:
        """The answer to a question: of a sum that begins, or of the one in hand, once more."""
        asked = _Asked.decode(body)
        if (party := self._restored(body)) is None:
            self.work.refuse_other_form(asked.question)
            digest = hashlib.sha256(body).hexdigest()
            if self.admission.is_last(digest) and self.admission.commits:
                raise BadMessage("lost state", "its party answered before, and is forgotten")
            self.admission.ledger.extend(asked.since, asked.lines)
            self.admission.charge(asked.question, digest)
            self.store.begin(body)
            self._party = party = self._committing(self._client(asked.question))
        return party.handle(asked.invitation)

    def step(self, body: bytes) -> bytes:
        """The answer to the next message of the sum in hand."""
        party = self._party or self._restored(None)
        if party is None:
            raise BadMessage("wrong type", "a step of a sum that was not begun")
        if isinstance(decode(body), Inbox):
            return self.leaving.answer(functools.partial(party.handle, body))
        return party.handle(body)

    def _restored(self, body: bytes | None) -> CommittedParty | None:
        """The party in hand as it was committed last; None where it is none of the question `body`.

        Any question is meant where none is given. Raises `BadMessage` for a state that is of no
        use: what it answered is not known, and nothing else is answered.
        """
        if (last := self.store.read()) is None or body not in (None, last[0]):
            return None
        if not self.admission.is_last(hashlib.sha256(last[0]).hexdigest()):
            return None
        try:
            client = self._client(_Asked.decode(last[0]).question, last[1])
            self._party = self._committing(client)
        except BadState as damaged:
            raise BadMessage("lost state", str(damaged)) from damaged
        return self._party

    def _committing(self, client: MaskingClient) -> CommittedParty:
        """The party of `client`, whose every commit is in the receipts before an answer leaves."""

        def commit(state: bytes) -> None:
            self.store.commit(state)
            self.admission.committed(client.progress.commits)

        return CommittedParty(client, commit, self.admission.commits)

    def _client(self, question: Question, state: bytes | None = None) -> MaskingClient:
        """This site's party of the sum that answers `question`: new, or as of a `state`."""
        work = self.work
        summation, encoding = work.summation, work.encoding(question)
        if not isinstance(summation.protocol, Masking):
            raise Refused("secure.protocol: sites on machines of their own send masked sums")
        codec = summation.codec(encoding, question.width(work.setup.algorithm))
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


class _Asked(NamedTuple):
    """A question, lines of the coordinator's ledger that follow `since`, and an invitation."""

    question: Question
    since: bytes
    lines: bytes
    invitation: bytes

    @classmethod
    def decode(cls, body: bytes) -> _Asked:
        """Raises `BadMessage`."""
        reader = Reader(body)
        question = Question.decode(reader.sized())
        return cls(question, reader.take(32), reader.sized(), reader.rest())
