"""Noise that pairs of clients share: it protects each row, and most of it cancels in sums."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from accounting.events import CHANGE, REPLACE_ONE, Event
from accounting.noises import LARGEST_NOISE, same_cohort
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.core.vector import Layout
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    NoisedMechanism,
    PublicState,
)
from privfed.privacy.noise.pairwise import PairwiseNoise, alone_for_ratio
from privfed.privacy.setting import Setting
from privfed.sampling.cohort import Witness

_UPWARD = 1 + 1e-12
"""Factor on a standard deviation that compensates its rounding in double precision."""
_LEAST = 1e-5
"""Least noise multiplier for which rows and noise are exact together."""


class PairwiseGaussian(NoisedMechanism):
    """Noise that pairs of clients share and that cancels in their sum; the server is not trusted.

    Rows are as private as under local noise, and the noise on their mean is little more than
    central noise.

    Of n clients, client k sends clip(x_k) + a u_k + b (sum over j != k of s_kj v_kj), all u_k and
    v_kj = v_jk fresh standard normal vectors, s_kj = -s_jk a sign, and b = `pair_noise` a. Only
    clients k and j know v_kj, from a secret that they share.

    *Releases*: all n rows, in every round; any rule on them is post-processing.

    *Adversary*: the server, the network, and any t clients together, with all knowledge of these
    clients: their data, and v_kj where k or j is one of them. t = `aggregation.byzantine` (or the
    number of attackers) + `colluders`; Byzantine clients may deviate arbitrarily. With more than t
    such clients the guarantee is void, and against all others together only local noise of
    multiplier `alone` remains.

    *Theorem.* Let h = n - t. The adversary's view of the others' rows, with known v_kj subtracted,
    is x + N(0, S) for each coordinate, S = a^2 I + b^2 (h I - J), J being all ones. A change of one
    honest client by D is exactly as well hidden as by noise of variance s^2 on its row alone: 1 /
    s^2 = (1 / h) / a^2 + (1 - 1 / h) / (a^2 + h b^2). *Proof.* Colluders' pairs are constants and
    can be subtracted, and the messages of Byzantine clients are a function of their knowledge. The
    remaining noise is independent of that: u_k, and v_kj of honest pairs, whose covariance h I - J
    is 0 along (1, ..., 1) and h orthogonal to it. After whitening, D shifts a standard normal
    vector by |D| sqrt((S^-1)_kk), the squared component of the unit vector e_k along (1, ..., 1)
    being 1 / h; the distinguishability of two normal vectors depends on their distance only. x may
    depend on all earlier releases, so rounds compose adaptively.

    *Unit and adjacency*: one client with all its examples, replaced by any other (replace-one);
    sensitivity 2 C by `clip_rows`, so the event is Gaussian(z / 2), z = s / C the multiplier
    (zero-out: Gaussian(z)). The list of participants is public.

    *Sampling*: all clients in each round (`full`), without amplification. Clients know each other's
    keys from a list fixed before the run, never from the server: if the server announced only few
    other clients, a client would have only the noise of these few pairs.

    *Dropouts*: a dropout leaves its partners' noise unchanged. The view is then a part of the n
    rows, a post-processing; no secret of an absent client is revealed, unlike with masks. A client
    answers once in a round, and later repeats the same bytes: two answers under one v_kj would
    reveal their difference.

    *Further assumptions*: v_kj comes from a generator keyed with the pair's secret, the run's id,
    the round and the exchange; its pseudorandomness is a computational assumption. Two runs compose
    only if their pairs' noise is independent, as the difference of two rows under one v_kj has only
    the clients' own noise. A resumed round sends the same bytes, or has a new number.

    *Arithmetic*: as central noise; the joint distribution of all pairs is sampled instead of each
    pair (`PairwiseNoise.draw`). The process that simulates all clients knows all of them.

    Source: CafCor (Allouah, Guerraoui & Stephan 2025, arXiv 2505.01874), whose filter is
    `aggregation.rule = "caf"`; pairwise cancelling noise: Sabater, Bellet & Ramon 2022 (GOPA), and
    DECOR (Allouah, Koloskova, El Firdoussi, Jaggi & Guerraoui 2024, arXiv 2405.01031). The
    accounting is exact here.
    """

    pair_noise: float = Field(1.0, ge=0, le=100)
    """Standard deviation of the noise that a pair of clients shares, relative to that of a client's
    own noise. Larger values leave less noise in a mean of all rows, and more in each row. 0: local
    noise."""
    colluders: int = Field(1, ge=0)
    """Number of clients that may collude with the server, in addition to Byzantine clients."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = standard deviation of the equivalent independent noise on a
    row, over the clip; None until calibrated."""

    _clients: int = PrivateAttr(0)
    _honest: int = PrivateAttr(0)

    trust: ClassVar[Literal["client"]] = "client"
    joint: ClassVar[bool] = True
    arithmetic: ClassVar[str] = "exact messages, Gaussian noise rounded to their grid"

    def resolved(self, setting: Setting) -> Self:
        """Returns the mechanism with the numbers of all clients and of honest clients set.

        Raises `Refused` if Byzantine and colluding clients together are all clients.
        """
        size, byzantine = setting.cohort.expected, setting.cohort.byzantine
        honest = size - byzantine - self.colluders
        if honest < 1:
            raise Refused(
                f"privacy.colluders is {self.colluders} and {byzantine} of {size} clients may be "
                "Byzantine (aggregation.byzantine, attack.fraction), but then no client's noise "
                "counts; lower one of these keys"
            )
        mechanism = self.model_copy()
        mechanism._clients, mechanism._honest = size, honest
        return mechanism

    @property
    def honest(self) -> int:
        return self._honest

    @property
    def alone(self) -> float:
        return self._noise() * alone_for_ratio(self.pair_noise, self._honest)

    def noise(self) -> PairwiseNoise:
        if not self._clients:
            raise ValueError(
                "noise that pairs share depends on the participating clients; plan the run first"
            )
        alone = self.alone * self.clip * _UPWARD
        return PairwiseNoise(self._clients, alone, self.pair_noise * alone)

    def among_honest(self) -> Self:
        mechanism = self.model_copy()
        mechanism._clients = self._honest
        return mechanism

    def event(self, witness: Witness, exchanges: int) -> Event:
        if witness.random or witness.rate < 1:
            raise Refused(
                f"cohort.sampler is {witness.sampler!r}, but noise that pairs of clients share has "
                "a proof only for rounds in which all clients take part, since the sampling party "
                'could otherwise place one client alone among colluders; use "full"'
            )
        noise = same_cohort(self._noise() / CHANGE[REPLACE_ONE], exchanges)
        return Event(noise, witness.sampler, REPLACE_ONE)

    def noise_on_update(self, size: int) -> float:
        """Returns the noise standard deviation on the sum of `size` rows, in clipping norms.

        Raises `Refused` if the noise is not exact on the grid of the rows.
        """
        noise = self.noise()
        if not noise.exact or 0 < self._noise() < _LEAST:
            raise Refused(
                f"privacy.pair_noise is {self.pair_noise:g}, but with noise of {self._noise():g} "
                f"clips among {self._clients} clients sums are not exact in double precision; "
                "raise the noise, set privacy.pair_noise to 0 or nearer to 1, or use fewer clients"
            )
        return noise.of_sum(size) / self.clip

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Returns all senders' `rows` `[m, d]`, clipped and noised; these have no norm bound."""
        noise = self.noise()
        clipped = clip_rows(rows, self.clip, noise.grid)
        drawn = torch.from_numpy(noise.draw(keys, rows.shape[1]))
        noised = clipped.rows.double() + drawn.to(rows.device)
        return BoundedRows(noised.to(rows.dtype), float("inf"))

    def encoding(self, state: PublicState) -> Encoding:
        return Encoding()

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        raise TypeError(
            "rows with shared noise are passed to a rule all at once, and are never summed"
        )
