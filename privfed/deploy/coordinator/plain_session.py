"""A sum over sites whose sums the server sees: it adds them up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privfed.deploy.files.keys import PublicKey
from privfed.deploy.messages.plain_sum import SealedSums
from privfed.deploy.messages.questions import Question
from privfed.privacy.mechanism import BoundedSum
from privfed.round.algorithm import Algorithm
from privfed.secure.culprit import Culprit
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory
from privfed.secure.primitives import KeyPair
from privfed.secure.summation import Aborted


@dataclass
class PlainSession:
    """The total of what sites of a `directory` send, sealed to the `sealing` key.

    A site that is not there has no client in it.

    Where sites add no noise of their own, a client moves the total by the mechanism's bound at
    most: each of them has a row at one site, or parts of it at several.
    """

    algorithm: Algorithm
    directory: Directory
    question: Question
    run: bytes
    sealing: KeyPair
    _sums: dict[int, Tensor] = field(default_factory=dict, init=False)

    @property
    def invitation(self) -> bytes:
        """Nothing: the question is all."""
        return b""

    @property
    def awaits_rows(self) -> bool:
        """Whether sums are to come: at first."""
        return not self._sums

    def handle(self, site: int, answer: bytes) -> None:
        """Take the sum of a site. Raises `BadMessage` for what is none."""
        if site in self._sums:
            raise BadMessage("repeated", f"a second sum of site {site}")
        sums, width = SealedSums(self.run, self.question), self.question.width(self.algorithm)
        self._sums[site] = sums.open(answer, width, PublicKey(self.directory[site]), self.sealing)

    def proceed(self) -> Mapping[int, bytes]:
        """No message: a sum is sent at once."""
        return {}

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Nobody: there is nothing to prove."""
        return ()

    def total(self) -> BoundedSum:
        """The sum over all sites that sent one. Raises `Aborted` where none did."""
        if not self._sums:
            raise Aborted("no site sent a sum")
        encoding = self.algorithm.mechanism.encoding(self.question.state)
        total = torch.stack([self._sums[site] for site in sorted(self._sums)]).sum(0)
        bound = math.inf if encoding.site_deviation else encoding.bound
        return BoundedSum(total, bound, len(self._sums))
