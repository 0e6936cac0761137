"""Lower bounds on the noise variance that honest parties add and keep secret.

If several parties add noise, only the shares of honest parties protect a client. A ledger states
the division of a run's noise among parties. A later run with more colluding or Byzantine parties
can then recompute the earlier run's guarantee against these parties.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from privfed.privacy.noise.pairwise import alone_for_ratio


@dataclass(frozen=True)
class NoiseOfClients:
    """Noise whose shares clients add, in a secure sum over an expected cohort of `size`.

    Counted noise is the part of the noise that the privacy guarantee relies on.

    Attributes:
      size: expected cohort size, a public constant.
      survivors: least number of clients that add the counted noise; each adds at most
        1 / survivors of its variance.
      colluders: fraction of a cohort that the run itself assumes to collude.
      known_at_least: upper bound on the fraction of the counted noise known to the server with the
        run's own colluders; it is also subtracted for fewer colluders.
      known: factor b: with a fraction c of colluders at most b * c of the counted noise is known.
      colluders_tolerated: largest `secure.colluders` for which the executed protocol hides rows.
      aborts: lower bound on the part of `Event.slack` that covers visible aborts.
    """

    size: int
    survivors: int
    colluders: float
    known_at_least: float
    known: float
    colluders_tolerated: float
    aborts: float = 0.0
    kind: ClassVar[str] = "clients"

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Returns a lower bound on the fraction of the noise variance that protects a client.

        This noise was added by honest clients, and the adversary does not know it. Byzantine
        clients add no noise; the server also knows colluders' shares. Readers take no part in the
        sum, so they know no share. For the run's own parameters the result is the fraction with
        which the run was charged. If it is 0 or negative, no noise protects clients.

        Args:
          against: the adversary: "server" or "readers".
          colluders: fraction of a cohort that colludes with the server.
          byzantine: number of Byzantine clients.
        """
        added = 1.0 - byzantine / self.survivors
        if against == "readers":
            return added
        if colluders <= self.colluders:
            return added - self.known_at_least
        return added - max(self.known_at_least, self.known * colluders)


@dataclass(frozen=True)
class NoiseOfSites:
    """Noise that sites add in equal shares; at least `minimum` sites survive.

    Colluding and Byzantine sites are counted together, as integers. With noise in layers
    (`privfed.privacy.noise.shares.Layers`), each of m survivors keeps at least 1 / (m - k) of the
    variance (z C)^2, with k the number of colluders for which the noise was sized
    (`privfed.privacy.setting`). So m = `minimum` is the worst case for layers as well.

    Attributes:
      size: number of sites.
      minimum: least number of surviving sites; of each region, if sites form regions. The part that
        colluders know is then at most that of a region in which they all are.
      colluders_tolerated: largest number of colluding sites from which the executed protocol hides
        rows.
    """

    size: int
    minimum: int
    colluders_tolerated: float
    kind: ClassVar[str] = "sites"
    aborts: ClassVar[float] = 0.0

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Returns a lower bound on the fraction of the noise variance that protects a client.

        `against` is "sites" (the server with colluding sites) or "others" (all sites except the
        client's own). Against "others" it is 1, since the charged event counts the noise of the
        client's own site only. `colluders` is the number of colluding and Byzantine sites.
        """
        return 1.0 if against == "others" else 1.0 - colluders / self.minimum


@dataclass(frozen=True)
class NoiseOfPairs:
    """Noise of `size` clients, most of which is shared by pairs of clients.

    Byzantine clients are counted as colluders.

    Attributes:
      size: number of clients, all of which take part.
      pair_noise: standard deviation shared by a pair, relative to a client's own.
    """

    size: int
    pair_noise: float
    kind: ClassVar[str] = "pairs"
    colluders_tolerated: ClassVar[float] = math.inf
    aborts: ClassVar[float] = 0.0

    def part(self, against: str, colluders: float, byzantine: int) -> float:
        """Returns the variance of equivalent independent noise over that of a client's own noise.

        Noise is equivalent if it hides one row equally well (`alone_for_ratio`). `colluders` is the
        number of colluding and Byzantine clients; the result is 0 if no other client remains.
        `against` and `byzantine` are ignored.
        """
        honest = self.size - math.ceil(colluders)
        return alone_for_ratio(self.pair_noise, honest) ** -2 if honest > 0 else 0.0


CountedNoise = NoiseOfClients | NoiseOfSites | NoiseOfPairs
_KINDS: Mapping[str, type[CountedNoise]] = {
    kind.kind: kind for kind in (NoiseOfClients, NoiseOfSites, NoiseOfPairs)
}


def counted_to_json(noise: CountedNoise) -> dict[str, Any]:
    """Returns the JSON object in which a ledger states `noise`."""
    return {"among": noise.kind, **asdict(noise)}


def counted_from_json(stated: Mapping[str, Any]) -> CountedNoise:
    """Returns the noise that `counted_to_json` stated.

    Raises `KeyError` or `TypeError` if `stated` is malformed.
    """
    facts = dict(stated)
    kind = _KINDS[facts.pop("among")]
    if not all(isinstance(fact, bool) or is_count(fact) for fact in facts.values()):
        raise TypeError("expected numbers from 0")
    return kind(**facts)


def is_count(value: object) -> bool:
    """Whether `value` is a nonnegative float (or infinity), or an int within a float's range.

    NaN, booleans and objects of other types are not.
    """
    if type(value) is int:
        return 0 <= value <= sys.float_info.max
    return type(value) is float and value >= 0
