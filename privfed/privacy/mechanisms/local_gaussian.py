"""Local noise: each client adds its own noise before its message leaves it."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from accounting.events import CHANGE, REPLACE_ONE, Event
from accounting.noises import LARGEST_NOISE, same_cohort
from accounting.over_rounds import Separated
from privfed.core.deferred import Tensor, torch
from privfed.core.streams import Keys
from privfed.core.vector import Layout
from privfed.privacy.clipping import averaged, clip_rows
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    NoisedMechanism,
    PublicState,
)
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid, grid_of, refuse_inexact
from privfed.privacy.setting import Setting
from privfed.sampling.cohort import Witness, sampled_at_sites


class LocalGaussian(NoisedMechanism):
    """Local noise: every client's message is private by itself, against any observer.

    Releases clip(x) + N(0, (z C)^2 I) for each participating client; sums, and any rule on the
    rows, are post-processing.

    *Releases*: all messages themselves, and the list of participants.

    *Unit and adjacency*: one client with all its examples; replacing its data by any other
    (replace-one), which changes its clipped update by at most 2 C.

    *Sensitivity*: 2 C in L2, by `clip_rows`.

    *Sampling*: any sampler; there is no amplification, since participation is visible. Each
    participation is one Gaussian(z / 2), and a client is charged every round in which it could be
    sampled: all of them, or one in `separation` under a cyclic sampler. Gaussians compose exactly,
    and `accounting.bounds.closed` calibrates them (Balle & Wang 2018, Theorem 8, "analytic
    Gaussian").

    *Trust*: only the client itself. *Arithmetic*: as for central noise, on each client.

    If sites are the parties, a site trusts itself with its clients' rows, and no other party: it
    releases its own sum of their clipped updates + N(0, (z C)^2 I), over clients that it samples in
    secret. The noise is then central noise of that site (`CentralGaussian`): the unit is one
    client, under add/remove with Poisson sampling, and the sensitivity is C. Privacy is amplified
    against the server and all other sites. A client at s sites has s such events, each with the
    clip C / s. The noises of all sites add up in the sum.
    """

    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = noise standard deviation / clip, on every message; None until calibrated."""

    _sites: int = PrivateAttr(0)

    trust: ClassVar[Literal["client"]] = "client"
    arithmetic: ClassVar[str] = "exact messages, Gaussian noise rounded to their grid"

    def resolved(self, setting: Setting) -> Self:
        mechanism = self.model_copy()
        mechanism._sites = setting.sites.sites if setting.sites else 0
        return mechanism

    def event(self, witness: Witness, exchanges: int) -> Event:
        if self._sites:
            return sampled_at_sites(witness, same_cohort(self._noise(), exchanges), alone=True)
        noise = same_cohort(self._noise() / CHANGE[REPLACE_ONE], exchanges)
        b = witness.separation
        return Event(Separated(b, noise) if b > 1 else noise, witness.sampler, REPLACE_ONE)

    def noise_on_update(self, size: int) -> float:
        """Returns the noise standard deviation on a sum of `size` messages, in clipping norms.

        If sites add the noise, it is that on the sum of all sites, and `Refused` is raised if sums
        over cohorts of expected `size` may be inexact.
        """
        if self._sites:
            refuse_inexact(self._noise(), size)
        return self._noise() * math.sqrt(self._sites or size)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Returns rows clipped and noised; noised rows neither have nor need a norm bound.

        If sites add the noise to their sums, rows are only clipped.
        """
        std = self._noise() * self.clip
        clipped = clip_rows(rows, self.clip, grid_of(std))
        if self._sites:
            return clipped
        noised = clipped.rows.double()
        for place, client_keys in enumerate(keys.each()):
            noise = torch.from_numpy(gaussian_on_grid(client_keys, std, rows.shape[1]))
            noised[place] += noise.to(noised)
        return BoundedRows(noised.to(rows.dtype), math.inf)

    def encoding(self, state: PublicState) -> Encoding:
        if self._sites:
            return Encoding(self.clip, site_std=self._noise() * self.clip)
        return Encoding()

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        return averaged(total.total, divisor), state
