"""A randomised function of somebody's own, which releases numbers about one of two neighbours.

It is called as `release(member, generator)`. `member` says which of two neighbouring inputs it is
to work on, whatever these are: with the person in question, or without. `generator` is a
`numpy.random.Generator` of its own for every call; who has other randomness leaves it. What comes
back are numbers, as many each time: all that is published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.errors import Refused
from privfed.own_code import in_own_code
from privfed.parts import imported

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedFunction:
    """The function `call`, which messages call `name`."""

    name: str
    call: Callable[[bool, np.random.Generator], Any]

    @classmethod
    def named(cls, name: str, key: str) -> ReleasedFunction:
        """The function at `name`, `module:name`, for the option `key`. Raises `Refused`."""
        if not all(name.partition(":")):
            raise Refused(f"{key} is {name!r}; expected module:name, a function in a module")
        return cls.of(imported(name, name, key), name)

    @classmethod
    def of(cls, function: Any, name: str | None = None) -> ReleasedFunction:
        """The callable `function`. Raises `Refused` for anything else."""
        name = name or str(getattr(function, "__qualname__", type(function).__qualname__))
        if not callable(function) or isinstance(function, type):
            raise Refused(
                f"{name} is {'a class' if isinstance(function, type) else 'no function'}; expected "
                "a function release(member, generator) that returns numbers, or an object that "
                "can be called so"
            )
        return cls(name, function)

    @property
    def profile(self) -> Callable[[float], float] | None:
        """Its own claim, epsilon by delta, where it has one: its attribute `profile`."""
        profile = getattr(self.call, "profile", None)
        return self._claiming(profile) if callable(profile) else None

    def release(self, member: bool, generator: np.random.Generator) -> Numbers:
        """What it releases `[k]`. Raises `Refused` where it fails, or returns no numbers."""
        released = self._asked(self.call, member, generator)
        try:
            numbers = np.asarray(released, dtype=np.float64).ravel()
        except (TypeError, ValueError, RuntimeError):
            numbers = np.empty(0)
        if released is None or not len(numbers):
            raise Refused(
                f"{self.name} returned {type(released).__name__}, which are no numbers; expected "
                "an array of real numbers, as many each time"
            )
        return numbers

    def _claiming(self, profile: Callable[[float], Any]) -> Callable[[float], float]:
        def epsilon(delta: float) -> float:
            claimed = self._asked(profile, delta)
            try:
                claimed = float(claimed)
            except (TypeError, ValueError):
                claimed = -1.0
            if not claimed >= 0:
                raise Refused(f"{self.name}.profile({delta:g}) is no epsilon; expected 0 or more")
            return float(claimed)

        return epsilon

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function` answers. Raises `Refused` where it fails, with the user's own lines."""
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # it is the user's own code
            reason = " ".join(str(error).split())
            raise Refused(
                f"{self.name} failed: {type(error).__name__}: {reason}; it is called as "
                f"release(member, generator), and its profile with delta{in_own_code(error)}"
            ) from error
