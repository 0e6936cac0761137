"""Buffered linear Toeplitz noise (BLT): correlated over all rounds, by a few stored rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from accounting.bounds.toeplitz_sensitivity import column_norm, refuse_unproven
from accounting.errors import Unaccountable
from accounting.events import CHANGE, ZERO_OUT, Event
from accounting.noises import LARGEST_NOISE, Gaussian
from accounting.over_rounds import BufferedToeplitz, Separated
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
from privfed.privacy.noise.correlated import BufferedNoise
from privfed.privacy.noise.factorization import (
    MOST_BUFFERS,
    Buffers,
    optimal_buffers,
    relative_noise,
)
from privfed.sampling.cohort import Witness, draws_of


class Buffered(CorrelatedMechanism):
    """User-level central noise, correlated over all rounds by `buffers` stored rows (BLT).

    Releases x_t + Y_t in round t, x_t the sum of clipped updates, over a constant divisor, where Y
    = C^-1 Z, Z has independent rows N(0, (z clip |c|)^2 I), and C is lower-triangular Toeplitz
    with c_0 = 1, c_i = sum_j omega_j theta_j^(i-1); |c| is the norm of this column over infinitely
    many rounds. The `decays` theta and the `outputs` omega are optimised when the run starts, to
    minimise the noise on sums of releases over its rounds.

    *Releases*: all of x + Y, which is C^-1 (C x + Z): post-processing of C x + Z.

    *Unit and adjacency*: one client with all its examples; its contribution in all rounds against
    zero (zero-out). Participation may be public, and there is no amplification.

    *Sensitivity*: rows are clipped to L2 norm `clip`, and the sampler enforces a separation of b
    rounds between two participations of a client. The client's columns of C overlap. The column is
    nonnegative and never increases, which is verified for the recorded numbers. So a client changes
    C x over T rounds by at most the norm of the sum of the columns of C at distances of b, in
    clipping norms (`accounting.bounds.toeplitz_sensitivity`), even if updates depend on earlier
    releases.

    *Sampling*: cyclic, or full. T rounds are one Gaussian, and so is each prefix of them: the event
    of a round is `BufferedToeplitz`. A secret slot gives no amplification here: overlapping windows
    of C have no proof.

    *Trust*: the server sees the clipped updates and adds the noise. The key of the noise is kept
    under private/; anyone with access to it can remove the noise.

    *Arithmetic*: float64, idealised. The grid of `privfed.privacy.noise.correlated` needs exact
    sums over all former rows, which a rounded buffer does not provide.

    Source: Dvijotham et al. 2024, arXiv 2404.16706; several participations: McMahan, Xu & Zhang
    2024, arXiv 2408.08868; sensitivity: Kalinin & Lampert 2024, arXiv 2405.13763, Theorem 2;
    adaptivity: Denisov et al. 2022, Theorem 2.1.
    """

    buffers: int = Field(2, ge=1, le=MOST_BUFFERS)
    """Number of stored rows; more than two gain very little."""
    decays: tuple[float, ...] | None = Field(None, strict=False)
    """Decays theta, in [0, 1); by default optimised for the rounds of the run."""
    outputs: tuple[float, ...] | None = Field(None, strict=False)
    """Outputs omega, one per decay, nonnegative, of sum at most 1; by default optimised too."""
    solved_for: int = Field(0, ge=0)
    """Number of rounds for which decays and outputs were optimised; 0 if they are given."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """z = standard deviation of Z over clip |c|; None until calibrated from epsilon."""

    arithmetic: ClassVar[str] = "float64, idealised"

    @model_validator(mode="before")
    @classmethod
    def _buffers_of_decays(cls, values: Any) -> Any:
        given = values.get("decays") if isinstance(values, dict) else None
        return {"buffers": len(given), **values} if isinstance(given, list | tuple) else values

    @model_validator(mode="after")
    def _proven(self) -> Self:
        if (self.decays is None) != (self.outputs is None):
            raise ValueError(
                "only one of decays and outputs is set, but each decay belongs to an output; set "
                "both, or neither"
            )
        if self.decays is None or self.outputs is None:
            return self
        if len(self.decays) != self.buffers:
            raise ValueError(
                f"buffers is {self.buffers}, but there are {len(self.decays)} decays; expected "
                "equally many: remove privacy.buffers"
            )
        try:
            refuse_unproven(self.decays, self.outputs)
        except Unaccountable as error:
            raise ValueError(str(error)) from None
        return self

    def event(self, witness: Witness, exchanges: int) -> Event:
        noise = Gaussian(self._noise() / CHANGE[witness.relation])
        drawn = witness.sampled(noise) if witness.sampled else None
        if witness.relation != ZERO_OUT or not isinstance(drawn, Separated | Gaussian):
            raise Refused(
                "the columns of buffered noise overlap, for which the secret samples of the "
                f"sampler {witness.sampler!r} have no proof; use a sampler whose sample is not "
                f"secret: cohort.sampler = {draws_of(Gaussian, Separated)}"
            )
        refuse_exchanges(exchanges)
        solved = self._solved()
        release = BufferedToeplitz(solved.decays, solved.outputs, witness.separation, noise)
        return Event(release, witness.sampler, witness.relation)

    def solved_for_run(self, rounds: int, separation: int) -> Self:
        if self.decays is not None:
            return self
        solved = optimal_buffers(self.buffers, rounds, separation)
        constants = {"decays": solved.decays, "outputs": solved.outputs, "solved_for": rounds}
        return self.model_copy(update=constants)

    def solution(self) -> Mapping[str, Any]:
        solved = self._solved()
        decays, outputs = list(solved.decays), list(solved.outputs)
        return {"decays": decays, "outputs": outputs, "solved_for": self.solved_for}

    def span(self) -> str:
        solved = f"solved for {self.solved_for} rounds" if self.solved_for else "as given"
        return f"over all rounds by {self.buffers} buffer{'s' * (self.buffers > 1)}, {solved}"

    def coefficients(self) -> NDArray[np.float64]:
        """Returns the first column of C over `solved_for` rounds; [1] before it is optimised."""
        if self.decays is None:
            return np.ones(1)
        return self._solved().column(max(self.solved_for, 1))

    def memory(self, streams: Streams, length: int) -> BufferedNoise:
        return BufferedNoise(self._solved(), length, streams)

    def noise_on_model(self, rounds: int) -> float:
        return relative_noise(self._solved().inverse_sums(rounds), self.std())

    def std(self) -> float:
        solved = self._solved()
        return self._noise() * column_norm(solved.decays, solved.outputs)

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        return clip_rows(rows, self.clip)

    def encoding(self, state: PublicState) -> Encoding:
        return Encoding(self.clip)

    def _solved(self) -> Buffers:
        """Returns the optimised buffers. Raises `ValueError` before a run's plan computed them."""
        if self.decays is None or self.outputs is None:
            raise ValueError(
                "the parameters of the buffers have not been computed; plan the run first"
            )
        return Buffers(self.decays, self.outputs)
