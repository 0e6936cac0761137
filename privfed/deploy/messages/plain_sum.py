"""A sum that its coordinator sees, and nobody on its way: signed by the site, and sealed.

Its numbers are float64, little-endian. The coordinator declares an X25519 key; a site seals to it
with a key of its own for each sum (ECIES, by `privfed.secure.primitives`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.deploy.files.keys import PublicKey, SiteKey
from privfed.deploy.messages.questions import Question
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.primitives import KEY, SIGNATURE, KeyPair, LowOrder, derive, random_key, unseal
from privfed.secure.primitives import seal as seal_text

_TYPE = np.dtype("<f8")
_PURPOSE = b"privfed plain sum"


@dataclass(frozen=True)
class SealedSums:
    """The sums that answer a `question` of a `run` (the hash of its ledger's first line)."""

    run: bytes
    question: Question

    def seal(self, total: Tensor, key: SiteKey, coordinator: bytes) -> bytes:
        """A site's sum `[m]` for the coordinator alone. Raises `BadMessage` for a bad key."""
        plain = total.cpu().numpy().astype(_TYPE).tobytes()
        once = KeyPair(random_key())
        try:
            secret = once.agree(coordinator)
        except LowOrder as error:
            raise BadMessage("wrong key", "a coordinator's key of low order") from error
        text = key.sign(self._signed(plain)) + plain
        sealing = derive(secret, self._about, _PURPOSE)
        return once.public + seal_text(sealing, text, once.public)

    def open(self, data: bytes, length: int, site: PublicKey, coordinator: KeyPair) -> Tensor:
        """The sum `[length]` of a `site`. Raises `BadMessage` for what it did not sign."""
        reader = Reader(data)
        once, sealed = reader.take(KEY), reader.rest()
        try:
            opening = derive(coordinator.agree(once), self._about, _PURPOSE)
        except LowOrder as error:
            raise BadMessage("wrong key", "a sum under a key of low order") from error
        text = unseal(opening, sealed, once)
        if text is None or len(text) != SIGNATURE + length * _TYPE.itemsize:
            raise BadMessage("wrong row", "bytes that are no sum for this question")
        signature, plain = text[:SIGNATURE], text[SIGNATURE:]
        if not site.verifies(signature, self._signed(plain)):
            raise BadMessage("wrong signature", "a sum that its site did not sign")
        total = torch.from_numpy(np.frombuffer(plain, _TYPE).astype(np.float64))
        if not bool(total.isfinite().all()):
            raise BadMessage("wrong row", "a sum that is not finite")
        return total

    @property
    def _about(self) -> bytes:
        return hashlib.sha256(self.run + self.question.encode()).digest()

    def _signed(self, plain: bytes) -> bytes:
        return _PURPOSE + self._about + hashlib.sha256(plain).digest()
