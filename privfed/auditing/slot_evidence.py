"""What releases of whole epochs say about a client who took part in a slot of each, unknown which.

Slots are tested against what would break their claim: slots that are not fresh, and slots that can
be read from when others take part. What a claim says about releases holds for any function of them,
so that how these numbers are made decides what is noticed, and not whether it is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import logsumexp

from accounting.over_rounds import RandomAllocation

Numbers = NDArray[np.float64]


def of_fresh_slots(
    of_rounds: Numbers, rounds: NDArray[np.int64], drawn: RandomAllocation
) -> Numbers:
    """The log likelihood `[n]` of one who took part in a fresh slot of each epoch, to a constant.

    `of_rounds` `[n, T]` is what each of the `rounds` `[T]`, counted from 0, says by itself. The
    slots are those of one group, which may be any.
    """
    epoch, place = np.divmod(rounds, drawn.slots)
    of_groups = []
    for group in np.unique(place % drawn.groups):
        in_group = place % drawn.groups == group
        epochs = [of_rounds[:, in_group & (epoch == e)] for e in np.unique(epoch[in_group])]
        of_groups.append(sum(logsumexp(slots, axis=1) for slots in epochs))
    return np.asarray(logsumexp(np.stack(of_groups), axis=0))


@dataclass(frozen=True)
class SlotEvidence:
    """How a client of norm one in its slots shows, where noise is of `deviation` in clips.

    `coefficients` `[bands]` are those by which noise is correlated over rounds.
    """

    drawn: RandomAllocation
    deviation: float
    coefficients: Numbers

    def of(self, along: Numbers, aside: Numbers) -> Numbers:
        """Four numbers of each release `[n, 1, 4]`, the more, the likelier the client took part.

        `along` `[n, rounds]` is what moves by one in the client's slots, and `aside` what moves by
        one for each other client who takes part. The first number is the likelihood's logarithm
        where slots are fresh, the next two where two epochs in a row have the same, or all, and the
        last where a slot with fewer of the others is likelier the client's.
        """
        each = self._of_rounds(along)
        fewer = (aside.mean(1, keepdims=True) - aside) / self.deviation**2
        known = self._fresh(each + fewer) - self._fresh(fewer)
        epochs = -(-along.shape[1] // self.drawn.slots)
        numbers = [self._fresh(each), self._same(each, 2), self._same(each, epochs), known]
        return np.stack(numbers, axis=1)[:, None]

    def _of_rounds(self, along: Numbers) -> Numbers:
        """The log likelihood ratio of each round by itself `[n, rounds]`, noise made independent.

        For noise of correlated rounds, of the round's column of C.
        """
        rounds = along.shape[1]
        filtered = lfilter(self.coefficients, [1.0], along, axis=1)
        products = lfilter(self.coefficients, [1.0], filtered[:, ::-1], axis=1)[:, ::-1]
        squares = np.cumsum(self.coefficients**2)
        lengths = squares[np.minimum(np.arange(rounds, 0, -1), len(squares)) - 1]
        return np.asarray((products - lengths / 2) / self.deviation**2)

    def _fresh(self, each: Numbers) -> Numbers:
        """A slot of its own in each epoch."""
        return of_fresh_slots(each, np.arange(each.shape[1]), self.drawn)

    def _same(self, each: Numbers, together: int) -> Numbers:
        """The same slot in as many epochs in a row, and then another."""
        slots = self.drawn.slots
        rounds = together * slots
        times = -(-each.shape[1] // rounds)
        padded = np.pad(each, ((0, 0), (0, times * rounds - each.shape[1])))
        summed = padded.reshape(len(each), times, together, slots).sum(2)
        return np.asarray(logsumexp(summed, axis=2).sum(1))
