"""Interface of user-level privacy mechanisms, and the types of bounded rows and sums."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting.events import Event
from privfed.core.deferred import Tensor
from privfed.core.parts import Part, or_auto
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.integers import Share
from privfed.privacy.noise.correlated import Correlated
from privfed.privacy.setting import Setting
from privfed.sampling.cohort import Witness

PublicState = Mapping[str, "Tensor"]
"""Public state of a mechanism: released, stored and checkpointed."""


@dataclass(frozen=True)
class BoundedRows:
    """`rows` `[c, m]`, one per client, each of L2 norm at most `bound` (infinite: no proof).

    Only `privfed.privacy.clipping` makes rows with a finite bound; a test enforces this.
    """

    rows: Tensor
    bound: float
    byzantine: NDArray[np.bool_] | None = None
    """Mask `[c]` of rows that simulated attackers sent unbounded; `bound` holds for all others."""


@dataclass(frozen=True)
class BoundedSum:
    """`total` `[m]` float64: a sum of rows, one per surviving client, each of norm at most `bound`.

    Adding or removing one client changes the sum by at most `bound`, to which noise is calibrated.
    `bound` refers to the rows that were summed (encoded rows may be longer than clipped ones).
    `survivors` is the number of rows; under privacy only simulations may read it, and no divisor
    depends on it.
    """

    total: Tensor
    bound: float
    survivors: int


@dataclass(frozen=True)
class Encoding:
    """Parameters of a sum: rows of L2 norm at most `bound` (infinite: none is proved).

    If `step` is None, a codec chooses a step, so that the norm is at most `resolution` steps and
    sums are on the grid of central noise. Distributed noise instead fixes the `step`, and `noise`
    is what each party (a client, or a site for all of its clients) adds, in integer steps.
    """

    bound: float = math.inf
    resolution: float = math.inf
    step: float | None = None
    noise: Share | None = None
    site_std: float = 0.0
    """Standard deviation of the Gaussian noise that each site
    adds to its clients' sum by itself."""


@dataclass(frozen=True)
class SumWithNoise(BoundedSum):
    """A bounded sum with its mechanism's noise, added in parts by several processes."""


def draws_in_parts(mechanism: Mechanism) -> bool:
    """Whether several processes may each draw a part of the noise of `release`.

    This requires that one class defines both `noised` and `release`. A class that redefines only
    `release` receives the sum without noise, as in one process, since the noise that its base class
    adds by `noised` may differ from its own. If a class redefines only `noised`, its base class's
    `release` does not use the redefined method.
    """
    for each in type(mechanism).__mro__:
        if "noised" in vars(each) or "release" in vars(each):
            return "noised" in vars(each) and "release" in vars(each)
    return False


def require_bounded(total: BoundedSum, norm: float) -> None:
    """Raises `TypeError` unless `total` has a proven, finite bound of at least `norm`.

    Noise is calibrated to the bound, which exceeds `norm` where encoded rows may be longer.
    """
    if not isinstance(total, BoundedSum) or not norm <= total.bound < math.inf:
        raise TypeError(
            f"noise needs a BoundedSum with a finite bound of at least {norm}; without one, there "
            "is no guarantee"
        )


class Mechanism(Part):
    """A user-level privacy mechanism: clip, encoding, noise and divisor of a round's sums.

    Only the mechanism emits the round's event, so the charged mechanism is the executed one. By
    default no value of a mechanism depends on the run's public constants (`resolved`), it has no
    public state, and the noise of a round is independent of other rounds.
    """

    trust: ClassVar[Literal["server", "sum", "client", "nobody"]]
    """Trust model, by the data that the server sees: "server": clipped updates; "sum": only the
    noised sum; "client": only noised messages of clients; "nobody": data without noise."""
    arithmetic: ClassVar[str]
    """Description of the arithmetic for which the privacy proof holds."""
    private: ClassVar[bool]
    """Whether the mechanism gives a privacy guarantee; if so, weights are uniform and the divisor
    is a constant of the configuration."""
    remembers: ClassVar[bool] = False
    """Whether the noise is correlated over rounds (`privfed.privacy.noise.correlated`)."""
    joint: ClassVar[bool] = False
    """Whether clients share noise (`privfed.privacy.shared_noise`). Then `bound` receives all rows
    of a cohort at once, and a rule on rows sees the noised rows."""
    _declares: ClassVar[frozenset[str]] = frozenset({"clip"})

    if TYPE_CHECKING:

        @property
        def clip(self) -> float:
            """Initial clipping norm; infinite without a guarantee."""

    @property
    def layered(self) -> bool:
        """Whether clients add noise in layers, and a sum removes the layers in excess."""
        return False

    @property
    def rotates(self) -> bool:
        """Whether rows are rotated by public signs of their own release."""
        return False

    @property
    def adaptive(self) -> bool:
        """Whether the mechanism's clip adapts to the norms of clients' rows."""
        return False

    def resolved(self, setting: Setting) -> Self:
        """Returns the mechanism with all values that depend on the run's public constants set."""
        return self

    def in_parts(self, parts: int) -> Self:
        """Returns the mechanism for clients with `parts` rows, each clipped to clip / `parts`.

        A client has one row at each of `parts` sites. The noise multiplier keeps its value, but is
        then relative to clip / `parts`. A mechanism without a clip is returned unchanged.
        """
        return self

    def with_clip(self, clip: float) -> Mechanism:
        """Returns the mechanism at clipping norm `clip`, for other rows than updates (metrics).

        The returned mechanism's clip is fixed, and its noise is independent of other rounds.
        """
        return self

    @abstractmethod
    def at(self, noise_multiplier: float | None) -> Self:
        """Returns the mechanism with this noise multiplier; None means not yet calibrated."""

    @abstractmethod
    def event(self, witness: Witness, exchanges: int) -> Event:
        """Returns the complete round as one event.

        Args:
          witness: the sampling rule of the round.
          exchanges: number of sums over the same cohort.

        Raises:
          Refused: if there is no proof for the sampler or the number of exchanges.
        """

    @abstractmethod
    def noise_on_update(self, size: int) -> float:
        """Returns the standard deviation of the noise on each coordinate of a sum of updates.

        The unit is the clipping norm; `size` is the number of updates.
        """

    def init(self) -> PublicState:
        """Returns the public state before the first round."""
        return {}

    @abstractmethod
    def encoding(self, state: PublicState) -> Encoding:
        """Returns the parameters of a sum of this mechanism's rows."""

    def width(self, layout: Layout) -> int:
        """Returns the length of the row that `bound` returns for a message with `layout`."""
        return layout.length

    def coefficients(self) -> NDArray[np.float64]:
        """Returns the coefficients `[bands]` that correlate noise over rounds; [1] without any."""
        return np.ones(1)

    def memory(self, streams: Streams, length: int) -> Correlated | None:
        """Returns the source of noise correlated over rounds; None if rounds are independent.

        Its rows have `length` numbers, and its keys come from `streams`.
        """
        return None

    @abstractmethod
    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        """Returns the clipped (and rotated or noised) rows, as each client would compute its row.

        Args:
          rows: client updates, shape [c, m].
          layout: layout of the message.
          keys: random streams of the c clients, for noise that they add themselves.
          state: public state of the mechanism.
        """

    def noised(self, total: BoundedSum, keys: Keys, state: PublicState, part: slice) -> BoundedSum:
        """Returns the sum with noise added to its numbers in `part`.

        It is returned unchanged if the mechanism cannot draw noise in parts.

        If several processes add up their sums, each first adds the noise of a different part. The
        total then contains all noise once, and is a `SumWithNoise`. Otherwise `release` adds the
        noise, for example in classes that redefine only one of the two (`draws_in_parts`).
        """
        return total

    @abstractmethod
    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        """Returns the noised average `[m]` float32, the only output, and the next public state.

        A `SumWithNoise` already contains its noise.

        Args:
          total: the bounded sum of the rows, shape [m].
          divisor: constant divisor of the average.
          keys: source of the noise.
          state: public state of the mechanism.
        """


class _Calibrated(Protocol):
    @property
    def noise_multiplier(self) -> float | None: ...


class NoisedMechanism(Mechanism):
    """A mechanism with a clip, and with noise of `noise_multiplier` clipping norms.

    Each such mechanism declares `noise_multiplier` itself, since the key's meaning depends on the
    kind of noise.
    """

    clip: float = Field(
        0.4,
        ge=1e-6,
        le=1e20,
        description="a number from 1e-06 to 1e+20, or 'auto'",
        json_schema_extra=or_auto,
    )
    """Clipping norm: the largest L2 norm of a client's update, or "auto", as for `client.lr`."""

    private: ClassVar[bool] = True

    def at(self, noise_multiplier: float | None) -> Self:
        return self.model_copy(update={"noise_multiplier": noise_multiplier})

    def in_parts(self, parts: int) -> Self:
        return self.model_copy(update={"clip": self.clip / parts}) if parts > 1 else self

    def with_clip(self, clip: float) -> Mechanism:
        return self.model_copy(update={"clip": clip, "noise_multiplier": None})

    def _noise(self: _Calibrated) -> float:
        """Returns the noise multiplier. Raises `ValueError` if it is not calibrated yet."""
        if self.noise_multiplier is None:
            raise ValueError("this mechanism has no noise multiplier; calibrate it first")
        return self.noise_multiplier
