"""What a user-level privacy mechanism is, and the bounded types that noise insists on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting.events import Event
from privfed.core.deferred import Tensor
from privfed.core.parts import Part
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.integers import Share
from privfed.privacy.noise.correlated import Correlated
from privfed.privacy.setting import Setting
from privfed.sampling.cohort import Witness

PublicState = Mapping[str, "Tensor"]
"""A mechanism's public state: part of what is released, stored and checkpointed."""


@dataclass(frozen=True)
class BoundedRows:
    """`rows` `[c, m]`, one per client, each of L2 norm at most `bound` (infinite: no proof).

    Only `privfed.privacy.clipping` makes rows with a finite bound; a test keeps it so.
    """

    rows: Tensor
    bound: float
    hostile: NDArray[np.bool_] | None = None
    """Rows `[c]` that simulated attackers sent as they like: the bound is that of the others."""


@dataclass(frozen=True)
class BoundedSum:
    """`total` `[m]` float64: a sum of rows, one per surviving client, each of norm <= `bound`.

    Adding or removing one client moves it by at most `bound`, to which noise is calibrated: that of
    what was really summed (encoded rows may be longer than clipped ones). `survivors` counts the
    rows; under privacy it is simulation-only and never divides anything.
    """

    total: Tensor
    bound: float
    survivors: int


@dataclass(frozen=True)
class Encoding:
    """What a sum is opened for: rows of L2 norm at most `bound` (infinite: none is proved).

    A codec may divide that bound into at most `resolution` steps: central noise has a grid that
    sums have to lie on. Distributed noise instead fixes the `step`, and `noise` is what each party
    adds in whole steps of it: a client, or a site for all of its clients.
    """

    bound: float = math.inf
    resolution: float = math.inf
    step: float | None = None
    noise: Share | None = None
    site_deviation: float = 0.0
    """The deviation of the Gaussian noise that each site adds to its clients' sum by itself."""


@dataclass(frozen=True)
class SumWithNoise(BoundedSum):
    """A bounded sum with its mechanism's noise: of processes that share a run, each adds some."""


def draws_in_parts(mechanism: Mechanism) -> bool:
    """Whether processes may each draw a part of the noise that `release` would draw at once.

    So it is where one class has both. A class that redefines `release` alone is handed the sum
    before its noise, as in one process: what the `noised` of its base adds is not known to be what
    it means to add. And one that redefines `noised` alone is not asked for it by its base.
    """
    for each in type(mechanism).__mro__:
        if "noised" in vars(each) or "release" in vars(each):
            return "noised" in vars(each) and "release" in vars(each)
    return False


def require_bounded(total: BoundedSum, norm: float) -> None:
    """Raises `TypeError` for what has no proven bound, or one below that of the rows."""
    if not isinstance(total, BoundedSum) or not norm <= total.bound < math.inf:
        raise TypeError("noise needs a BoundedSum of rows with a norm: nothing else is private")


class MechanismPart(Part):
    """What is so of most mechanisms: nothing to resolve, no state, and fresh noise each round."""

    remembers: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    @property
    def layered(self) -> bool:
        return False

    @property
    def adaptive(self) -> bool:
        return False

    def coefficients(self) -> NDArray[np.float64]:
        return np.ones(1)

    def memory(self, streams: Streams, length: int) -> Correlated | None:
        return None

    def resolved(self, setting: Setting) -> Self:
        return self

    def in_parts(self, parts: int) -> Self:
        return self

    def with_clip(self, clip: float) -> Mechanism:
        return cast("Mechanism", self)

    def init(self) -> PublicState:
        return {}

    def width(self, layout: Layout) -> int:
        return layout.length

    def noised(self, total: BoundedSum, keys: Keys, state: PublicState, part: slice) -> BoundedSum:
        return total


class NoiseKind(Protocol):
    """The declarations of a mechanism: who adds which noise."""

    trust: ClassVar[Literal["server", "sum", "client", "nobody"]]
    """The origin of the noise: who has to be trusted with anything rawer ("nobody": no noise)."""
    arithmetic: ClassVar[str]
    """What of the noise's proof holds in floating point."""
    private: ClassVar[bool]
    """Whether weights are uniform and the divisor is fixed by configuration."""
    remembers: ClassVar[bool]
    """Whether its noise is correlated over rounds (`privfed.privacy.noise.correlated`)."""
    joint: ClassVar[bool]
    """Whether clients share noise, so that `bound` is given all rows of a cohort at once, which a
    rule on rows sees (`privfed.privacy.shared_noise`)."""

    @property
    def clip(self) -> float:
        """What rows are clipped to at first; infinite where nothing is promised."""
        ...

    @property
    def layered(self) -> bool:
        """Whether clients add noise in layers, of which a sum takes off what is too much."""
        ...

    @property
    def adaptive(self) -> bool:
        """Whether its clip follows the norms of clients' rows."""
        ...


class ChargedNoise(NoiseKind, Protocol):
    """The planned side of a mechanism: constants of the run, and the event that a round charges."""

    def resolved(self, setting: Setting) -> Self:
        """The mechanism with what follows from the run's public constants filled in."""
        ...

    def in_parts(self, parts: int) -> Self:
        """The mechanism for clients whose rows come in `parts`, each clipped to so much less.

        Its noise multiplier is then relative to the clip of one part.
        """
        ...

    def with_clip(self, clip: float) -> Mechanism:
        """The mechanism for other rows, clipped to `clip`: it follows nobody's norms, and its noise
        hangs together with no other round's.
        """
        ...

    def at(self, noise_multiplier: float | None) -> Self:
        """The mechanism with this noise multiplier; None: not calibrated yet."""
        ...

    def event(self, witness: Witness, exchanges: int) -> Event:
        """The whole round as one event, from the rule by which its cohort will be drawn."""
        ...

    def noise_on_update(self, size: int) -> float:
        """The deviation on each coordinate of a sum of `size` clients' updates, in clips."""
        ...


class ReleasedNoise(NoiseKind, Protocol):
    """The executed side of a mechanism: bounded rows, the noise of their sum, and the release."""

    def init(self) -> PublicState:
        """The public state before the first round."""
        ...

    def encoding(self, state: PublicState) -> Encoding:
        """What a sum of its rows is opened for."""
        ...

    def width(self, layout: Layout) -> int:
        """The length of the bounded row of a message with this layout."""
        ...

    def coefficients(self) -> NDArray[np.float64]:
        """The coefficients that correlate noise over rounds `[bands]`; 1 alone where none do."""
        ...

    def memory(self, streams: Streams, length: int) -> Correlated | None:
        """The noise of former rounds `[bands - 1, length]`; None where rounds are independent."""
        ...

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Rows `[c, m]` clipped (and rotated or noised), as each client does it by itself."""
        ...

    def noised(self, total: BoundedSum, keys: Keys, state: PublicState, part: slice) -> BoundedSum:
        """The sum with the noise of its numbers in `part`, where that can be drawn in parts.

        Where several processes add up their sums, each adds the noise of another part before: then
        it is all there, once, and the result a `SumWithNoise`. Else it is left to `release`, as it
        is where a class redefines one of them alone (`draws_in_parts`).
        """
        ...

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        """The noised average `[m]` float32, which is all that leaves, and the next public state.

        A `SumWithNoise` has its noise.
        """
        ...


class Mechanism(ChargedNoise, ReleasedNoise, Protocol):
    """A user-level privacy mechanism: clip, encoding, noise and divisor of a round's sums.

    It alone emits the round's event, so that what is charged is what runs.
    """


class _Calibrated(Protocol):
    @property
    def noise_multiplier(self) -> float | None: ...


class NoisedMechanism(MechanismPart):
    """A mechanism with a clip, and with noise of so many clips as its `noise_multiplier` says.

    Each such mechanism declares that key itself, since it is not of the same noise everywhere.
    """

    clip: float = Field(0.4, ge=1e-6, le=1e20)
    """The clipping norm: the longest update of a client; left out, what suits the loss."""

    private: ClassVar[bool] = True

    def at(self, noise_multiplier: float | None) -> Self:
        return self.model_copy(update={"noise_multiplier": noise_multiplier})

    def in_parts(self, parts: int) -> Self:
        return self.model_copy(update={"clip": self.clip / parts}) if parts > 1 else self

    def with_clip(self, clip: float) -> Mechanism:
        return cast("Mechanism", self.model_copy(update={"clip": clip, "noise_multiplier": None}))

    def _noise(self: _Calibrated) -> float:
        """The noise multiplier. Raises `ValueError` before calibration."""
        if self.noise_multiplier is None:
            raise ValueError("this mechanism has no noise multiplier yet; calibrate it first")
        return self.noise_multiplier
