"""A site's answers to its coordinator: each checked first, and nothing said beside it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.envelope import Code, Envelope, Kind, answered
from privfed.deploy.questions import Question
from privfed.deploy.site_work import SiteWork
from privfed.errors import Refused
from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.identities import Directory
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.expected import Expected
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import decode, encode
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted, Session

_log = logging.getLogger(__name__)
"""A site's own log, which nobody else reads."""


@dataclass
class Agent:
    """The party of one site in the sums of one run.

    `coordinator` is the public key whose messages it takes, `federation` and `run` what these have
    to be bound to. `admit` refuses (by `Refused`) what the site's policy does not allow, before a
    coin is drawn. One question of an exchange is answered; whatever else asks for it, or for an
    earlier round, is refused. What it answers is one of the protocol's messages or a fixed code:
    why it refuses or fails is in its own log alone.
    """

    work: SiteWork
    identity: Ed25519PrivateKey
    directory: Directory
    coordinator: bytes
    federation: bytes
    run: bytes
    admit: Callable[[Question], None]
    _last: tuple[int, int] = field(default=(0, -1), init=False)
    _party: MaskingClient | None = field(default=None, init=False, repr=False)

    def answer(self, data: bytes) -> bytes:
        """The bytes that answer these, whatever they are."""
        try:
            return answered(Code.ANSWERED, self._answer(Envelope.decode(data)))
        except _Unsigned:
            return answered(Code.UNSIGNED)
        except Refused as refused:
            _log.warning("refused: %s", refused)
            return answered(Code.REFUSED)
        except Aborted as malformed:
            _log.warning("not answered: %s", malformed)
            return answered(Code.MALFORMED)
        except Exception:
            _log.exception("failed")
            return answered(Code.FAILED)

    def _answer(self, envelope: Envelope) -> bytes:
        bound = (envelope.federation, envelope.run) == (self.federation, self.run)
        if not bound or not envelope.signed_by(self.coordinator):
            raise _Unsigned
        if envelope.kind == Kind.QUESTION:
            return self._begin(envelope.body)
        if self._party is None:
            raise BadMessage("wrong type", "a step of a sum that was not begun")
        return encode(self._party.handle(decode(envelope.body)))

    def _begin(self, body: bytes) -> bytes:
        """The answer to a new question: its sum begins, and its clients are drawn."""
        reader = Reader(body)
        question, invitation = Question.decode(reader.sized()), decode(reader.rest())
        if (question.round, question.number) <= self._last:
            raise BadMessage("wrong round", "an exchange that was answered, or an earlier one")
        self.admit(question)
        self._last = (question.round, question.number)
        self._party = self._new_party(question)
        return encode(self._party.handle(invitation))

    def _new_party(self, question: Question) -> MaskingClient:
        """This site's party of the sum that answers `question`."""
        work = self.work
        summation, encoding = work.summation, work.encoding(question)
        if not isinstance(summation.protocol, MaskedSums):
            raise Refused("secure.protocol: sites on machines of their own send masked sums")
        codec = summation.codec(encoding, question.width(work.setup.algorithm))
        noise = None
        if isinstance(encoding.noise, Layers):
            session = Session(
                question.round, question.number, question.model_hash, streams=work.streams
            )
            noise = ClientNoise(encoding.noise, session.layer_keys(work.site))
        return MaskingClient(
            work.site,
            self.identity,
            self.directory,
            summation.protocol.within(summation.limits),
            Expected(question.round, question.number, question.model_hash, codec),
            functools.partial(work.row, question),
            summation.limits,
            noise,
        )


class _Unsigned(Exception):
    """A message that the coordinator did not sign, or that is of another federation or run."""
