"""Cost model of a sum: the number of operations of each kind, and the time per operation."""

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
"""Seconds per operation of each kind on one core, measured by
`experiments.benchmarks.sums.layered`.
"""


@dataclass(frozen=True)
class Operations:
    """Number of operations of each kind, over all parties of one sum.

    Attributes:
      encoded: numbers rounded and added.
      masked: bytes of masks expanded and added.
      packed: bytes of rows packed, signed, checked and unpacked.
      drawn: noise values drawn from seeds.
      fresh: noise values drawn from the operating system's generator.
      agreements: key agreements.
      derived: keys derived.
      sealed: texts sealed or opened.
      signatures: signatures made or checked.
      products: products in the field of shared secrets.
      exact_blocks: integer blocks encrypted, checked and added.
      approximate_blocks: real-valued blocks encrypted, checked and added.
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
        """Approximate time of all operations on one core, in seconds (`UNIT_SECONDS` of each)."""
        counts = ((each.name, float(getattr(self, each.name))) for each in fields(self))
        return sum(UNIT_SECONDS[kind] * count for kind, count in counts)

    def plus(self, other: Operations, times: int = 1) -> Operations:
        """Returns these operations and `times` the `other` ones."""
        names = [each.name for each in fields(self)]
        return Operations(
            **{name: getattr(self, name) + times * getattr(other, name) for name in names}
        )
