"""User-level central Gaussian noise over a Poisson-sampled cohort (DP-FedAvg)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from accounting.events import LARGEST_NOISE, Event, Gaussian, PoissonSampled, same_cohort
from privfed.cohort import Witness
from privfed.errors import Refused
from privfed.parts import Part, only
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows, BoundedSum, State
from privfed.streams import Keys
from privfed.vector import Layout


class CentralGaussian(Part):
    """User-level central noise.

    Releases (sum of clipped updates + N(0, (z C)^2 I)) / (q N), once per exchange.

    *What is released*: that vector `[d]` for every exchange of the round, and nothing else.

    *Unit and relation*: one client with all its examples; populations that differ by adding or
    removing one client.

    *Sensitivity*: C in L2, by `clip_rows`; rows enter with weight one, and the divisor q N is a
    constant of the configuration, so neither depends on who took part.

    *Sampler*: Poisson at rate q, and no other; the event is PoissonSampled(q, Gaussian(z)), or
    Gaussian(z / sqrt(k)) inside for k exchanges over the same cohort.

    *Trust*: the server sees the clipped updates (or, under secure sums, their exact sum) and adds
    the noise. Arithmetic is float64 and idealised: floating-point attacks are not covered.

    Source: McMahan, Ramage, Talwar & Zhang 2018, Algorithm 1, with the fixed-denominator estimator
    of section 2; the subsampled Gaussian of Mironov, Talwar & Zhang 2019, section 3.
    """

    clip: float = Field(0.4, ge=1e-6, le=1e20)
    adaptive_clip: Annotated[bool, only(False, "remove the key")] = False
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = noise standard deviation / clip; None until calibrated from epsilon."""

    trust: ClassVar[Literal["server"]] = "server"
    private: ClassVar[bool] = True

    def event(self, witness: Witness, exchanges: int) -> Event:
        if self.noise_multiplier is None:
            raise ValueError("this mechanism has no noise multiplier yet; calibrate it first")
        if witness.sampler != "poisson":
            raise Refused(
                f"central Gaussian noise has no proof here for the sampler {witness.sampler!r}; "
                'use cohort.sampler = "poisson"'
            )
        noise: Gaussian = same_cohort(self.noise_multiplier, exchanges)
        return Event(PoissonSampled(witness.rate, noise), witness.sampler, witness.relation)

    def init(self) -> State:
        return {}

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: State) -> BoundedRows:
        return clip_rows(rows, self.clip)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: State
    ) -> tuple[Tensor, State]:
        if not isinstance(total, BoundedSum) or not total.bound <= self.clip:
            raise TypeError(
                "noise needs a BoundedSum of rows within the clip: nothing else is private"
            )
        if self.noise_multiplier is None:
            raise ValueError("this mechanism has no noise multiplier yet; calibrate it first")
        deviation = self.noise_multiplier * self.clip  # also for an empty cohort, whose bound is 0
        noise = torch.from_numpy(deviation * keys.normal(len(total.total)))
        return ((total.total + noise.to(total.total)) / divisor).float(), state
