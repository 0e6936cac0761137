"""Recovers words that were not listed beforehand from noised sums alone.

A word falls into one of a few public buckets. At each of many positions it adds 1 to one of 16
counts: for the two halves of every letter (a byte of UTF-8), for the padding of a short word, and
for a checksum. In a bucket with a single word, the largest count at each position spells it. Only
these sums are released, so a recovered word is post-processing. The method needs neither a
threshold nor a separate delta, and any secure sum can be used. An aggregator that sees the words
themselves needs the threshold of Korolova, Kenthapadi, Mishra & Ntoulas 2009.

*Limits*: the method misses words of few clients, words that share a bucket with a more frequent
one, and all letters after the first few: words with the same beginning count together. Padding and
checksum follow from the word, and a recovered word must agree with both: in fewer than one of 2^32
attempts, noise alone spells a word.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.vector import Indices

Reals = NDArray[np.float64]
_CHECKS, _SYMBOLS = 8, 16
_CLEAR = 4.0
"""A word is read if its mean count over positions is at least this number of standard deviations of
the noise on one count, and at least 0.5."""
_EACH_SIDE, _EACH_OF_TWO = 1.96, 2.25
"""Normal quantiles: of a one-sided bound at 97.5 %, and of each of two joint ones at 98.75 %."""


@dataclass(frozen=True)
class ReadWord:
    """A word that noised sums spell, and its estimated count.

    Attributes:
      word: the word, or its first bytes.
      cut: True if the word has the largest readable length, so that longer words may count with it.
      count: estimated number of rows with the word.
      low: lower end of the count's 95 % interval.
      high: upper end of the count's 95 % interval.
    """

    word: str
    cut: bool
    count: float
    low: float
    high: float


@dataclass(frozen=True)
class Spelling:
    """The encoding of words as counts, by their first bytes.

    Attributes:
      buckets: number of buckets, by a hash of the word.
      letters: number of leading UTF-8 bytes that are encoded.
    """

    buckets: int
    letters: int

    @property
    def positions(self) -> int:
        """The number of positions, at each of which a word adds 1 to one of 16 counts."""
        return 2 * self.letters + _CHECKS

    @property
    def length(self) -> int:
        """The number of counts in all buckets."""
        return self.buckets * self.positions * _SYMBOLS

    def places(self, word: str) -> Indices:
        """Returns the indices of the counts to which `word` adds 1, shape `[positions]`."""
        bucket, symbols = self._written(word.encode("utf-8", "replace")[: self.letters])
        return np.asarray(
            (bucket * self.positions + np.arange(self.positions)) * _SYMBOLS + symbols
        )

    def read(self, sums: Reals, std: float) -> list[ReadWord]:
        """Returns the words that noised sums spell, with their estimated counts.

        Args:
          sums: the noised sums, shape `[length]`.
          std: standard deviation of the noise on each sum.
        """
        words: list[ReadWord] = []
        for bucket, of_bucket in enumerate(sums.reshape(self.buckets, self.positions, _SYMBOLS)):
            left, written = of_bucket.copy(), list[bytes]()
            while (largest := self._largest(left, bucket, std)) not in (None, *written):
                assert largest is not None
                written.append(largest)
                at = np.arange(self.positions), self._written(largest)[1]
                left[at] -= left[at][-_CHECKS:].mean()
            words += self._counted(of_bucket, written, std)
        return words

    def _largest(self, sums: Reals, bucket: int, std: float) -> bytes | None:
        """Returns the word whose symbol at each position is the one with the largest sum.

        `sums` `[positions, 16]` are those of `bucket`. None if the mean of the largest sums is
        below `_CLEAR` standard deviations of the noise or below 0.5, or if they spell no word of
        this bucket with matching padding and checksum.
        """
        symbols = sums.argmax(1)
        if sums.max(1).mean() < max(_CLEAR * std, 0.5):
            return None
        high, low = symbols[: 2 * self.letters].reshape(-1, 2).T
        letters = bytes((high * _SYMBOLS + low).tolist())
        for length in range(1, self.letters + 1):
            known, agreeing = self._written(letters[:length])
            if known == bucket and bool((agreeing == symbols).all()):
                return letters[:length]
        return None

    def _counted(self, sums: Reals, written: Sequence[bytes], std: float) -> list[ReadWord]:
        """Returns a bucket's recovered words `written`, counted in its `sums` `[positions, 16]`.

        A word is counted at the positions where no other recovered word has its symbol, or at all
        positions if there are none. Words that were not recovered can only add to these counts, by
        at most the bucket's count minus the recovered words' counts. The interval of a count is
        therefore extended downwards by that much. The symbols of the checksum are effectively
        random, so such words add least there; the count is taken from the checksum.
        """
        symbols = np.array([self._written(word)[1] for word in written]).reshape(-1, self.positions)
        counts, bounds = [], []
        for number, written_as in enumerate(symbols):
            alone = ~(np.delete(symbols, number, axis=0) == written_as).any(0)
            alone = alone if alone.any() else np.ones_like(alone)
            held = sums[np.arange(self.positions), written_as]
            checks = held[-_CHECKS:][alone[-_CHECKS:]]
            counts.append(float((checks if len(checks) else held[alone]).mean()))
            bounds.append((float(held[alone].mean()), std / math.sqrt(alone.sum())))
        spread = std * math.sqrt(_SYMBOLS / self.positions)
        others = max(float(sums.sum(1).mean()) - sum(counts) + _EACH_OF_TWO * spread, 0.0)
        return [
            ReadWord(
                word.decode(errors="ignore"),
                len(word) == self.letters,
                min(max(count, 0.0), bound + _EACH_SIDE * each),
                min(max(bound - _EACH_OF_TWO * each - others, 0.0), max(count, 0.0)),
                bound + _EACH_SIDE * each,
            )
            for word, count, (bound, each) in zip(written, counts, bounds, strict=True)
        ]

    def _written(self, word: bytes) -> tuple[int, Indices]:
        """Returns a word's bucket, and its symbols from 0 to 15, `[positions]`.

        Each byte has two symbols; those of padding and checksum follow.
        """
        digest = hashlib.shake_256(word).digest(8 + self.positions)
        halves = [half for byte in word for half in divmod(byte, _SYMBOLS)]
        rest = [byte % _SYMBOLS for byte in digest[8 + len(halves) :]]
        return int.from_bytes(digest[:8], "little") % self.buckets, np.array([*halves, *rest])
