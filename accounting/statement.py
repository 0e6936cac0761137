"""An epsilon as text: always with its delta, and rounded up."""

from __future__ import annotations

import math
from collections.abc import Mapping

NOMINAL = " (nominal)"
"""Mark on the epsilon of a simulation, which protects no real data."""


def ceiling(value: float | None) -> str:
    """Formats `value`, rounded up: four decimals, or three significant digits below 0.001.

    0 is "0", infinity "∞", and None "—".
    """
    if value is None:
        return "—"
    if value in (0.0, math.inf):
        return "∞" if value else "0"
    if value < 1e-3:
        scale = 10.0 ** (2 - math.floor(math.log10(value)))
        return f"{math.ceil(value * scale) / scale:.3g}"
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def at_delta(delta: float | None, digits: int = 6) -> str:
    """Returns the delta of an epsilon as text, to `digits` significant digits: "at δ = 0.0001".

    For None the text is "at δ = —".
    """
    return "at δ = —" if delta is None else f"at δ = {delta:.{digits}g}"


def each_epsilon(by_accountant: Mapping[str, float | None]) -> str:
    """Returns every accountant's epsilon: "rdp 4.3581, pld not available for this noise"."""
    missing = "not available for this noise"
    return ", ".join(
        f"{name} {missing if bound is None else ceiling(bound)}"
        for name, bound in by_accountant.items()
    )


def epsilon_at(
    epsilon: float | None, delta: float | None, nominal: bool = False, digits: int = 6
) -> str:
    """Returns epsilon (`ceiling`) with delta (`at_delta`): "3.9987 at δ = 0.0001".

    `nominal` adds " (nominal)", the mark of a simulation.
    """
    return f"{ceiling(epsilon)} {at_delta(delta, digits)}" + NOMINAL * nominal
