"""The server's side of one sum over sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from privfed.deploy.files.keys import PublicKey
from privfed.deploy.messages.questions import Question, SealedSums
from privfed.deploy.messages.reported import read_report
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.noise.shares import Layers
from privfed.round.algorithm import Algorithm
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.policy import Expected, Masking
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import KeyPair, random_key
from privfed.secure.summation import Aborted, Culprit

_STEPS = 4
"""The number of steps of the protocol after the invitation."""


@dataclass
class MaskedSession:
    """The coordinator's side of a masked sum: the protocol's `server`, and the `codec` of rows."""

    codec: Codec
    server: MaskingServer
    awaits_rows: bool = field(default=False, init=False)
    """Whether the sites' next messages are their rows."""
    _steps: int = field(default=0, init=False)

    @classmethod
    def start_session(
        cls,
        algorithm: Algorithm,
        summation: EncodedSummation,
        directory: Directory,
        question: Question,
    ) -> Self:
        """Returns the session of the masked sum for `question`, over the parties of `directory`.

        Raises `TypeError` if the protocol of `summation` is not masking.
        """
        protocol, limits = summation.protocol, summation.limits
        if not isinstance(protocol, Masking):
            raise TypeError("sites on their own machines send masked sums")
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
        """The invitation to the masked sum, which every site receives with the question."""
        return encode(self.server.invitation)

    def handle(self, site: int, answer: bytes) -> None:
        """Accepts a site's answer to its latest message.

        Raises:
          Aborted: if the answer is invalid; the site then counts as a dropout.
        """
        self.server.handle(site, decode(answer))

    def proceed(self) -> Mapping[int, bytes]:
        """Returns the next messages, by site; empty after the last step.

        Raises:
          Aborted: if the sum cannot continue, for example with too few surviving sites.
        """
        if self._steps == _STEPS:
            return {}
        self._steps += 1
        messages = self.server.proceed()
        self.awaits_rows = any(isinstance(message, Inbox) for message in messages.values())
        return {site: encode(message) for site, message in messages.items()}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The sites identified as Byzantine so far."""
        return self.server.culprits

    def integers(self) -> tuple[Integers, int]:
        """Returns the opened sum as integers, and the number of surviving parties.

        Raises `Aborted` if it cannot be opened.
        """
        words, survivors = self.server.total()
        return self.codec.unwrap(words.astype("uint64")), survivors

    def total(self) -> BoundedSum:
        """Returns the opened sum. Raises `Aborted` if it cannot be opened."""
        integers, survivors = self.integers()
        total = torch.from_numpy(self.codec.decode(integers))
        return BoundedSum(total, self.codec.bound * self.codec.step, survivors)


@dataclass
class RegionsSession(MaskedSession):
    """The server's side of a sum over regions, whose coordinators report Byzantine sites.

    A coordinator that deviates itself is a dropout, but is not recorded: its region would be lost.
    """

    regions: Mapping[int, Directory] = field(default_factory=dict)
    """The public keys of the sites of each region, by the regions' numbers."""
    _proved: dict[int, Culprit] = field(default_factory=dict, init=False)

    def handle(self, site: int, answer: bytes) -> None:
        """Accepts the answer of the coordinator of region `site`, as `MaskedSession` does."""
        sum = self.server.invitation
        message, proved = read_report(answer, sum.round, sum.exchange, self.regions[site])
        super().handle(site, message)
        self._proved |= {culprit.client: culprit for culprit in proved}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The sites that were proved Byzantine in their regions' sums."""
        return tuple(culprit for _, culprit in sorted(self._proved.items()))


@dataclass
class PlainSession:
    """A total of sites' sums. The coordinator sees each sum: sites seal it to the key `sealing`.

    Only clients at the sites that sent a sum are in the total. If sites add no noise, one client
    changes the total by at most the mechanism's bound, even if its row is split over several sites.
    If they add noise, the bound of the total is stated as infinite.
    """

    algorithm: Algorithm
    directory: Directory
    question: Question
    run: bytes
    sealing: KeyPair
    _sums: dict[int, Tensor] = field(default_factory=dict, init=False)

    @property
    def invitation(self) -> bytes:
        """Empty, since a plain sum needs nothing in addition to the question."""
        return b""

    @property
    def awaits_rows(self) -> bool:
        """Whether no site's sum has been accepted yet."""
        return not self._sums

    def handle(self, site: int, answer: bytes) -> None:
        """Accepts the sum of a site. Raises `BadMessage` for an invalid or a second sum."""
        if site in self._sums:
            raise BadMessage("repeated", f"a second sum of site {site}")
        sums, width = SealedSums(self.run, self.question), self.question.width(self.algorithm)
        self._sums[site] = sums.open(answer, width, PublicKey(self.directory[site]), self.sealing)

    def proceed(self) -> Mapping[int, bytes]:
        """Returns an empty mapping: a plain sum has no further steps."""
        return {}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Empty, since plain sums identify no Byzantine site."""
        return ()

    def total(self) -> BoundedSum:
        """Returns the sum over all sites that sent one. Raises `Aborted` if none did."""
        if not self._sums:
            raise Aborted("no site sent a sum")
        encoding = self.algorithm.mechanism.encoding(self.question.state)
        total = torch.stack([self._sums[site] for site in sorted(self._sums)]).sum(0)
        bound = math.inf if encoding.site_std else encoding.bound
        return BoundedSum(total, bound, len(self._sums))


SumSession = MaskedSession | PlainSession
"""The server's side of one sum, for any protocol."""


def start_session(
    algorithm: Algorithm,
    directory: Directory,
    question: Question,
    run: bytes,
    sealing: KeyPair,
    regions: Mapping[int, Directory] | None = None,
) -> SumSession:
    """Returns the server's session of the sum for a `question`, over the parties of `directory`.

    The sum is masked if the summation of `algorithm` is encoded; otherwise it is plain.

    Args:
      algorithm: the algorithm of the question's round.
      directory: public key of each site, or of each region's coordinator.
      question: the exchange to sum.
      run: hash of the ledger's first line.
      sealing: the coordinator's key, to which plain sums are sealed.
      regions: public keys of the sites of each region, by number; None without regions.
    """
    if isinstance(algorithm.summation, EncodedSummation):
        facts = algorithm, algorithm.summation.of_top, directory, question
        if not regions:
            return MaskedSession.start_session(*facts)
        return replace(RegionsSession.start_session(*facts), regions=regions)
    return PlainSession(algorithm, directory, question, run, sealing)
