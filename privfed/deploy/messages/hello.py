"""Which site an address leads to: it signs a greeting, and nothing else rests on addresses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import PublicKey, SiteKey, UnknownKey
from privfed.deploy.messages.envelope import NO_RUN, Envelope, Kind, Reply, read_answer
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.primitives import KEY, SIGNATURE, random_key


@dataclass(frozen=True)
class Greeter:
    """Asks addresses which site of the `federation` they lead to, with the coordinator's `key`.

    Whoever carries a greeting further has the site's answer too: it is then one more address of
    that site, which can lose what is sent to it, as any carrier can.
    """

    federation: FederationFile
    key: Ed25519PrivateKey

    def hello(self) -> bytes:
        """A greeting that no site has answered yet."""
        federation = bytes.fromhex(self.federation.digest())
        envelope = Envelope(federation, NO_RUN, Kind.HELLO, bytes(random_key()))
        return envelope.signed(self.key).encode()

    def site_of(self, hello: bytes, answer: bytes) -> int | None:
        """The number of the site that signed this `answer` to `hello`; None: no site of these."""
        try:
            reply, body = read_answer(answer)
            reader = Reader(body)
            public, signature = PublicKey(reader.take(KEY)), reader.take(SIGNATURE)
            reader.end()
        except (BadMessage, UnknownKey):
            return None
        name = self.federation.name_of(public)
        if reply != Reply.ANSWERED or name is None or not public.verifies(signature, _text(hello)):
            return None
        return self.federation.order.index(name)


def greeting(key: SiteKey, hello: bytes) -> bytes:
    """The body of a site's answer to the frame `hello`: its public key, and its signature."""
    return key.public.raw + key.sign(_text(hello))


def _text(hello: bytes) -> bytes:
    """What a site signs."""
    return b"privfed site" + hashlib.sha256(hello).digest()
