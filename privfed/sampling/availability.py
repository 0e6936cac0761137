"""Client availability: a simulation of clients that are available in some rounds only.

Availability is a function of public randomness and the round, and reads no data. A sampled client
that is not available sends nothing. A client therefore takes part at most as often as the sampler
allows, and contributes zero otherwise. So every sampler's event remains valid (rules of proof,
section 4: dropout by public exogenous randomness). Cohorts are smaller, but the divisor is
unchanged.

The duration of a round on clients' devices follows the basic model of the Field Guide (Wang et al.
2021, "A field guide to federated optimization", equation 9).
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from privfed.core.parts import Part
from privfed.core.streams import Streams, Words, bernoulli, uniforms
from privfed.core.vector import Indices


class Devices(Part):
    """Duration model of devices: T_round = T_comm + T_comp, for a synchronous, parallel cohort.

    T_comm = down / download + up / upload, bytes of one client over bytes per second. T_comp =
    slowdown * simulated seconds of the slowest client + overhead + the server's own time. The
    paper's estimates of a cross-device system are 0.75 MB/s down, 0.25 MB/s up, a slowdown of 7
    relative to the simulation, and 10 s of overhead. A simulated local step takes the declared
    `step_seconds`, so that results do not depend on the machine. In asynchronous rounds T_round is
    the length of a tick, and the device is one of delay 0.
    """

    download: float = Field(0.75e6, gt=0)
    """Download rate of a device, in bytes per second."""
    upload: float = Field(0.25e6, gt=0)
    """Upload rate of a device, in bytes per second."""
    slowdown: float = Field(7.0, ge=0)
    """Computation time of a device relative to the simulation."""
    overhead: float = Field(10.0, ge=0)
    """Overhead of a device per round, in seconds, in addition to its steps."""
    server_seconds: float = Field(0.0, ge=0)
    """Computation time of the server per round, in seconds."""
    step_seconds: float = Field(0.001, ge=0)
    """Duration of a simulated local step, in seconds."""

    def seconds(self, down: float, up: float, steps: int) -> float:
        """Returns the duration of a round, in seconds.

        Args:
          down: bytes sent to each client.
          up: bytes sent by each client.
          steps: number of local steps of the slowest client.
        """
        communication = down / self.download + up / self.upload
        computation = self.slowdown * steps * self.step_seconds + self.overhead
        return communication + computation + self.server_seconds


Present = NDArray[np.bool_]


class Availability(Protocol):
    """A rule of client availability that depends on public randomness only."""

    varies: ClassVar[bool]
    """Whether a client's availability changes between rounds."""

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        """Returns a mask `[n]` of the clients `who` `[n]` that are available in `round`."""


class Always(Part):
    """Makes every client available in every round."""

    varies: ClassVar[bool] = False

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        return np.ones(len(who), dtype=bool)


class Daily(Part):
    """Makes availability follow the time of day: most clients at night, few by day.

    A client is available with a probability between `least` and 1, a cosine over `day` rounds. The
    time of a client's peak is uniform over a fraction `spread` of the day, and fixed for the run. A
    `spread` of 0 puts all clients in one time zone, 1 spreads them over the complete day.
    """

    varies: ClassVar[bool] = True
    day: int = Field(24, ge=1)
    """Number of rounds of a day."""
    least: float = Field(0.2, ge=0, le=1)
    """Least probability of being available."""
    spread: float = Field(0.25, ge=0, le=1)
    """Fraction of the day over which clients' peaks are spread."""

    def chance(self, round: int, phase: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the probability `[n]` that each client is available, by its phase in [0, 1).

        A client's peak is `phase` * `spread` of a day later than at phase 0.
        """
        hour = 2 * np.pi * (round / self.day - self.spread * phase)
        return self.least + (1 - self.least) * (1 + np.cos(hour)) / 2

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        phase = uniforms(_words("availability/phase", 0, who, streams))
        return bernoulli(_words("availability", round, who, streams), self.chance(round, phase))


class Groups(Part):
    """Makes groups of clients available in turn, each for `turn` rounds at a time.

    A client's group is random, and fixed for the run.
    """

    varies: ClassVar[bool] = True
    groups: int = Field(4, ge=1)
    """Number of groups."""
    turn: int = Field(1, ge=1)
    """Number of rounds of a group's turn."""

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        group = np.floor(uniforms(_words("availability/group", 0, who, streams)) * self.groups)
        return np.asarray(group == round // self.turn % self.groups)


def _words(stream: str, round: int, who: Indices, streams: Streams) -> Words:
    return streams.at(stream, round, who).per_client(1)[:, 0]
