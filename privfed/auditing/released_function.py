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

from privfed.core.errors import Refused
from privfed.core.own_code import in_own_code
from privfed.core.parts import imported

Numbers = NDArray[np.float64]
MOST_NUMBERS = 2**27
"""How many numbers are held at most, of one release or of all on one neighbour."""
_REAL = "biuf"
"""The kinds of numpy's types that hold real numbers."""
_EXACT = 2**53
"""Up to here double precision holds every integer."""


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
        array = _array(released)
        if not array.size or array.dtype.kind not in _REAL:
            raise Refused(
                f"{self.name} returned {_described(released)}, which are no numbers; expected "
                "an array of real numbers, as many each time"
            )
        if array.size > MOST_NUMBERS:
            raise Refused(
                f"{self.name} returned {array.size:,} numbers, which do not fit into memory; "
                f"expected at most {MOST_NUMBERS:,}: release some of them"
            )
        if array.dtype.kind in "iu" and max(-int(array.min()), int(array.max())) > _EXACT:
            raise Refused(
                f"{self.name} returned integers beyond 2**53, of which floating point drops low "
                "bits; expected smaller ones: return high and low bits apart"
            )
        return array.astype(np.float64).ravel()

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


def _array(released: Any) -> NDArray[Any]:
    """What was `released` as an array; an empty one where it is none, of one form or that fits."""
    try:
        return np.asarray(released)
    except Exception:  # what a value does when it is read is the user's own, too
        return np.empty(0)


def _described(released: Any) -> str:
    """The type of `released`, and that of its elements where it is an array."""
    kind = type(released).__name__
    return f"{kind} of {released.dtype}" if isinstance(released, np.ndarray) else kind
