"""Noise on each client's row, most of which pairs of clients share, so that it cancels in sums."""

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
from privfed.privacy.noise.pairwise import PairwiseNoise, part_alone
from privfed.privacy.setting import Setting
from privfed.sampling.cohort import Witness

_UPWARD = 1 + 1e-12
"""More than what rounding the formula of a deviation in double precision takes off."""
_LEAST = 1e-5
"""The least noise multiplier under which rows and noise are exact together."""


class PairwiseGaussian(NoisedMechanism):
    """Noise that pairs of clients share, which cancels in their sum: no server is trusted.

    Rows are as private as under local noise, and in their mean hardly more than central noise is
    left.

    Of n clients, client k sends clip(x_k) + a u_k + b (sum over j != k of s_kj v_kj), all u_k and
    v_kj = v_jk fresh standard normal vectors, s_kj = -s_jk a sign, and b = `pair_noise` a. Clients
    k and j alone know v_kj, from a secret that they share.

    *What is released*: all n rows, in every round; any rule on them is post-processing.

    *Against whom*: the server, the network, and any t clients together, who know all that these
    know: their data, and v_kj where k or j is one of them. t = `aggregation.byzantine` (or who
    attacks) + `colluders`; hostile clients may send what they like. With more than t it is void,
    and what is left against all others together is local noise of multiplier `alone`.

    *Theorem.* Let h = n - t. What they see of the others' rows, v_kj of theirs taken off, is
    x + N(0, S) for each number, S = a^2 I + b^2 (h I - J), J being all ones. One honest client's
    change by D is exactly as well hidden as by noise of variance s^2 on its row alone:
    1 / s^2 = (1 / h) / a^2 + (1 - 1 / h) / (a^2 + h b^2). *Proof.* Colluders' pairs are constants
    to be taken off, and what hostile clients send is a function of what they know. Left, and
    independent of that, are u_k, and v_kj of honest pairs, whose covariance h I - J is 0 along
    (1, ..., 1) and h across. Whitened, D moves a standard normal vector by |D| sqrt((S^-1)_kk), the
    square of k's part along (1, ..., 1) being 1 / h; how well two normal vectors are told apart
    follows from their distance alone. x may depend on all that was released before, so rounds
    compose adaptively.

    *Unit and relation*: one client with all its examples, replaced by any other (replace-one);
    sensitivity 2 C by `clip_rows`, so the event is Gaussian(z / 2), z = s / C the multiplier
    (zero-out: Gaussian(z)). Who takes part is public.

    *Sampler*: all clients in each round (`full`), and nothing is amplified. They know each other
    (their keys) from a list fixed before the run, never from the server: one that told a client of
    few others would be left with these few pairs' noise.

    *Dropouts*: who sends nothing leaves its partners' noise as it is. What is seen is a part of the
    n rows, post-processing; nobody reveals a secret of an absent client, as masks do. In a round a
    client answers once, and later the same bytes: two answers under one v_kj tell their difference.

    *Assumptions beside epsilon*: v_kj comes from a generator keyed with the pair's secret, the
    run's id, the round and the exchange; that it is as good as random is computational. Two runs
    compose only where their pairs' noise is independent, as the difference of two rows under one
    v_kj has own noise alone. A round that is resumed sends the same bytes, or has a new number.

    *Arithmetic*: as central noise; pairs are not drawn one by one, but their joint law
    (`PairwiseNoise.draw`). The process that simulates all clients knows all of them.

    Source: CafCor (Allouah, Guerraoui & Stephan 2025, arXiv 2505.01874), with its filter
    `aggregation.rule`; pairwise cancelling noise: Sabater, Bellet & Ramon 2022 (GOPA), and DECOR
    (Allouah, Koloskova, El Firdoussi, Jaggi & Guerraoui 2024, arXiv 2405.01031). The accounting is
    exact here.
    """

    pair_noise: float = Field(1.0, ge=0, le=100)
    """The deviation that each pair of clients shares, over a client's own: the higher, the less is
    left in a mean of all rows, and the more in each row. 0: local noise."""
    colluders: int = Field(1, ge=0)
    """How many clients may work with the server, beside those who may be hostile."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = deviation of noise that hides a row as well, over the clip; None until calibrated."""

    _clients: int = PrivateAttr(0)
    _honest: int = PrivateAttr(0)

    trust: ClassVar[Literal["client"]] = "client"
    joint: ClassVar[bool] = True
    arithmetic: ClassVar[str] = "exact messages, and the Gaussian rounded to their grid"

    def resolved(self, setting: Setting) -> Self:
        """The mechanism among all clients. Raises `Refused` where none of them is counted on."""
        size, byzantine = setting.cohort.expected, setting.cohort.byzantine
        honest = size - byzantine - self.colluders
        if honest < 1:
            raise Refused(
                f"of {size} clients {byzantine} may be hostile "
                f"(aggregation.byzantine, attack.fraction) and {self.colluders} more may work with "
                "the server (privacy.colluders): nobody is left whose noise counts; lower these"
            )
        mechanism = self.model_copy()
        mechanism._clients, mechanism._honest = size, honest
        return mechanism

    @property
    def honest(self) -> int:
        return self._honest

    @property
    def alone(self) -> float:
        return self._noise() * part_alone(self.pair_noise, self._honest)

    def noise(self) -> PairwiseNoise:
        if not self._clients:
            raise ValueError("noise that pairs share depends on who takes part; plan the run first")
        alone = self.alone * self.clip * _UPWARD
        return PairwiseNoise(self._clients, alone, self.pair_noise * alone)

    def among_honest(self) -> Self:
        mechanism = self.model_copy()
        mechanism._clients = self._honest
        return mechanism

    def event(self, witness: Witness, exchanges: int) -> Event:
        if witness.random or witness.rate < 1:
            raise Refused(
                "noise that pairs of clients share is proved for rounds in which all of them take "
                f"part, and cohort.sampler is {witness.sampler!r}: who draws could tell a client "
                'of colluders alone; use "full"'
            )
        noise = same_cohort(self._noise() / CHANGE[REPLACE_ONE], exchanges)
        return Event(noise, witness.sampler, REPLACE_ONE)

    def noise_on_update(self, size: int) -> float:
        """The deviation on the sum of so many rows, in clips. Raises `Refused` where no noise on
        the grid of the rows is right.
        """
        noise = self.noise()
        if not noise.exact or 0 < self._noise() < _LEAST:
            raise Refused(
                f"noise of {self._noise():g} clips, of which {self._clients} clients share "
                f"privacy.pair_noise = {self.pair_noise:g}, is not exact in double precision; "
                "raise the noise, set pair_noise to 0 or nearer to 1, or take fewer clients"
            )
        return noise.of_sum(size) / self.clip

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Rows `[m, d]` of all who send one, clipped and noised: no norm is bounded any more."""
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
        raise TypeError("rows that share noise go to a rule all at once, and are never summed")
