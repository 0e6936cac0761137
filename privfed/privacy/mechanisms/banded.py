"""Banded matrix factorisation: central noise that is correlated over rounds (DP-FTRL)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting.events import CHANGE, ZERO_OUT, Event
from accounting.releases import LARGEST_NOISE, Gaussian
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    Mechanism,
    PublicState,
    require_bounded,
)
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.noised import NoisedMechanism
from privfed.privacy.noise.correlated import Correlated, CorrelatedKeys
from privfed.sampling.cohort import Witness
from privfed.streams import Keys, Streams
from privfed.vector import Layout

if TYPE_CHECKING:
    from torch import Tensor


class Banded(NoisedMechanism):
    """User-level central noise, correlated over rounds so that it cancels in the model.

    Releases x_t + Y_t in round t, x_t the sum of clipped updates, over a constant divisor, where
    Y = C^-1 Z, Z has independent rows N(0, (z C_clip |c|)^2 I), and C is lower-triangular Toeplitz
    with `bands` coefficients c = (1, 1/2, 3/8, 5/16, ...), the first of (1 - x)^(-1/2): the square
    root of the prefix sums that the model is made of. One band is independent noise.

    *What is released*: all of x + Y, which is C^-1 (C x + Z): post-processing of C x + Z.

    *Unit and relation*: one client with all its examples; its contribution in all rounds against
    zero (zero-out); who takes part when may be public, and nothing is amplified.

    *Sensitivity*: by rows clipped to L2 norm `clip`, and a sampler that *enforces* a separation of
    at least `bands` rounds between two participations of a client. Then its columns of C have
    disjoint supports, and its k participations change C x by at most sqrt(k) clip |c| in L2,
    whatever its updates are, also where they depend on earlier releases.

    *Sampler*: cyclic (or full, with one band). T rounds are one Gaussian of multiplier z / sqrt(k),
    k = ceil(T / separation), and so is each beginning of them: the event of a round is
    Separated(separation, Gaussian(z)).

    *Trust*: the server sees the clipped updates and adds the noise. The key that it follows from
    lies under private/, and whoever reads that can take the noise away. Arithmetic is float64 and
    idealised.

    Source: Choquette-Choo et al. 2023 ("(Amplified) banded matrix factorization", sections 3, 4);
    adaptivity: Denisov et al. 2022, Theorem 2.1; the square root: Fichtenberger, Henzinger &
    Upadhyay 2023; its bands: Kalinin & Lampert 2024.
    """

    bands: int = Field(10, ge=1, le=10_000)
    """Over how many rounds the noise is correlated; 1: independent noise."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = deviation of Z over clip |c|; None until calibrated from epsilon."""

    trust: ClassVar[Literal["server"]] = "server"
    arithmetic: ClassVar[str] = "float64, idealised"
    remembers: ClassVar[bool] = True

    def event(self, witness: Witness, exchanges: int) -> Event:
        if witness.relation != ZERO_OUT or witness.separation < self.bands or not witness.sampled:
            raise Refused(
                f"privacy.bands is {self.bands}, but the sampler {witness.sampler!r} keeps "
                f"{witness.separation} rounds between two participations of a client; expected at "
                'least as many as bands: use cohort.sampler = "cyclic" with '
                f"cohort.separation = {self.bands} or more"
            )
        if exchanges > 1:
            raise Refused(
                f"banded noise has no proof for rounds of {exchanges} exchanges; use an objective "
                'and a rule with one (aggregation.passes), or privacy.mechanism = "gaussian"'
            )
        noise = Gaussian(self._noise() / CHANGE[witness.relation])
        return Event(witness.sampled(noise), witness.sampler, witness.relation)

    def with_clip(self, clip: float) -> Mechanism:
        return cast("Mechanism", CentralGaussian(clip=clip))

    def coefficients(self) -> NDArray[np.float64]:
        """C `[bands]`: c_j = c_{j-1} (2 j - 1) / (2 j)."""
        steps = np.arange(1, self.bands)
        return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])

    def noise_on_update(self, size: int = 1) -> float:
        """The deviation of Z, which is that of the first round's noise."""
        return self._noise() * float(np.linalg.norm(self.coefficients()))

    def memory(self, streams: Streams, length: int) -> Correlated:
        return Correlated(self.coefficients(), length, streams)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        return clip_rows(rows, self.clip)

    def encoding(self, state: PublicState) -> Encoding:
        return Encoding(self.clip)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        require_bounded(total, self.clip)
        if not isinstance(keys, CorrelatedKeys):
            raise TypeError("banded noise is correlated over rounds; independent keys are no proof")
        deviation = self.noise_on_update() * total.bound
        noise = torch.from_numpy(deviation * keys.row())
        return ((total.total + noise.to(total.total)) / divisor).float(), state


def prefix_error(coefficients: NDArray[np.float64], rounds: int) -> float:
    """The root mean square noise on prefix sums over `rounds`, against independent noise's.

    |c| |A C^-1|_F / |A|_F, with A the prefix sums, at the same guarantee.
    """
    inverse = np.zeros(rounds)
    inverse[0] = 1 / coefficients[0]
    for t in range(1, rounds):
        reach = min(t, len(coefficients) - 1)
        past = inverse[t - reach : t][::-1]
        inverse[t] = -(coefficients[1 : reach + 1] @ past) / coefficients[0]
    prefix = np.cumsum(inverse)
    weights = np.arange(rounds, 0, -1)
    squared = float((weights * prefix**2).sum() / weights.sum())
    return float(np.linalg.norm(coefficients)) * math.sqrt(squared)
