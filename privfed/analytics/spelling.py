"""Words that nobody listed beforehand, read back from sums alone.

A word falls into one of a few public buckets, and adds 1 there to one of 16 counts at each of many
positions: for the two halves of every letter, for what fills up a short word, and for a checksum.
In a bucket that one word fills, the largest count at each position spells it. Nothing but these
sums leaves, so that a name read from them is post-processing: it costs neither a threshold nor any
delta of its own, and any secure sum will do (compare the threshold of Korolova, Kenthapadi, Mishra
& Ntoulas 2009, which whoever sees the words themselves needs).

*What it misses*: words of few people, words that meet a more frequent one in their bucket, and
all letters after the first few: words that begin alike count together. Filling and checksum follow
from the word, and what is read has to agree with all of them: noise spells a word less than once in
2^32 readings.
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
"""A word's count is read where it is so many deviations of one position's noise, or more."""
_EACH_SIDE, _EACH_OF_TWO = 1.96, 2.25
"""Deviations that bound from one side but for 2.5 %, and each of two bounds for 1.25 %."""


@dataclass(frozen=True)
class ReadWord:
    """A word, or its first letters where it is `cut`; its count, in an interval of 95 %."""

    word: str
    cut: bool
    count: float
    low: float
    high: float


@dataclass(frozen=True)
class Spelling:
    """How words are written into `buckets`, by their first `letters` bytes of UTF-8."""

    buckets: int
    letters: int

    @property
    def positions(self) -> int:
        """How many counts a word adds 1 to."""
        return 2 * self.letters + _CHECKS

    @property
    def length(self) -> int:
        """How many counts there are."""
        return self.buckets * self.positions * _SYMBOLS

    def places(self, word: str) -> Indices:
        """The counts that `word` adds 1 to `[positions]`."""
        bucket, symbols = self._written(word.encode("utf-8", "replace")[: self.letters])
        return np.asarray(
            (bucket * self.positions + np.arange(self.positions)) * _SYMBOLS + symbols
        )

    def read(self, sums: Reals, deviation: float) -> list[ReadWord]:
        """The words in noised `sums` `[length]`, of which each has noise of this `deviation`."""
        words: list[ReadWord] = []
        for bucket, of_bucket in enumerate(sums.reshape(self.buckets, self.positions, _SYMBOLS)):
            left, written = of_bucket.copy(), list[bytes]()
            while (largest := self._largest(left, bucket, deviation)) not in (None, *written):
                assert largest is not None
                written.append(largest)
                at = np.arange(self.positions), self._written(largest)[1]
                left[at] -= left[at][-_CHECKS:].mean()
            words += self._counted(of_bucket, written, deviation)
        return words

    def _largest(self, sums: Reals, bucket: int, deviation: float) -> bytes | None:
        """What the largest sums `[positions, 16]` spell, where that is a word of this bucket."""
        symbols = sums.argmax(1)
        if sums.max(1).mean() < max(_CLEAR * deviation, 0.5):
            return None
        high, low = symbols[: 2 * self.letters].reshape(-1, 2).T
        letters = bytes((high * _SYMBOLS + low).tolist())
        for length in range(1, self.letters + 1):
            known, agreeing = self._written(letters[:length])
            if known == bucket and bool((agreeing == symbols).all()):
                return letters[:length]
        return None

    def _counted(self, sums: Reals, written: Sequence[bytes], deviation: float) -> list[ReadWord]:
        """The counts of words in a bucket's `sums`, at positions that none shares with another.

        Words that were not read can only add there, and no more than the bucket holds beside those
        that were: so an interval goes down by that much. The checksum, whose symbols are as good as
        random, is where they add least: the count is taken from there.
        """
        symbols = np.array([self._written(word)[1] for word in written]).reshape(-1, self.positions)
        counts, bounds = [], []
        for number, written_as in enumerate(symbols):
            alone = ~(np.delete(symbols, number, axis=0) == written_as).any(0)
            alone = alone if alone.any() else np.ones_like(alone)
            held = sums[np.arange(self.positions), written_as]
            checks = held[-_CHECKS:][alone[-_CHECKS:]]
            counts.append(float((checks if len(checks) else held[alone]).mean()))
            bounds.append((float(held[alone].mean()), deviation / math.sqrt(alone.sum())))
        spread = deviation * math.sqrt(_SYMBOLS / self.positions)
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
        """The bucket of a word, and its symbols `[positions]`: of its letters, and of its hash."""
        digest = hashlib.shake_256(word).digest(8 + self.positions)
        halves = [half for byte in word for half in divmod(byte, _SYMBOLS)]
        rest = [byte % _SYMBOLS for byte in digest[8 + len(halves) :]]
        return int.from_bytes(digest[:8], "little") % self.buckets, np.array([*halves, *rest])
