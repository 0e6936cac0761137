"""The adversary that an epsilon holds against: what a run assumes of other parties.

It says whom an epsilon trusts, how many clients or sites collude with the server or are Byzantine,
and at how many sites one client has rows. Ledgers state it, and runs that differ in it are composed
by `privfed.plan.assumptions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from privfed.config.config import Config
from privfed.privacy.counted_noise import (
    CountedNoise,
    NoiseOfClients,
    NoiseOfPairs,
    NoiseOfSites,
    counted_from_json,
    counted_to_json,
)
from privfed.secure.limits import Limits

_EXACT = 1e-9
"""A tolerance that shields floor and ceil from the last bits of a product."""
SERVER = "the server"
UNSTATED = (
    "its ledger does not state how many parties may collude or be Byzantine, whom it trusts and at "
    'how many sites a client has rows ("assumes")'
)
OWN_SITE = "a client's own site"

ASSUMED = {
    "trusts": "trusted parties",
    "colluders": "colluders",
    "byzantine": "Byzantine clients",
    "sites_per_client": "sites per client",
}
"""What an epsilon assumes of others, by its key under "assumes" in a ledger."""


@dataclass(frozen=True)
class Assumed:
    """The adversary that a run's epsilon holds against, as its ledger states it.

    Attributes:
      trusts: parties that see less processed data than the adversary, or whose behaviour epsilon
        relies on.
      colluders: clients or sites that may work with the server: a fraction of a cohort where
        clients add noise in secure sums, else a number. None: any number, as no noise of others
        counts.
      byzantine: Byzantine clients of a cohort, beyond `colluders`. None: any number of clients at
        honest sites, and of those that share noise in pairs none beyond the colluders.
      byzantine_share: the same as a fraction of the expected cohort.
      sites_per_client: at how many sites one client has rows, at most. None: no sites are declared,
        and a client is all rows of one person.
      noise: among whom the counted noise is, in rounds that train and in those that evaluate; empty
        where no noise of others counts.
    """

    trusts: tuple[str, ...] = ()
    colluders: float | None = None
    byzantine: int | None = None
    byzantine_share: float = 0.0
    sites_per_client: int | None = None
    noise: tuple[CountedNoise, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object under "assumes" in a ledger's terms."""
        return {
            "trusts": list(self.trusts),
            "colluders": self.colluders,
            "byzantine": self.byzantine,
            "byzantine_share": self.byzantine_share,
            "sites_per_client": self.sites_per_client,
            "noise": [counted_to_json(noise) for noise in self.noise],
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Any] | None) -> Self | None:
        """Reads `to_json`'s object; None where a ledger states none.

        Raises `KeyError`, `TypeError` or `ValueError` for an object of another form.
        """
        if stated is None:
            return None
        noise = tuple(map(counted_from_json, stated["noise"]))
        return cls(**{**stated, "trusts": tuple(stated["trusts"]), "noise": noise})

    @classmethod
    def stated(cls, terms: Mapping[str, Any]) -> Self:
        """The assumptions that a ledger's terms state.

        Those of a ledger that does not state them: a trusted server where epsilon is against
        nobody in particular, else nobody, as any number of others may have been counted on.
        """
        assumed = cls.from_json(terms.get("assumes"))
        return assumed or cls(trusts=() if terms.get("against") else (SERVER,))

    @classmethod
    def of(cls, config: Config, limits: Iterable[Limits] = ()) -> Self:
        """The assumptions of a run, whose sums keep to `limits` (one for each kind of round)."""
        data = config.data
        assumed = cls(
            trusts=_trusted(config),
            sites_per_client=data.sites_per_client if data.sites else None,
        )
        if not config.against:
            return assumed
        noise = tuple(_counted_noise(config, each) for each in limits)
        assumed = replace(assumed, colluders=_colluders(config), noise=noise)
        if config.by_sites or config.colluding is not None:
            return assumed  # Byzantine sites, and clients that share noise in pairs, are colluders
        share = config.hostile / max(config.sampler.size, 1)
        return replace(assumed, byzantine=config.hostile, byzantine_share=share)

    def __str__(self) -> str:
        sites = self.sites_per_client
        parts = [f"trusts {' and '.join(self.trusts) or 'nobody'}"]
        if self.colluders is not None:
            parts.append(f"colluders at most {self.colluders:g}")
        if self.byzantine is not None:
            parts.append(f"Byzantine clients at most {self.byzantine}")
        if sites is not None:
            parts.append(f"each client at {sites} site{'s' if sites > 1 else ''} at most")
        return "; ".join(parts)

    def byzantine_of(self, size: int) -> int:
        """The number of Byzantine clients, at most, in a cohort of an expected `size`."""
        return max(self.byzantine or 0, math.ceil(self.byzantine_share * size - _EXACT))

    def with_proved(self, culprits: int) -> Self:
        """The same with at least so many Byzantine parties as were proved to be."""
        if self.byzantine is not None:
            return replace(self, byzantine=max(self.byzantine, culprits))
        return replace(self, colluders=max(self.colluders or 0, culprits))

    def under(self, now: Assumed) -> Self:
        """The assumptions after its charges were recomputed for the adversary of `now`.

        What holds against any number of parties, or at any number of sites, does so still.
        """
        size = max((noise.size for noise in self.noise), default=1)
        byzantine, share = None, 0.0
        if self.byzantine is not None:
            byzantine = max(self.byzantine, now.byzantine_of(size))
            share = max(self.byzantine_share, now.byzantine_share)
        return replace(
            self,
            colluders=None if self.colluders is None else most(self.colluders, now.colluders),
            byzantine=byzantine,
            byzantine_share=share,
            sites_per_client=self.sites_per_client
            and most(self.sites_per_client, now.sites_per_client),
        )

    def __or__(self, other: Assumed) -> Assumed:
        """The assumptions of an epsilon over both runs: the stronger adversary of the two.

        It trusts whom either run trusts.
        """
        return Assumed(
            tuple(sorted({*self.trusts, *other.trusts})),
            most(self.colluders, other.colluders),
            most(self.byzantine, other.byzantine),
            max(self.byzantine_share, other.byzantine_share),
            most(self.sites_per_client, other.sites_per_client),
        )


def most(*numbers: Any) -> Any:
    """The largest of the numbers that are not None; None where all are."""
    return max((number for number in numbers if number is not None), default=None)


def _trusted(config: Config) -> tuple[str, ...]:
    """The parties that a run's epsilon trusts, in the field's words, sorted."""
    trust, protocol = config.mechanism.trust, config.row_hiding
    sites = {OWN_SITE} if config.by_sites else set()
    if trust == "server":  # and a site that holds a client's data
        return (
            (OWN_SITE, config.protocol.opener) if config.data.sites else (config.protocol.opener,)
        )
    if trust == "sum" and protocol is not None:
        return tuple(sorted({*sites, *protocol.relies_on}))
    return tuple(sites)


def _colluders(config: Config) -> float:
    """How many parties may work with the server."""
    protocol = config.row_hiding
    if config.colluding is not None:
        return config.colluding
    assert protocol is not None
    if config.by_sites:
        return protocol.colluding_sites(config.data.sites)
    return protocol.may_collude


def _counted_noise(config: Config, limits: Limits) -> CountedNoise:
    """Among whom the counted noise of sums within `limits` is."""
    protocol, size = config.row_hiding, config.sampler.size
    if config.joint_noise is not None:
        return NoiseOfPairs(size, config.joint_noise.pair_noise)
    assert protocol is not None
    withstood = protocol.withstood(limits)
    if limits.sites:
        return NoiseOfSites(limits.sites, limits.minimum, withstood)
    known = protocol.known_per_colluder(limits)
    return NoiseOfClients(
        size, protocol.sharing(limits), protocol.colluding(limits), known, withstood
    )
