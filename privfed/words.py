"""Numbers as people read them: sizes, durations, and epsilons that are never rounded down."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """A number to ten digits; a dash for none."""
    if value is None:
        return "—"
    return "∞" if value == math.inf else f"{value:.10g}"


def ceiling(value: float | None) -> str:
    """`value` rounded up to four decimals or three digits: never less ε or noise than there is."""
    if value is None or value in (0.0, math.inf):
        return number(value)
    if value < 1e-3:
        scale = 10.0 ** (2 - math.floor(math.log10(value)))
        return f"{math.ceil(value * scale) / scale:.3g}"
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def size_of(count: float) -> str:
    """Bytes in words: 1.2 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds in words: 1.2 min."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.2g} h"


def about_groups(name: str) -> bool:
    """Whether the measure `name` is that of a declared group, or of how far these lie apart."""
    apart = ("worst_group_", "group_gap_", "opportunity_gap")
    return name.endswith("]") or name.startswith(apart)


def measure(name: str, value: float) -> str:
    """The measure `name` as people read it: accuracy in per cent, a group's too."""
    of_all = name.partition("[")[0].removeprefix("worst_group_")
    return f"{value:.2%}" if of_all == "accuracy" else f"{value:.4g}"
