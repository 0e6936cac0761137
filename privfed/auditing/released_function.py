"""A user's randomised function, which releases numbers about one of two neighbouring inputs.

The function is called as `release(member, generator)`. `member` selects one of two neighbouring
inputs, with or without the tested individual; their content is up to the function. `generator` is a
new `numpy.random.Generator` for every call; a function with its own randomness may ignore it. The
function returns everything that is published, as real numbers, equally many in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.core.errors import Refused
from privfed.core.parts import imported
from privfed.core.user_code import in_user_code

Numbers = NDArray[np.float64]
MOST_NUMBERS = 2**27
"""Largest number of values held in memory, of one release or of all releases on one neighbour."""
_REAL = "biuf"
"""Kinds of NumPy dtypes that hold real numbers."""
_EXACT = 2**53
"""Largest integer up to which float64 represents every integer exactly."""


@dataclass(frozen=True)
class ReleasedFunction:
    """The function `call`, with the `name` that messages use."""

    name: str
    call: Callable[[bool, np.random.Generator], Any]

    @classmethod
    def named(cls, name: str, key: str) -> ReleasedFunction:
        """Imports the function `name` ("module:name"). Raises `Refused` if there is none.

        `key` is the option that the message names.
        """
        if not all(name.partition(":")):
            raise Refused(f"{key} is {name!r}; expected module:name, a function in a module")
        return cls.of(imported(name, name, key), name)

    @classmethod
    def of(cls, function: Any, name: str | None = None) -> ReleasedFunction:
        """Wraps the callable `function`. Raises `Refused` for a class, or if it is not callable.

        If `name` is None, it is the function's qualified name, or else the name of its class.
        """
        name = name or str(getattr(function, "__qualname__", type(function).__qualname__))
        if not callable(function) or isinstance(function, type):
            raise Refused(
                f"{name} is {'a class' if isinstance(function, type) else 'no function'}; expected "
                "a function release(member, generator) that returns numbers, or an object with "
                "such a method __call__"
            )
        return cls(name, function)

    @property
    def profile(self) -> Callable[[float], float] | None:
        """The method `profile` of the function, its claim: returns epsilon for a delta.

        None if the function has no such method. Calling the result raises `Refused` if the method
        fails, or returns no number of 0 or more.
        """
        profile = getattr(self.call, "profile", None)
        return self._claiming(profile) if callable(profile) else None

    def release(self, member: bool, generator: np.random.Generator) -> Numbers:
        """Calls the function once and returns its release.

        Args:
          member: whether to use the neighbouring input with the member, or the one without.
          generator: randomness for this call.

        Returns:
          The released numbers, shape `[k]`, float64.

        Raises:
          Refused: if the function fails, or does not return real numbers, or returns more than
            `MOST_NUMBERS` of them, or integers beyond 2^53.
        """
        released = self._result_of(self.call, member, generator)
        array = _array(released)
        if not array.size or array.dtype.kind not in _REAL:
            raise Refused(
                f"{self.name} returned {_described(released)}, but a release consists of real "
                "numbers; return an array of at least one real number, and equally many in every "
                "call"
            )
        if array.size > MOST_NUMBERS:
            raise Refused(
                f"{self.name} returned {array.size:,} numbers, which do not fit into memory; "
                f"release at most {MOST_NUMBERS:,} of the numbers"
            )
        if array.dtype.kind in "iu" and max(-int(array.min()), int(array.max())) > _EXACT:
            raise Refused(
                f"{self.name} returned integers beyond 2**53, but floating point drops their low "
                "bits; return high and low bits as separate numbers"
            )
        return array.astype(np.float64).ravel()

    def _claiming(self, profile: Callable[[float], Any]) -> Callable[[float], float]:
        def epsilon(delta: float) -> float:
            claimed = self._result_of(profile, delta)
            try:
                claimed = float(claimed)
            except (TypeError, ValueError):
                claimed = -1.0
            if not claimed >= 0:
                raise Refused(
                    f"{self.name}.profile({delta:g}) returned no epsilon; expected a number of 0 "
                    "or more"
                )
            return float(claimed)

        return epsilon

    def _result_of(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `function`, and returns its result.

        If it fails, raises `Refused`; the message states the lines of the user's code that failed.
        """
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # raised by the user's code
            reason = " ".join(str(error).split())
            raise Refused(
                f"{self.name} failed: {type(error).__name__}: {reason}; it is called as "
                f"release(member, generator), and its profile with delta{in_user_code(error)}"
            ) from error


def _array(released: Any) -> NDArray[Any]:
    """Returns `released` as an array; an empty array if it cannot be converted."""
    try:
        return np.asarray(released)
    except Exception:  # converting a user's object may run the user's code too
        return np.empty(0)


def _described(released: Any) -> str:
    """Returns the type of `released`, with the dtype of an array."""
    kind = type(released).__name__
    return f"{kind} of {released.dtype}" if isinstance(released, np.ndarray) else kind
