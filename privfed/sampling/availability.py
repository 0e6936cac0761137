"""Which clients are available when: a simulation of clients that come and go.

Whether a client is available follows from public coins and the round, and reads nobody's data. A
client that is drawn but not available sends nothing. So a client takes part at most as often as its
sampler says, and contributes zero otherwise: every sampler's event holds as it is (PRIVACY: dropout
by public exogenous coins), at the price of smaller cohorts, while the divisor stays.

How long a round would take on clients' devices: the basic model of the Field Guide (Wang et al.
2021, "A field guide to federated optimization", equation 9).
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from privfed.core.parts import Part
from privfed.core.streams import Streams, Words, coins, uniforms
from privfed.core.vector import Indices


class Devices(Part):
    """T_round = T_comm + T_comp, of a cohort that works in parallel and is waited for.

    T_comm = down / download + up / upload, bytes of one client over bytes per second; T_comp = the
    longest client's slowdown * simulated seconds + overhead, and the server's own time. The paper's
    estimates of a cross-device system are 0.75 MB/s down, 0.25 MB/s up, a slowdown of 7 against the
    simulation, and 10 s of overhead. A simulated local step takes `step_seconds`, declared, so that
    studies do not depend on the machine they ran on.
    """

    download: float = Field(0.75e6, gt=0)
    """Bytes a second that a device is sent."""
    upload: float = Field(0.25e6, gt=0)
    """Bytes a second that a device sends."""
    slowdown: float = Field(7.0, ge=0)
    """How many times slower than the simulation a device computes."""
    overhead: float = Field(10.0, ge=0)
    """Seconds that a round costs a device beside its steps."""
    server_seconds: float = Field(0.0, ge=0)
    """Seconds of the server in a round."""
    step_seconds: float = Field(0.001, ge=0)
    """Seconds of a simulated local step."""

    def seconds(self, down: float, up: float, steps: int) -> float:
        """The seconds of a round in which a client is sent `down` bytes and sends `up` bytes.

        The client that takes longest takes `steps` local steps.
        """
        communication = down / self.download + up / self.upload
        computation = self.slowdown * steps * self.step_seconds + self.overhead
        return communication + computation + self.server_seconds


Present = NDArray[np.bool_]


class Availability(Protocol):
    """A rule by which clients are available, from public coins alone."""

    varies: ClassVar[bool]
    """Whether a client is available in some rounds and not in others."""

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        """Which of the clients `who` `[n]`, by their own numbers, are available in `round`."""
        ...


class Always(Part):
    """Every client can be sampled in every round."""

    varies: ClassVar[bool] = False

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        return np.ones(len(who), dtype=bool)


class Daily(Part):
    """Availability follows the hour: most clients at night, few by day.

    A client is available with a probability between `least` and 1, a cosine over `day` rounds. Its
    peak lies anywhere in a share `spread` of the day, drawn once: 0 puts all in one time zone, 1
    evens the day out.
    """

    varies: ClassVar[bool] = True
    day: int = Field(24, ge=1)
    """How many rounds a day has."""
    least: float = Field(0.2, ge=0, le=1)
    """The least probability to be available."""
    spread: float = Field(0.25, ge=0, le=1)
    """Over which part of the day clients' peaks lie."""

    def chance(self, round: int, phase: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability `[n]` that each client is available, from its phase `[n]` in [0, 1)."""
        hour = 2 * np.pi * (round / self.day - self.spread * phase)
        return self.least + (1 - self.least) * (1 + np.cos(hour)) / 2

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        phase = uniforms(_words("availability/phase", 0, who, streams))
        return coins(_words("availability", round, who, streams), self.chance(round, phase))


class Groups(Part):
    """Groups of clients take turns: each is at hand for `turn` rounds, then the next one is."""

    varies: ClassVar[bool] = True
    groups: int = Field(4, ge=1)
    """How many groups there are."""
    turn: int = Field(1, ge=1)
    """How many rounds a group's turn has."""

    def present(self, round: int, who: Indices, streams: Streams) -> Present:
        group = np.floor(uniforms(_words("availability/group", 0, who, streams)) * self.groups)
        return np.asarray(group == round // self.turn % self.groups)


def _words(stream: str, round: int, who: Indices, streams: Streams) -> Words:
    return streams.at(stream, round, who).per_client(1)[:, 0]
