"""One masked sum over sites, as its server opens it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privfed.deploy.messages.questions import Question
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.noise.shares import Layers
from privfed.round.algorithm import Algorithm
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.identities import Directory
from privfed.secure.masked.expected import Expected, Masking
from privfed.secure.masked.messages import encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import random_key


@dataclass(frozen=True)
class SumSession:
    """How rows become whole numbers in a sum, and its server."""

    codec: Codec
    server: MaskingServer

    @classmethod
    def begun(cls, algorithm: Algorithm, directory: Directory, question: Question) -> SumSession:
        """A new session, over the sites of `directory`, of the sum that answers `question`."""
        summation = algorithm.summation
        if not isinstance(summation, EncodedSummation) or not isinstance(
            summation.protocol, Masking
        ):
            raise TypeError("sites on machines of their own send masked sums")
        limits = summation.limits
        encoding = algorithm.mechanism.encoding(question.state)
        codec = summation.codec(encoding, question.width(algorithm))
        layers = encoding.noise if isinstance(encoding.noise, Layers) else None
        policy = summation.protocol.within(limits)
        expected = Expected(question.round, question.number, question.model_hash, codec)
        invitation = expected.invitation(bytes(random_key()), policy, limits, layers)
        sites, seed = tuple(sorted(directory)), bytes(random_key())
        server = MaskingServer(invitation, sites, directory, policy, seed, limits, layers)
        return cls(codec, server)

    @property
    def invitation(self) -> bytes:
        """What every site is invited by."""
        return encode(self.server.invitation)

    def total(self) -> BoundedSum:
        """The sum, opened. Raises `Aborted`."""
        words, survivors = self.server.total()
        total = self.codec.decode(self.codec.unwrap(words.astype("uint64")))
        return BoundedSum(torch.from_numpy(total), self.codec.bound * self.codec.step, survivors)
