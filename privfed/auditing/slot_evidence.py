"""Statistics of whole epochs, for a client that took part in one unknown slot of each epoch.

The statistics test the ways in which the claim about slots could be wrong: slots that are not
resampled, and slots that can be inferred from the other clients' participation. A claim about
releases holds for any function of the releases. The choice of statistics therefore affects the
power of the test, but not its validity.
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
    """Returns the log-likelihood, up to a constant, of a client with a new slot in each epoch.

    Args:
      of_rounds: the log-likelihood of each round alone, shape `[n, T]`.
      rounds: round numbers, from 0, shape `[T]`.
      drawn: the allocation; all slots of a client belong to one unknown group.

    Returns:
      Shape `[n]`.
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
    """Computes statistics of a client that sends a row of norm one in its slots.

    Attributes:
      drawn: the allocation of slots.
      std: standard deviation of the noise, in clipping norms.
      coefficients: coefficients that correlate the noise over rounds, shape `[bands]`.
    """

    drawn: RandomAllocation
    std: float
    coefficients: Numbers

    def of(self, along: Numbers, aside: Numbers) -> Numbers:
        """Returns four statistics of each repetition; larger values indicate participation.

        The first is the log-likelihood for slots that are resampled each epoch. The second assumes
        the same slot in two successive epochs, the third in all epochs. The fourth is like the
        first, but assumes that a slot with fewer of the other clients is more likely the target's.

        Args:
          along: the projection that moves by one in the target's slots, shape `[n, rounds]`.
          aside: the projection that moves by one per other participating client, shape `[n,
            rounds]`.

        Returns:
          Shape `[n, 1, 4]`.
        """
        each = self._of_rounds(along)
        fewer = (aside.mean(1, keepdims=True) - aside) / self.std**2
        known = self._fresh(each + fewer) - self._fresh(fewer)
        epochs = -(-along.shape[1] // self.drawn.slots)
        numbers = [self._fresh(each), self._same(each, 2), self._same(each, epochs), known]
        return np.stack(numbers, axis=1)[:, None]

    def _of_rounds(self, along: Numbers) -> Numbers:
        """Returns each round's log-likelihood ratio `[n, rounds]`, after decorrelating the noise.

        For noise correlated over rounds, the signal of a round is its column of C.
        """
        rounds = along.shape[1]
        filtered = lfilter(self.coefficients, [1.0], along, axis=1)
        products = lfilter(self.coefficients, [1.0], filtered[:, ::-1], axis=1)[:, ::-1]
        squares = np.cumsum(self.coefficients**2)
        lengths = squares[np.minimum(np.arange(rounds, 0, -1), len(squares)) - 1]
        return np.asarray((products - lengths / 2) / self.std**2)

    def _fresh(self, each: Numbers) -> Numbers:
        """Returns `of_fresh_slots`, `[n]`, of each round's log-likelihood `each` `[n, rounds]`."""
        return of_fresh_slots(each, np.arange(each.shape[1]), self.drawn)

    def _same(self, each: Numbers, together: int) -> Numbers:
        """Returns the log-likelihood `[n]`, up to a constant, for a new slot every few epochs.

        The target keeps a slot for `together` successive epochs. `each` `[n, rounds]` has the
        log-likelihood ratio of each round.
        """
        slots = self.drawn.slots
        rounds = together * slots
        times = -(-each.shape[1] // rounds)
        padded = np.pad(each, ((0, 0), (0, times * rounds - each.shape[1])))
        summed = padded.reshape(len(each), times, together, slots).sum(2)
        return np.asarray(logsumexp(summed, axis=2).sum(1))
