"""Banded matrix factorisation: central noise correlated over rounds (DP-FTRL)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from accounting.events import CHANGE, ZERO_OUT, Event
from accounting.noises import LARGEST_NOISE, Gaussian
from privfed.core.deferred import Tensor
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import (
    BoundedRows,
    Encoding,
    PublicState,
)
from privfed.privacy.mechanisms.central_gaussian import CorrelatedMechanism, refuse_exchanges
from privfed.privacy.noise.correlated import (
    Correlated,
    CorrelatedOnGrid,
    CorrelatedReals,
    refuse_overflow,
)
from privfed.privacy.noise.factorization import UNIT, optimal_bands, prefix_noise, square_root
from privfed.privacy.noise.gaussian_on_grid import FINENESS, grid_of, refuse_inexact
from privfed.sampling.cohort import Witness


class Banded(CorrelatedMechanism):
    """User-level central noise, correlated over rounds so that it partly cancels in the model.

    Releases x_t + Y_t in round t, x_t the sum of clipped updates, over a constant divisor, where Y
    = C^-1 Z, Z has independent rows N(0, (z clip |c|)^2 I), and C is lower-triangular Toeplitz
    with `bands` coefficients c, c_0 = 1. The coefficients are optimised when the run starts, to
    minimise the noise on sums of releases, and hence on the model, over its rounds. The guarantee
    holds for any coefficients and any number of rounds. One band is independent noise.

    *Releases*: all of x + Y, which is C^-1 (C x + Z): post-processing of C x + Z.

    *Unit and adjacency*: one client with all its examples; its contribution in all rounds against
    zero (zero-out). Participation may be public, or a secret slot.

    *Sensitivity*: rows are clipped to L2 norm `clip`, and the sampler *enforces* a separation of at
    least `bands` rounds between any two rounds in which a client takes part, or may do so. The
    client's columns of C then have disjoint supports, and its k participations change C x by at
    most sqrt(k) clip |c| in L2, for any updates, including updates that depend on earlier releases.

    *Sampling*: cyclic (or full, with one band): T rounds are one Gaussian of multiplier z /
    sqrt(k), k = ceil(T / separation), and so is each prefix of them. The event of a round is
    Separated(separation, Gaussian(z)). Or allocation in at least as many groups as bands, where the
    rounds in which a client may take part are that far apart. In each epoch a client takes part in
    one of the n rounds of its group; which one is secret, uniform and fresh. C x changes by one of
    n orthogonal vectors of norm clip |c|, which is the pair of `AllocatedEpoch` at z.

    *Trust*: the server sees the clipped updates and adds the noise. The key of the noise is kept
    under private/; anyone with access to it can remove the noise.

    *Arithmetic*: clipped rows are on a public grid, sums are exact, and the noise is sampled on
    that grid so that every release is post-processing of the continuous mechanism
    (`privfed.privacy.noise.correlated`). Runs of older versions continue with the coefficients of
    the square root of prefix sums, in float64.

    Source: Choquette-Choo et al. 2023 ("(Amplified) banded matrix factorization", arXiv 2306.08153,
    sections 3, 4; amplification that is modular in the sampling: section 5); coefficients: McKenna
    2024, arXiv 2405.15913; adaptivity: Denisov et al. 2022, Theorem 2.1; the square root:
    Fichtenberger, Henzinger & Upadhyay 2023; its bands: Kalinin & Lampert 2024.
    """

    bands: int = Field(10, ge=0, le=10_000)
    """Number of rounds over which the noise is correlated; 1: independent noise; 0: the separation
    of a cyclic sampler, or the number of groups, from 2 on, for which an allocation needs the least
    noise."""
    toeplitz: tuple[float, ...] | None = Field(None, strict=False)
    """Coefficients c, from c_0 = 1, in multiples of 2^-20; by default those with the least noise
    over the rounds of the run."""
    solved_for: int = Field(0, ge=0)
    """Number of rounds for which the coefficients were optimised; 0 if they are given."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = standard deviation of Z over clip |c|; None until calibrated from epsilon."""

    arithmetic: ClassVar[str] = "exact sums, correlated noise on their grid"

    @field_validator("toeplitz")
    @classmethod
    def _on_a_grid(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        if not value or value[0] != 1.0 or any(abs(c) > 1 or c % UNIT for c in value):
            raise ValueError("expected 1.0 first, then multiples of 2^-20 between -1 and 1")
        return value

    @model_validator(mode="before")
    @classmethod
    def _bands_of_coefficients(cls, values: Any) -> Any:
        given = values.get("toeplitz") if isinstance(values, dict) else None
        return {"bands": len(given), **values} if isinstance(given, list | tuple) else values

    @model_validator(mode="after")
    def _one_number_of_bands(self) -> Self:
        if self.toeplitz is not None and len(self.toeplitz) != self.bands:
            raise ValueError(
                f"bands is {self.bands}, but toeplitz has {len(self.toeplitz)} coefficients; "
                "expected equally many: remove privacy.bands"
            )
        return self

    def event(self, witness: Witness, exchanges: int) -> Event:
        bands = len(self.coefficients())
        if witness.separation < bands or not witness.sampled:
            raise Refused(
                f"privacy.bands is {bands}, but the sampler {witness.sampler!r} guarantees a "
                f"separation of only {witness.separation} rounds between two participations of a "
                f'client; use cohort.sampler = "cyclic" with cohort.separation = {bands} or more, '
                "or allocation with as many groups"
            )
        if witness.relation != ZERO_OUT:
            raise Refused(
                f"banded noise has a proof for {ZERO_OUT}, but the sampler {witness.sampler!r} "
                f'has the relation {witness.relation}; use privacy.mechanism = "gaussian" (one '
                "band is independent noise), or a sampler with a separation"
            )
        refuse_exchanges(exchanges)
        noise = Gaussian(self._noise() / CHANGE[witness.relation])
        return Event(witness.sampled(noise), witness.sampler, witness.relation)

    def in_bands(self, bands: int) -> Self:
        return self.model_copy(update={"bands": bands})

    def solved_for_run(self, rounds: int, separation: int) -> Self:
        if self.toeplitz is not None:
            refuse_overflow(self.coefficients(), rounds)
            return self
        solved = optimal_bands(self.bands or separation, rounds)
        constants = {"toeplitz": solved, "bands": len(solved), "solved_for": rounds}
        return self.model_copy(update=constants)

    def solution(self) -> Mapping[str, Any]:
        return {"toeplitz": list(self.coefficients()), "solved_for": self.solved_for}

    def span(self) -> str:
        bands = len(self.coefficients())
        solved = f"solved for {self.solved_for} rounds" if self.solved_for else "as given"
        of = "the square root of prefix sums" if self.toeplitz is None else solved
        return f"over {bands} band{'s' * (bands > 1)}, {of}"

    def coefficients(self) -> NDArray[np.float64]:
        if self.toeplitz is None:
            return square_root(max(self.bands, 1))
        return np.array(self.toeplitz)

    def noise_on_model(self, rounds: int) -> float:
        return self._noise() * prefix_noise(self.coefficients(), rounds)

    def noise_on_update(self, size: int = 1) -> float:
        """Returns the std of Z, in clipping norms.

        Raises `Refused` if sums over cohorts of expected `size` may be inexact in float64 (not for
        runs of older versions, whose proof is for real numbers).
        """
        std = self.std()
        if self.toeplitz is not None:
            refuse_inexact(std, size)
        return std

    def memory(self, streams: Streams, length: int) -> Correlated:
        kind = CorrelatedReals if self.toeplitz is None else CorrelatedOnGrid
        return kind(self.coefficients(), length, streams)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        exact = self.toeplitz is not None
        return clip_rows(rows, self.clip, grid_of(self.std() * self.clip) if exact else None)

    def encoding(self, state: PublicState) -> Encoding:
        std = self.std()
        on_its_grid = self.toeplitz is not None and std > 0
        return Encoding(self.clip, FINENESS / std if on_its_grid else math.inf)

    def std(self) -> float:
        return self._noise() * float(np.linalg.norm(self.coefficients()))
