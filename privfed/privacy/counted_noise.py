"""Lower bounds on the noise variance that honest parties add and keep to themselves.

Noise that several parties add protects a client by the shares of honest parties only. A ledger
states how the noise of a run is divided, so that a later run with more colluding or Byzantine
parties can recompute what the earlier one guarantees against them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from privfed.privacy.noise.pairwise import part_alone


@dataclass(frozen=True)
class NoiseOfClients:
    """Noise whose shares clients add, in a secure sum over an expected cohort of `size`.

    Attributes:
      size: expected cohort size, a public constant.
      survivors: minimum number of clients that share the counted noise; each adds at most
        1 / survivors of its variance.
      colluders: the fraction of a cohort that the run itself takes to collude.
      known_at_least: upper bound on the part of the noise known to these.
      known: upper bound on the part known to colluders, per unit of `secure.colluders`.
      withstood: the largest `secure.colluders` with which the protocol as it ran hides rows.
      aborts: the part of an event's slack that pays for visible aborts, at least.
    """

    size: int
    survivors: int
    colluders: float
    known_at_least: float
    known: float
    withstood: float
    aborts: float = 0.0
    kind: ClassVar[str] = "clients"

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Lower bound on the part of the noise's variance that counts against `against`.

        Byzantine clients add none; against the server colluders' shares are known, too. Readers
        take no part in the sum, so that they know no share. With the run's own numbers it is what
        the run was charged for.
        """
        added = 1.0 - byzantine / self.survivors
        if against == "readers":
            return added
        if colluders <= self.colluders:
            return added - self.known_at_least
        return added - max(self.known_at_least, self.known * colluders)


@dataclass(frozen=True)
class NoiseOfSites:
    """Noise whose shares sites add: of at least `minimum` survivors, in equal parts.

    Colluding and Byzantine sites are counted together, in whole sites. With layers of noise each
    of m survivors keeps at least 1 / (m - k) of (z C)^2, k the colluders it was sized for
    (`privfed.privacy.setting`), so that m = `minimum` is the worst case there, too.

    Attributes:
      size: the number of sites.
      minimum: the fewest surviving sites.
      withstood: the most colluding sites from which the protocol as it ran hides rows.
    """

    size: int
    minimum: int
    withstood: float
    kind: ClassVar[str] = "sites"
    aborts: ClassVar[float] = 0.0

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Lower bound on the part of the noise's variance that counts against `against`."""
        return 1.0 if against == "others" else 1.0 - colluders / self.minimum


@dataclass(frozen=True)
class NoiseOfPairs:
    """Noise of `size` clients, most of which each pair of them shares.

    Byzantine clients are counted as colluders.

    Attributes:
      size: the number of clients, all of whom take part.
      pair_noise: standard deviation that a pair shares over a client's own.
    """

    size: int
    pair_noise: float
    kind: ClassVar[str] = "pairs"
    withstood: ClassVar[float] = math.inf
    aborts: ClassVar[float] = 0.0

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Precision of one row's noise, as if it were independent, over that of its own noise."""
        honest = self.size - math.ceil(colluders)
        return part_alone(self.pair_noise, honest) ** -2 if honest > 0 else 0.0


CountedNoise = NoiseOfClients | NoiseOfSites | NoiseOfPairs
_KINDS: Mapping[str, type[CountedNoise]] = {
    kind.kind: kind for kind in (NoiseOfClients, NoiseOfSites, NoiseOfPairs)
}


def counted_to_json(noise: CountedNoise) -> dict[str, Any]:
    """The object that a ledger states."""
    return {"among": noise.kind, **asdict(noise)}


def counted_from_json(stated: Mapping[str, Any]) -> CountedNoise:
    """Reads `counted_to_json`'s object. Raises `KeyError` or `TypeError` where it is none."""
    facts = dict(stated)
    kind = _KINDS[facts.pop("among")]
    if not all(isinstance(fact, bool) or is_count(fact) for fact in facts.values()):
        raise TypeError("expected numbers from 0")
    return kind(**facts)


def is_count(value: object) -> bool:
    """Whether `value` is a number from 0, infinity included, that a float holds."""
    if type(value) is int:
        return 0 <= value <= sys.float_info.max
    return type(value) is float and value >= 0
