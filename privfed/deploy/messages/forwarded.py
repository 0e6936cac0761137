"""Messages of the server that a region's coordinator forwards to its sites.

The coordinator's envelope contains the server's envelope unchanged, so that a site relies on the
coordinator for the region's session only: which run is declared, which model is trained, and which
rounds are charged, the server has signed. The lines of the ledger that a site lacks are signed by
their hash chain, which must end with the server's lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from accounting import chain
from accounting.errors import LedgerBroken
from privfed.deploy.files.keys import PublicKey
from privfed.deploy.messages.envelope import Envelope, Kind
from privfed.secure.frames import BadMessage, Reader, sized
from privfed.secure.primitives import KEY


@dataclass(frozen=True)
class ForwardedDeclaration:
    """The declaration of `run`, as a region's coordinator sends it: the server's `envelope`."""

    run: bytes
    envelope: bytes

    def encode(self) -> bytes:
        """Returns the bytes from which `forwarded_body` restores the server's declaration."""
        return sized(self.envelope)


def forwarded_body(envelope: Envelope, server: PublicKey) -> bytes:
    """Returns the body that the message would have if the server had sent it.

    A declaration is that of the server. A question has the server's question, and the lines of the
    ledger and the invitation of the region's coordinator. Other messages are returned unchanged.

    Args:
      envelope: a message, signed by the region's coordinator.
      server: the server's public key.

    Raises:
      BadMessage: if the message contains no message of the server of the same federation, run and
        kind, or other lines of the ledger than the server's.
    """
    if envelope.kind not in (Kind.DECLARATION, Kind.QUESTION):
        return envelope.body
    reader = Reader(envelope.body)
    inner = Envelope.decode(reader.sized())
    about = (inner.federation, inner.run, inner.kind)
    if about != (envelope.federation, envelope.run, envelope.kind):
        raise BadMessage("wrong server", "the server's message has another context")
    if not inner.signed_by(server.raw):
        raise BadMessage("wrong server", "the server did not sign the forwarded message")
    if envelope.kind == Kind.DECLARATION:
        reader.end()
        return inner.body
    since, lines, invitation = reader.take(KEY), reader.sized(), reader.rest()
    stated = Reader(inner.body)
    question, after, signed = stated.sized(), stated.take(KEY), stated.sized()
    if _head(since, lines) != _head(after, signed):
        raise BadMessage("wrong ledger", "the lines do not end with those of the server")
    return sized(question) + since + sized(lines) + invitation


def _head(since: bytes, lines: bytes) -> str:
    """Returns the hash of the last of `lines`, which follow the hash `since`."""
    *complete, torn = lines.split(b"\n")
    if torn:
        raise BadMessage("wrong ledger", "a line of the ledger is incomplete")
    try:
        links = chain.following(since.hex(), complete, "the coordinator's ledger")
    except LedgerBroken as error:
        raise BadMessage("wrong ledger", "the lines do not continue the ledger") from error
    return links[-1]["hash"] if links else since.hex()
