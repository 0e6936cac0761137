"""What mechanisms have in common whose noise the server correlates over rounds."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from privfed.deferred import torch
from privfed.errors import Refused
from privfed.privacy.mechanism import BoundedSum, Mechanism, PublicState, require_bounded
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.noised import NoisedMechanism
from privfed.privacy.noise.correlated import CorrelatedKeys
from privfed.streams import Keys

if TYPE_CHECKING:
    from torch import Tensor


class CorrelatedMechanism(NoisedMechanism):
    """Releases x_t + Y_t in round t, over a constant divisor, where C Y = Z.

    x_t is the sum of clipped rows, Z independent over rounds, and C known to all. Only the server's
    own, kept keys make Y: independent ones would be another mechanism.
    """

    trust: ClassVar[Literal["server"]] = "server"
    remembers: ClassVar[bool] = True

    @abstractmethod
    def deviation(self) -> float:
        """The deviation of Z, which is that of the first round's noise, in clips."""

    def noise_on_update(self, size: int = 1) -> float:
        return self.deviation()

    def with_clip(self, clip: float) -> Mechanism:
        return cast("Mechanism", CentralGaussian(clip=clip))

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        require_bounded(total, self.clip)
        if not isinstance(keys, CorrelatedKeys):
            raise TypeError("this noise is correlated over rounds; independent keys are no proof")
        noise = torch.from_numpy(keys.noise(self.deviation() * total.bound))
        return ((total.total + noise.to(total.total)) / divisor).float(), state


def refuse_exchanges(exchanges: int) -> None:
    """Raises `Refused` for rounds of several exchanges: correlated noise has no proof for them."""
    if exchanges > 1:
        raise Refused(
            f"noise that is correlated over rounds has no proof for rounds of {exchanges} "
            "exchanges; use an objective and a rule with one (aggregation.passes), or "
            'privacy.mechanism = "gaussian"'
        )
