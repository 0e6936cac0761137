"""What a secure sum is configured for, beside its protocol's own keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sums of at most `capacity` clients and at least `minimum`, else they abort.

    `arithmetic`: no cryptography runs; numbers are encoded, summed and lost as it would do it.
    """

    capacity: int
    minimum: int = 0
    arithmetic: bool = False
