"""Words that nobody listed beforehand, read back from sums alone.

A word falls into one of a few public buckets, and adds 1 there for each of its letters' halves: one
of 16 counts at each place. In a bucket that one word fills, the largest count at each place spells
it. Nothing but these sums leaves, so that a name read from them is post-processing: it costs
neither a threshold nor any delta of its own, and any secure sum will do (compare the threshold of
Korolova, Kenthapadi, Mishra & Ntoulas 2009, which a server needs that sees words themselves).

*What it misses*: words of few people, words that meet a more frequent one in their bucket (about
one in `buckets` for each of these), and all letters after the first few: words that begin alike
count together. What is read is checked: a word has to fall into the bucket where it was read, and
further places hold a checksum, so that noise spells a word less than once in 2^16 readings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.vector import Indices

Reals = NDArray[np.float64]
_CHECKS, _SYMBOLS = 4, 16
_CLEAR = 4.0
"""A word's count is read where it is so many deviations of one place's noise, or more."""


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
        written = _cut(word, self.letters)
        bucket, checks = self._hashed(written)
        padded = written.ljust(self.letters, b"\0")
        halves = [half for byte in padded for half in divmod(byte, _SYMBOLS)]
        symbols = np.array([*halves, *checks], dtype=np.int64)
        places = bucket * self.positions + np.arange(self.positions)
        return np.asarray(places * _SYMBOLS + symbols)

    def read(self, sums: Reals, deviation: float) -> dict[str, float]:
        """The words in noised `sums` `[length]`, each with its count, which is unbiased.

        `deviation` is that of the noise on each sum.
        """
        left = sums.reshape(self.buckets, self.positions, _SYMBOLS).copy()
        counts: dict[str, float] = {}
        for bucket in range(self.buckets):
            while (read := self._largest(left[bucket], bucket, deviation)) and read[0] not in counts:
                word, count, symbols = read
                counts[word] = count
                left[bucket, np.arange(self.positions), symbols] -= count
        return counts

    def count_deviation(self, deviation: float) -> float:
        """The deviation of a word's count, where that of each sum is given."""
        return float(deviation / np.sqrt(self.positions))

    def _largest(
        self, sums: Reals, bucket: int, deviation: float
    ) -> tuple[str, float, Indices] | None:
        """What the largest sums `[positions, 16]` spell, where that is a word of this bucket."""
        symbols = sums.argmax(1)
        count = float(sums[np.arange(self.positions), symbols].mean())
        if count < max(_CLEAR * deviation, 0.5):
            return None
        high, low = symbols[: 2 * self.letters].reshape(-1, 2).T
        written = bytes((high * _SYMBOLS + low).tolist()).rstrip(b"\0")
        if self._hashed(written) != (bucket, symbols[2 * self.letters :].tolist()):
            return None
        try:
            return written.decode(), count, symbols
        except UnicodeDecodeError:
            return None

    def _hashed(self, written: bytes) -> tuple[int, list[int]]:
        """The bucket of a word, and its checksum, by a public function of the word alone."""
        digest = hashlib.blake2b(written, digest_size=8 + _CHECKS).digest()
        checks = [byte % _SYMBOLS for byte in digest[8:]]
        return int.from_bytes(digest[:8], "little") % self.buckets, checks


def _cut(word: str, letters: int) -> bytes:
    """The first `letters` bytes of a word, without a letter that is cut in two, and without NUL."""
    written = word.replace("\0", " ").encode("utf-8", "replace")[:letters]
    return written.decode(errors="ignore").encode()
