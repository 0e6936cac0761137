"""The adversary model of a guarantee, as ledgers state it.

The model consists of the trusted parties, the conditions on parties of secure sums, the numbers of
colluding and of Byzantine clients or sites, and the number of sites per client.
`privfed.plan.assumptions` composes runs whose adversaries differ.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from accounting.errors import LedgerBroken
from privfed.config.config import Config
from privfed.core.errors import public_text
from privfed.privacy.counted_noise import (
    CountedNoise,
    NoiseOfClients,
    NoiseOfPairs,
    NoiseOfSites,
    counted_from_json,
    counted_to_json,
    is_count,
)
from privfed.secure.limits import Limits

_EXACT = 1e-9
"""Subtracted before `ceil` and added before `floor`, against the rounding error of a product."""
SERVER = "the server"
UNSTATED = (
    "its ledger does not state the numbers of colluding and Byzantine parties, the trusted "
    'parties and the number of sites of a client ("assumes")'
)
OWN_SITE = "a client's own site"

ASSUMED = {
    "trusts": "trusted parties",
    "trusted_parties": "conditions on parties",
    "colluders": "colluders",
    "byzantine": "Byzantine clients",
    "byzantine_share": "Byzantine fraction",
    "sites_per_client": "sites per client",
}
"""Names of an epsilon's assumptions about other parties, by key under "assumes" in a ledger."""
_COUNTS = {"colluders", "byzantine", "byzantine_share", "sites_per_client"}


def _refuse_other_types(lists: Iterable[Iterable[object]], counts: Mapping[str, object]) -> None:
    """Raises `TypeError` unless `lists` hold texts only, and `counts` only None or numbers >= 0."""
    for words in lists:
        if not all(isinstance(word, str) for word in words):
            raise TypeError("expected texts")
    for count in counts.values():
        if count is not None and not is_count(count):
            raise TypeError("expected a number from 0")


@contextlib.contextmanager
def terms_are_whole() -> Iterator[None]:
    """Returns a context manager: errors in parsing terms of a ledger line become `LedgerBroken`."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        form = f"in a form that this version does not read ({public_text(error)})"
        why = f"a line of the ledger states terms {form}"
        raise LedgerBroken(f"{why}; restore the file") from None


@dataclass(frozen=True)
class Assumed:
    """The adversary that a run's epsilon holds against, as its ledger states it.

    Attributes:
      trusts: parties that the guarantee trusts with data that are less processed than releases.
      trusted_parties: required behaviour of the parties of secure sums, for example of the server.
      colluders: largest number of clients or sites that may collude with the server; if clients add
        the noise in secure sums, largest fraction of each cohort instead. None: any number, since
        the guarantee does not depend on noise of other parties.
      byzantine: largest number of Byzantine clients in a cohort, in addition to `colluders`. None:
        any number; but if sites add the noise, or pairs of clients share it, Byzantine parties
        count as colluders.
      byzantine_share: `byzantine` as a fraction of the expected cohort; 0 if it is None.
      sites_per_client: largest number of sites at which one client has rows. None: no sites are
        declared, and all rows of a person belong to one client.
      noise: the division among parties of the noise on which the guarantee depends, for each kind
        of round (training, evaluation); empty if the guarantee depends on no other party's noise.
    """

    trusts: tuple[str, ...] = ()
    trusted_parties: tuple[str, ...] = ()
    colluders: float | None = None
    byzantine: int | None = None
    byzantine_share: float = 0.0
    sites_per_client: int | None = None
    noise: tuple[CountedNoise, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the object under "assumes" in the terms that a ledger's first line states."""
        return {
            "trusts": list(self.trusts),
            "trusted_parties": list(self.trusted_parties),
            "colluders": self.colluders,
            "byzantine": self.byzantine,
            "byzantine_share": self.byzantine_share,
            "sites_per_client": self.sites_per_client,
            "noise": [counted_to_json(noise) for noise in self.noise],
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Any] | None) -> Self | None:
        """Parses the result of `to_json`; returns None for None.

        Raises `KeyError`, `TypeError` or `ValueError` for any other object.
        """
        if stated is None:
            return None
        noise = tuple(map(counted_from_json, stated["noise"]))
        lists = {key: tuple(stated[key]) for key in ("trusts", "trusted_parties")}
        _refuse_other_types(lists.values(), {key: stated[key] for key in stated.keys() & _COUNTS})
        return cls(**{**stated, **lists, "noise": noise})

    @classmethod
    @terms_are_whole()
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        """Returns the assumptions in the `terms` that a ledger's first line states.

        Older ledgers have no "assumes", but state the trusted server and the sites under other
        keys, from which the assumptions follow. If noise is distributed, these keys do not state
        the number of colluders, and None is returned. Raises `LedgerBroken` for malformed terms.
        """
        if "assumes" in terms:
            return cls.from_json(terms["assumes"])
        if terms.get("against"):
            return None
        sites = terms.get("sites") or {}
        held = (OWN_SITE,) if sites else ()
        by_sites = held if "parties" in sites else ()
        trusts = by_sites if terms.get("trust") == "client" else (*held, SERVER)
        return cls(trusts=trusts, sites_per_client=sites.get("per_client"))

    @classmethod
    def of(cls, config: Config, sums: Iterable[tuple[Limits, float]] = ()) -> Self:
        """Returns the assumptions of a run.

        Args:
          config: the run.
          sums: for each kind of round (training, evaluation), the limits of its sums, and the abort
            probability that its charge includes; used only if the guarantee depends on noise that
            parties of a sum add.
        """
        data = config.data
        assumed = cls(
            trusts=_trusted(config),
            trusted_parties=_trusted_parties_assumed(config),
            sites_per_client=data.sites_per_client if data.sites else None,
        )
        if not config.against:
            return assumed
        noise = tuple(_counted_noise(config, *each) for each in sums)
        assumed = replace(assumed, colluders=_colluders(config), noise=noise)
        if config.by_sites or config.colluding is not None:
            return assumed  # Byzantine sites, and clients that share noise in pairs, are colluders
        share = config.byzantine / max(config.sampler.size, 1)
        return replace(assumed, byzantine=config.byzantine, byzantine_share=share)

    def __str__(self) -> str:
        sites = self.sites_per_client
        parts = [f"trusts {' and '.join(self.trusts) or 'no party'}"]
        parts += [f"relies on {each}" for each in self.trusted_parties]
        if self.colluders is not None:
            of_cohorts = f"{100 * self.colluders:.4g} % of each cohort"
            number = f"{self.colluders:g}" if self.byzantine is None else of_cohorts
            parts.append(f"at most {number} collude")
        if self.byzantine is not None:
            parts.append(f"at most {self.byzantine} Byzantine clients")
        if sites is not None:
            parts.append(f"each client at {sites} site{'s' if sites > 1 else ''} at most")
        return "; ".join(parts)

    def byzantine_of(self, size: int) -> int:
        """Returns the assumed largest number of Byzantine clients in a cohort of expected `size`.

        The number is the larger of `byzantine` (0 if None) and of `byzantine_share` times `size`,
        rounded up.
        """
        return max(self.byzantine or 0, math.ceil(self.byzantine_share * size - _EXACT))

    def with_detected_byzantine(self, culprits: int) -> Self:
        """Returns these assumptions, raised to at least `culprits` Byzantine parties.

        If `byzantine` is None, `colluders` (0 if None) is raised instead.
        """
        if self.byzantine is not None:
            return replace(self, byzantine=max(self.byzantine, culprits))
        return replace(self, colluders=max(self.colluders or 0, culprits))

    def under(self, now: Assumed) -> Self:
        """Returns the assumptions that hold after charges were recomputed for the adversary `now`.

        Each number becomes the larger of its values in both assumptions. A number that is None in
        these assumptions, which allow any number, remains None. All other attributes remain.
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
        """Returns the assumptions of a guarantee over two runs.

        The guarantee trusts and relies on every party that either run trusts or relies on, and
        assumes the larger number of colluders, of Byzantine clients and of sites per client. If one
        run's number is None, it is that of the other. `noise` is empty.
        """
        return Assumed(
            tuple(sorted({*self.trusts, *other.trusts})),
            tuple(sorted({*self.trusted_parties, *other.trusted_parties})),
            most(self.colluders, other.colluders),
            most(self.byzantine, other.byzantine),
            max(self.byzantine_share, other.byzantine_share),
            most(self.sites_per_client, other.sites_per_client),
        )


def most(*numbers: Any) -> Any:
    """Returns the largest of the numbers that are not None; None if all are."""
    return max((number for number in numbers if number is not None), default=None)


def _trusted(config: Config) -> tuple[str, ...]:
    """Returns the parties that a run's epsilon trusts, sorted."""
    if config.mechanism.trust != "server":
        return (OWN_SITE,) if config.by_sites else ()
    protocol = config.row_hiding
    openers = (config.protocol.opener, *(protocol.part_openers if protocol else ()))
    holders = (OWN_SITE,) if config.data.sites else ()
    return tuple(sorted((*holders, *openers)))


def _trusted_parties_assumed(config: Config) -> tuple[str, ...]:
    """Returns the behaviour required of parties of a secure sum that adds the noise; else empty."""
    protocol = config.row_hiding
    return protocol.trusted_parties if protocol and config.mechanism.trust == "sum" else ()


def _colluders(config: Config) -> float:
    """Returns the largest number of parties that may collude with the server.

    This is a number of clients if pairs of clients share noise, a number of sites if sites are the
    parties, and otherwise a fraction of a cohort.
    """
    protocol = config.row_hiding
    if config.colluding is not None:
        return config.colluding
    assert protocol is not None
    if config.by_sites:
        return protocol.colluding_sites(config.data.sites)
    return protocol.may_collude


def _counted_noise(config: Config, limits: Limits, aborts: float) -> CountedNoise:
    """Returns the division of the counted noise among pairs of clients, sites, or clients.

    Counted noise is the part of distributed noise on which the guarantee depends. `limits` are the
    size limits of the run's sums, and `aborts` is the abort probability that a round's charge
    includes.
    """
    protocol, size = config.row_hiding, config.sampler.size
    if config.joint_noise is not None:
        return NoiseOfPairs(size, config.joint_noise.pair_noise)
    assert protocol is not None
    colluders_tolerated = protocol.colluders_tolerated(limits)
    if limits.sites:
        noise = protocol.site_noise(limits)
        return NoiseOfSites(noise.sites, noise.minimum, colluders_tolerated)
    return NoiseOfClients(
        size,
        protocol.sharing(limits),
        protocol.may_collude,
        protocol.colluding(limits),
        protocol.known_per_colluder(limits),
        colluders_tolerated,
        aborts,
    )
