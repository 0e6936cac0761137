"""A masked sum over sites, as its server opens it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from privfed.deploy.messages.questions import Question
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.noise.shares import Layers
from privfed.round.algorithm import Algorithm
from privfed.secure.culprit import Culprit
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.identities import Directory
from privfed.secure.masked.expected import Expected, Masking
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import random_key

_STEPS = 4
"""Steps of the protocol after the invitation."""


@dataclass
class MaskedSession:
    """How rows become whole numbers in a sum, and its server."""

    codec: Codec
    server: MaskingServer
    awaits_rows: bool = field(default=False, init=False)
    """Whether sites were sent their inboxes, which they answer by their rows."""
    _steps: int = field(default=0, init=False)

    @classmethod
    def begun(
        cls,
        algorithm: Algorithm,
        summation: EncodedSummation,
        directory: Directory,
        question: Question,
    ) -> MaskedSession:
        """A new session, over the sites of `directory`, of the sum that answers `question`."""
        protocol, limits = summation.protocol, summation.limits
        if not isinstance(protocol, Masking):
            raise TypeError("sites on machines of their own send masked sums")
        encoding = algorithm.mechanism.encoding(question.state)
        codec = summation.codec(encoding, question.width(algorithm))
        layers = encoding.noise if isinstance(encoding.noise, Layers) else None
        policy = protocol.within(limits)
        expected = Expected(question.round, question.number, question.model_hash, codec)
        invitation = expected.invitation(bytes(random_key()), policy, limits, layers)
        sites, seed = tuple(sorted(directory)), bytes(random_key())
        server = MaskingServer(invitation, sites, directory, policy, seed, limits, layers)
        return cls(codec, server)

    @property
    def invitation(self) -> bytes:
        """What every site is invited by."""
        return encode(self.server.invitation)

    def handle(self, site: int, answer: bytes) -> None:
        """Take a site's next message. Raises `Aborted` for one that counts as dropped."""
        self.server.handle(site, decode(answer))

    def proceed(self) -> Mapping[int, bytes]:
        """The next messages to sites, none after the last. Raises `Aborted`."""
        if self._steps == _STEPS:
            return {}
        self._steps += 1
        messages = self.server.proceed()
        self.awaits_rows = any(isinstance(message, Inbox) for message in messages.values())
        return {site: encode(message) for site, message in messages.items()}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Which sites were proved to lie so far."""
        return self.server.culprits

    def total(self) -> BoundedSum:
        """The sum, opened. Raises `Aborted`."""
        words, survivors = self.server.total()
        total = self.codec.decode(self.codec.unwrap(words.astype("uint64")))
        return BoundedSum(torch.from_numpy(total), self.codec.bound * self.codec.step, survivors)
