"""Schedules of learning rates: a factor of the clients' or the server's rate in each round."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import ClassVar, Protocol

from pydantic import Field

from privfed.core.errors import Refused
from privfed.core.parts import Part, part_with_objects
from privfed.core.user_code import in_user_code


class Schedule(Protocol):
    """A factor of the learning rate for each round, public and independent of the run's results."""

    def factor(self, round: int) -> float:
        """Returns the factor of the learning rate in `round`, counted from 1."""


class Constant(Part):
    """The same learning rate in every round."""

    def factor(self, round: int) -> float:
        return 1.0


CONSTANT = Constant()


class Staircase(Part):
    """Multiplies the rate by `decay` every `every` rounds (Reddi et al. 2021: 0.1 every 500)."""

    decay: float = Field(0.1, gt=0, le=1)
    """The factor of a step."""
    every: int = Field(500, ge=1)
    """The number of rounds in a step."""

    def factor(self, round: int) -> float:
        return float(self.decay ** ((round - 1) // self.every))


class WarmUp(Part):
    """Raises the rate linearly over rounds 1 to `warmup`, then leaves it constant.

    The factor is 1 / `warmup` in round 1, and 1 from round `warmup` on.
    """

    warmup: int = Field(10, ge=1)
    """The number of rounds over which the rate rises."""

    def factor(self, round: int) -> float:
        return min(round / self.warmup, 1.0)


class Cosine(Part):
    """Lowers the rate to zero over `over` rounds, as half a cosine (Loshchilov & Hutter 2017).

    The factor is 1 in round 1, and 0 from round `over` + 1 on.
    """

    over: int = Field(ge=1, examples=[10])
    """The number of rounds over which the rate falls; from the next round on, it is zero."""

    def factor(self, round: int) -> float:
        progress = min((round - 1) / self.over, 1.0)
        return (1 + math.cos(math.pi * progress)) / 2


class UserSchedule(Part):
    """A user's function of the round, counted from 1, which returns the factor of the rate."""

    function: ClassVar[Callable[[int], float]]

    @classmethod
    def of(cls, function: Callable[[int], float]) -> type[UserSchedule]:
        """Returns a schedule class whose factors are the results of `function`."""
        return part_with_objects(cls, function, function=staticmethod(function))

    def factor(self, round: int) -> float:
        """Returns the function's result. Raises `Refused` unless it is finite and at least 0."""
        name = f"the schedule {type(self).__qualname__}"
        try:
            factor = type(self).function(round)
        except (Exception, SystemExit) as error:  # it is the user's own code
            reason = " ".join(str(error).split())
            raise Refused(
                f"{name} failed in round {round}: {type(error).__name__}: {reason}; correct the "
                f"function, which is called with the round, from 1{in_user_code(error)}"
            ) from error
        if not isinstance(factor, numbers.Real) or not 0 <= factor < math.inf:
            raise Refused(
                f"{name} returns {factor!r} in round {round}; expected a factor of the learning "
                "rate, a finite number of at least 0"
            )
        return float(factor)
