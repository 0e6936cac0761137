"""A site's answers to its coordinator: each checked first, and nothing said beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from privfed.deploy.files.keys import PublicKey, SiteKey
from privfed.deploy.messages.declaration import Declaration
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, answered
from privfed.deploy.messages.hello import greeting
from privfed.deploy.policies.codes import Declined
from privfed.deploy.site.run_party import RunParty
from privfed.secure.frames import BadMessage
from privfed.secure.summation import Aborted

_log = logging.getLogger(__name__)
"""A site's own log, which nobody else reads."""


@dataclass
class Agent:
    """A site with `key` in a `federation` (the hash of its file), whose `coordinator` it answers.

    `join` makes its part in a run that is declared, or raises `Declined`; `parties` are those in
    runs that were declared before, by their hashes: `at_once` of them at most. What the site
    answers is one of the protocol's messages or a fixed word; why it declines or fails is in its
    own log alone.
    """

    key: SiteKey
    coordinator: PublicKey
    federation: bytes
    join: Callable[[Declaration], RunParty]
    parties: dict[bytes, RunParty]
    at_once: int

    def answer(self, data: bytes) -> bytes:
        """The bytes that answer these, whatever they are."""
        try:
            return answered(Reply.ANSWERED, self._answer(Envelope.decode(data), data))
        except _Unsigned:
            return answered(Reply.UNSIGNED)
        except Declined as declined:
            _log.warning("declined: %s: %s", declined.code, declined.refusal.reason)
            return answered(Reply.DECLINED, declined.code.encode())
        except Aborted as malformed:
            _log.warning("not answered: %s", malformed)
            return answered(Reply.MALFORMED)
        except Exception:  # whatever it is: its text may quote data
            _log.exception("failed")
            return answered(Reply.FAILED)

    def _answer(self, envelope: Envelope, data: bytes) -> bytes:
        signed = envelope.signed_by(self.coordinator.raw)
        if envelope.federation != self.federation or not signed:
            raise _Unsigned
        match envelope.kind:
            case Kind.HELLO:
                return greeting(self.key, data)
            case Kind.DECLARATION:
                return self._joined(envelope).head
            case Kind.QUESTION:
                return self._party(envelope.run).question(envelope.body)
            case Kind.STEP:
                return self._party(envelope.run).step(envelope.body)

    def _joined(self, envelope: Envelope) -> RunParty:
        """The site's part in the run that is declared, from now on."""
        declaration = Declaration.decode(envelope.body)
        if declaration.run != envelope.run:
            raise BadMessage("wrong run", "a declaration of another run")
        last = self.parties.get(envelope.run)
        if last is not None and last.declaration == declaration.encode():
            return last
        party = self.join(declaration)
        self.parties.pop(envelope.run, None)
        while len(self.parties) >= self.at_once:
            del self.parties[next(iter(self.parties))]
        self.parties[envelope.run] = party
        return party

    def _party(self, run: bytes) -> RunParty:
        """The site's part in `run`. Raises `BadMessage` where it has to be declared first."""
        if run not in self.parties:
            raise BadMessage("wrong run", "a run that was not declared")
        return self.parties[run]


class _Unsigned(Exception):
    """A message that the coordinator did not sign, or that is of another federation."""
