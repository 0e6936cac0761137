"""Example-level privacy in local training: DP-SGD in each silo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeGuard

import numpy as np
from pydantic import Field

from accounting.events import ADD_REMOVE, Event
from accounting.noises import LARGEST_NOISE, Gaussian
from accounting.releases import PoissonSampled, Repeated
from privfed.core.deferred import Tensor, torch
from privfed.core.parts import Part
from privfed.core.streams import Keys
from privfed.privacy.clipping import clip_rows
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid, grid_of

_CHUNK = 256
Gradients = Callable[["Tensor", np.ndarray], "Tensor"]
"""Maps a model `[d]` and indices `[B]` of examples to the gradients `[B, d]` of these examples."""


class ClientMechanism(Protocol):
    """A silo's protection of its examples during training."""

    private: ClassVar[bool]
    """Whether examples are protected; if so, the mechanism is an `ExamplePrivacy`."""


class ExamplePrivacy(ClientMechanism, Protocol):
    """Protects single examples of a silo, with a guarantee at its own `delta`."""

    delta: float

    def steps(self, epochs: int) -> int:
        """Returns the number of local steps of a round of `epochs` local epochs."""

    def event(self, epochs: int) -> Event:
        """Returns the privacy event of a silo's round of `epochs` local epochs."""

    def gradient(
        self, w: Tensor, examples: int, batch_size: int, gradients: Gradients, keys: Keys
    ) -> Tensor:
        """Returns the noised gradient `[d]` of one step.

        Args:
          w: the model, shape [d].
          examples: number of examples of the silo, of which the step samples a batch.
          batch_size: configured batch size, the constant divisor of the noised sum.
          gradients: computes per-example gradients.
          keys: random streams of this silo and this step.
        """


def protects_examples(mechanism: ClientMechanism) -> TypeGuard[ExamplePrivacy]:
    """Whether `mechanism` protects each example of a silo."""
    return mechanism.private


class NoClientPrivacy(Part):
    """No example-level privacy."""

    private: ClassVar[bool] = False


class DpSgd(Part):
    """DP-SGD in each silo: clipped gradients of single examples, and noise at every local step.

    Each local step of a silo releases (sum of its sampled examples' clipped gradients +
    N(0, (z C)^2 I)) / batch_size; the model that it trains and sends is post-processing.

    *Releases*: these vectors `[d]`, to every party that sees the silo's updates, including the
    server.

    *Unit and adjacency*: one example of one silo; neighbouring datasets of the silo differ in one
    example (add/remove).

    *Sensitivity*: C in L2, by `clip_rows` on gradients of single examples; an example has weight
    one, and the divisor is a constant.

    *Sampling*: at each step each example of the silo is sampled independently with probability
    `sampling_rate`, a public constant. An epoch is ceil(1 / sampling_rate) steps, so the number of
    steps is also a constant. A silo's round is that many PoissonSampled(rate,
    Gaussian(z)), and is charged to the silo's own ledger before it trains. Sampling of silos gives
    no further amplification here.

    *Trust*: the silo, which samples examples and noise.

    *Arithmetic*: sums and noise are exact on a grid, as under central noise (for up to 2^22 z
    sampled examples). An example's gradient is computed in a batch with others, by kernels whose
    float32 rounding may depend on those (relative error about 1e-7); the proof assumes exact
    gradients.

    *Source*: Abadi et al. 2016, Algorithm 1; in silos: Malekmohammadi et al. 2024; gradients of
    single examples by Opacus (Yousefpour et al. 2021).
    """

    clip: float = Field(1.0, ge=1e-6, le=1e20)
    """Clipping norm of one example's gradient."""
    noise_multiplier: float = Field(1.0, ge=0, le=LARGEST_NOISE)
    """Noise standard deviation divided by the clip, at every local step."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """Delta of the examples' guarantee."""
    sampling_rate: float = Field(0.05, gt=0, le=1)
    """Probability of each example in each step; public, so never computed from a silo's size."""

    private: ClassVar[bool] = True

    def steps(self, epochs: int) -> int:
        """Returns the number of local steps of a round of `epochs` local epochs."""
        return epochs * math.ceil(1 / self.sampling_rate)

    def event(self, epochs: int) -> Event:
        """Returns the privacy event of a silo's round of `epochs` local epochs."""
        step = PoissonSampled(self.sampling_rate, Gaussian(self.noise_multiplier))
        return Event(Repeated(self.steps(epochs), step), "poisson", ADD_REMOVE, unit="example")

    def gradient(
        self, w: Tensor, examples: int, batch_size: int, gradients: Gradients, keys: Keys
    ) -> Tensor:
        """Returns the noised gradient `[d]` of one step, as `ExamplePrivacy` defines it."""
        drawn = np.flatnonzero(keys.derived(b"coins").bernoulli(self.sampling_rate, examples))
        std = self.noise_multiplier * self.clip
        total = torch.zeros(len(w), dtype=torch.float64, device=w.device)
        for start in range(0, len(drawn), _CHUNK):  # sums on the grid are exact in any order
            rows = gradients(w, drawn[start : start + _CHUNK])
            bounded = clip_rows(rows, self.clip, grid_of(std))
            total += bounded.rows.sum(0, dtype=torch.float64)
        noise = gaussian_on_grid(keys.derived(b"noise"), std, len(w))
        released: Tensor = ((total + torch.from_numpy(noise).to(total)) / batch_size).to(w.dtype)
        return released
