"""What mechanisms that add noise have in common."""

from __future__ import annotations

from typing import ClassVar, Protocol, Self, cast

from pydantic import Field

from privfed.privacy.mechanism import Mechanism, MechanismPart


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
