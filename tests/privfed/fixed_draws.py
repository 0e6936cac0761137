"""Fixed words in place of random ones, so that a rate is measured instead of estimated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from unittest import mock

import numpy as np

from privfed.core.streams import Keys

SAMPLE = np.random.default_rng(0).integers(0, 2**64, 40, dtype=np.uint64)


@contextlib.contextmanager
def dealt(*draws: object) -> Iterator[None]:
    """Replaces the draws of all streams by `draws`, in order; the last one repeats for ever.

    Each draw is one word for all clients, or an array that broadcasts to the requested shape.
    """
    left = [np.asarray(draw, dtype=np.uint64) for draw in draws]

    def deal(*shape: int) -> np.ndarray:
        words = left.pop(0) if len(left) > 1 else left[0]
        return np.broadcast_to(words, shape).copy()

    with (
        mock.patch.object(Keys, "bits", lambda _, count: deal(count)),
        mock.patch.object(
            Keys, "per_client", lambda self, count, salt=0: deal(len(self.clients), count)
        ),
    ):
        yield


def measure(falls: Callable[[], object]) -> Fraction:
    """Returns the exact fraction of all 2^64 words at which the Bernoulli draws `falls` are True.

    Raises `AssertionError` if draws from the same word differ, or if the words are not those below
    a threshold.
    """

    def true(word: int) -> bool:
        with dealt(word):
            draws = np.unique(np.asarray(falls(), dtype=bool))
        assert len(draws) == 1, "draws of one rate differ at the same word"
        return bool(draws[0])

    low, high = 0, 2**64
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if true(middle) else (low, middle)
    for word in (0, 2**64 - 1, *SAMPLE.tolist()):
        assert true(word) == (word < low), "a rate is the words below one of them"
    return Fraction(low, 2**64)


def assert_rate(falls: Callable[[], object], rate: float) -> None:
    """Asserts that the exact probability of the draws is at most `rate`, and less by under
    2^-53.
    """
    short = Fraction(rate) - measure(falls)
    assert short >= 0, f"a draw of rate {rate!r} is True more often, by {float(-short):g}"
    assert short < Fraction(1, 2**53), (
        f"a draw of rate {rate!r} is True {float(short):g} too rarely"
    )
