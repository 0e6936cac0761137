"""What a sum is made of, counted: so many operations of each kind, and what one of each takes."""

from __future__ import annotations

from dataclasses import dataclass, fields

UNIT_SECONDS = {
    "encoded": 1.6e-8,
    "masked": 1.5e-10,
    "packed": 3e-9,
    "drawn": 3.4e-9,
    "fresh": 1.1e-8,
    "agreements": 2.7e-5,
    "derived": 3.2e-6,
    "sealed": 2.6e-6,
    "signatures": 4.5e-5,
    "products": 1.5e-7,
    "exact_blocks": 1.85e-3,
    "approximate_blocks": 2.2e-3,
}
"""What one operation of each kind takes on one core, as `experiments.benchmarks.sums.layered` has
measured it."""


@dataclass(frozen=True)
class Operations:
    """How many operations all parties of one sum do together, by their kinds.

    `encoded` are numbers rounded and added, `masked` bytes of masks expanded and added, `packed`
    bytes of rows packed, signed, checked and unpacked; `drawn` numbers of noise from seeds, `fresh`
    ones from the operating system; `agreements` on keys, keys `derived`, texts `sealed` or opened,
    `signatures` made or checked, `products` in the field of shared secrets; and blocks encrypted,
    checked and added, of whole numbers (`exact_blocks`) or of real ones (`approximate_blocks`).
    """

    encoded: float = 0
    masked: float = 0
    packed: float = 0
    drawn: float = 0
    fresh: float = 0
    agreements: float = 0
    derived: float = 0
    sealed: float = 0
    signatures: float = 0
    products: float = 0
    exact_blocks: float = 0
    approximate_blocks: float = 0

    @property
    def seconds(self) -> float:
        """What they take on one core, about."""
        counts = ((each.name, float(getattr(self, each.name))) for each in fields(self))
        return sum(UNIT_SECONDS[kind] * count for kind, count in counts)
