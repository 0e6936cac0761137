"""Banded matrix factorisation: central noise that is correlated over rounds (DP-FTRL)."""

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
    """User-level central noise, correlated over rounds so that it cancels in the model.

    Releases x_t + Y_t in round t, x_t the sum of clipped updates, over a constant divisor, where
    Y = C^-1 Z, Z has independent rows N(0, (z C_clip |c|)^2 I), and C is lower-triangular Toeplitz
    with `bands` coefficients c, c_0 = 1. They are solved for when the run starts, so that the noise
    on the sums of releases, which a model is made of, is least over its rounds; what is promised
    holds for any coefficients and any number of rounds. One band is independent noise.

    *What is released*: all of x + Y, which is C^-1 (C x + Z): post-processing of C x + Z.

    *Unit and relation*: one client with all its examples; its contribution in all rounds against
    zero (zero-out); who takes part when may be public, or a secret slot.

    *Sensitivity*: by rows clipped to L2 norm `clip`, and a sampler that *enforces* a separation of
    at least `bands` rounds between any two rounds in which a client takes part, or may do so. Then
    its columns of C have disjoint supports, and its k participations change C x by at most
    sqrt(k) clip |c| in L2, whatever its updates are, also where they depend on earlier releases.

    *Sampler*: cyclic (or full, with one band): T rounds are one Gaussian of multiplier z / sqrt(k),
    k = ceil(T / separation), and so is each beginning of them: the event of a round is
    Separated(separation, Gaussian(z)). Or allocation in at least as many groups as bands: rounds in
    which a client may take part are that far apart. Of each epoch it takes part in one of them, of
    the choices of its group: C x moves by one of so many vectors that are orthogonal, of norm
    clip |c|, whose slot is secret, uniform and fresh, which is the pair of `AllocatedEpoch` at z.

    *Trust*: the server sees the clipped updates and adds the noise. The key that it follows from
    lies under private/, and whoever reads that can take the noise away.

    *Arithmetic*: clipped rows lie on a public grid, sums are exact, and the noise is made on that
    grid so that all that is released is post-processing of the continuous mechanism
    (`privfed.privacy.noise.correlated`). Runs of older versions go on with those of the
    square root of prefix sums, in float64.

    Source: Choquette-Choo et al. 2023 ("(Amplified) banded matrix factorization", arXiv 2306.08153,
    sections 3, 4; amplification that is modular in the sampling: section 5); coefficients: McKenna
    2024, arXiv 2405.15913; adaptivity: Denisov et al. 2022, Theorem 2.1; the square root:
    Fichtenberger, Henzinger & Upadhyay 2023; its bands: Kalinin & Lampert 2024.
    """

    bands: int = Field(10, ge=0, le=10_000)
    """Over how many rounds the noise is correlated; 1: independent noise; 0: as many as a cyclic
    draw allows, or, from 2 on, as groups of an allocation need the least noise."""
    toeplitz: tuple[float, ...] | None = Field(None, strict=False)
    """The coefficients c, from c_0 = 1, in multiples of 2^-20; left out, those that need the least
    noise over the rounds of the run."""
    solved_for: int = Field(0, ge=0)
    """For how many rounds these were solved; 0 where they are given."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = deviation of Z over clip |c|; None until calibrated from epsilon."""

    arithmetic: ClassVar[str] = "exact sums, and correlated noise on their grid"

    @field_validator("toeplitz")
    @classmethod
    def _on_a_grid(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        if not value or value[0] != 1.0 or any(abs(c) > 1 or c % UNIT for c in value):
            raise ValueError("expected 1.0 first, and multiples of 2^-20 between -1 and 1")
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
                f"{self.bands} bands and {len(self.toeplitz)} coefficients (toeplitz); expected as "
                "many: leave out privacy.bands"
            )
        return self

    def event(self, witness: Witness, exchanges: int) -> Event:
        bands = len(self.coefficients())
        if witness.separation < bands or not witness.sampled:
            raise Refused(
                f"noise is correlated over {bands} rounds (privacy.bands), but the sampler "
                f"{witness.sampler!r} keeps {witness.separation} rounds between two rounds in "
                "which a client may take part; "
                'expected at least as many as bands: use cohort.sampler = "cyclic" with '
                f"cohort.separation = {bands} or more, or allocation with as many groups"
            )
        if witness.relation != ZERO_OUT:
            raise Refused(
                f"banded noise has a proof for {ZERO_OUT}, and the sampler {witness.sampler!r} "
                f"draws for {witness.relation}; one band is independent noise: use "
                'privacy.mechanism = "gaussian", or a sampler that keeps clients apart'
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
        """The deviation of Z in clips. Raises `Refused` where no sums of `size` rows are exact."""
        deviation = self.deviation()
        if self.toeplitz is not None:
            refuse_inexact(deviation, size)
        return deviation

    def memory(self, streams: Streams, length: int) -> Correlated:
        kind = CorrelatedReals if self.toeplitz is None else CorrelatedOnGrid
        return kind(self.coefficients(), length, streams)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        exact = self.toeplitz is not None
        return clip_rows(rows, self.clip, grid_of(self.deviation() * self.clip) if exact else None)

    def encoding(self, state: PublicState) -> Encoding:
        deviation = self.deviation()
        on_its_grid = self.toeplitz is not None and deviation > 0
        return Encoding(self.clip, FINENESS / deviation if on_its_grid else math.inf)

    def deviation(self) -> float:
        return self._noise() * float(np.linalg.norm(self.coefficients()))
