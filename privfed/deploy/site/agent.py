"""A site's answers to its coordinator: each checked first, and nothing said beside it."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.files.party_store import PartyStore
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, answered
from privfed.deploy.messages.questions import Question
from privfed.deploy.policies.codes import Declined
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
from privfed.secure.masked.row_messages import Masked
from privfed.secure.summation import Aborted, Session

_log = logging.getLogger(__name__)
"""A site's own log, which nobody else reads."""


@dataclass
class Agent:
    """The party of one site in the sums of one run.

    `coordinator` is the public key whose messages it takes, `federation` and `run` what these have
    to be bound to. A question of another form than the run's is refused first: on some of them work
    fails where somebody was drawn, and nowhere else. `admit` declines what the site's policy does
    not allow (`Declined`), and charges the site's receipts, durably, before a coin is drawn: it
    takes one question of an exchange, by the digest of its bytes, and of no earlier one.

    What the sum's party does is committed to `store` before it is answered, and an agent that was
    killed goes on from there: the same bytes have the same answer, and a row that was asked for and
    did not leave is lost. A masked row leaves when `leaving` says, whoever was drawn. What it
    answers is one of the protocol's messages or a fixed word; why it declines or fails is in its
    own log alone.
    """

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory
    coordinator: bytes
    federation: bytes
    run: bytes
    admit: Callable[[Question, str], None]
    store: PartyStore
    leaving: FixedTime
    _party: CommittedParty | None = field(default=None, init=False, repr=False)

    def answer(self, data: bytes) -> bytes:
        """The bytes that answer these, whatever they are."""
        try:
            return answered(Reply.ANSWERED, self._answer(Envelope.decode(data)))
        except _Unsigned:
            return answered(Reply.UNSIGNED)
        except Declined as declined:
            _log.warning("declined: %s", declined.refusal.reason)
            return answered(Reply.DECLINED, declined.code.encode())
        except Aborted as malformed:
            _log.warning("not answered: %s", malformed)
            return answered(Reply.MALFORMED)
        except Exception:  # whatever it is: its text may quote data
            _log.exception("failed")
            return answered(Reply.FAILED)

    def _answer(self, envelope: Envelope) -> bytes:
        bound = (envelope.federation, envelope.run) == (self.federation, self.run)
        if not bound or not envelope.signed_by(self.coordinator):
            raise _Unsigned
        if envelope.kind == Kind.QUESTION:
            return self._begin(envelope.body)
        party = self._party or self._restored(None)
        if party is None:
            raise BadMessage("wrong type", "a step of a sum that was not begun")
        answer = party.handle(envelope.body)
        if isinstance(decode(answer), Masked):
            self.leaving.wait()
        return answer

    def _begin(self, body: bytes) -> bytes:
        """The answer to a question: of a sum that begins, or of the one in hand, once more."""
        question, invitation = _parts(body)
        if (party := self._restored(body)) is None:
            self.work.refuse_other_form(question)
            self.leaving.begin()
            self.admit(question, hashlib.sha256(body).hexdigest())
            self.store.begin(body)
            self._party = party = CommittedParty(self._client(question), self.store.commit)
        return party.handle(invitation)

    def _restored(self, body: bytes | None) -> CommittedParty | None:
        """The party in hand as it was committed last; None where it is none of the question `body`.

        Any question is meant where none is given. Raises `BadMessage` for a state that is of no
        use: what it answered is not known, and nothing else is answered.
        """
        if (last := self.store.read()) is None or body not in (None, last[0]):
            return None
        question, _ = _parts(last[0])
        try:
            client = self._client(question, last[1])
        except BadState as damaged:
            raise BadMessage("lost state", str(damaged)) from damaged
        self._party = CommittedParty(client, self.store.commit)
        return self._party

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


def _parts(body: bytes) -> tuple[Question, bytes]:
    """A question, and the bytes of the invitation to its sum. Raises `BadMessage`."""
    reader = Reader(body)
    return Question.decode(reader.sized()), reader.rest()


class _Unsigned(Exception):
    """A message that the coordinator did not sign, or that is of another federation or run."""
