"""Sampling by sites: each site samples its own clients independently and in secret."""

from __future__ import annotations

from dataclasses import replace

from accounting.bounds.several_sites import at_several_sites
from accounting.events import Event
from accounting.noises import Gaussian, Noise, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites, Unprotected
from privfed.core.errors import Refused
from privfed.sampling.cohort import Witness, draws_of


def sampled_at_sites(
    witness: Witness, noised: Noise | Unprotected, slack: float = 0.0, alone: bool = False
) -> Event:
    """Returns the event of a sum with the noise of sites, which sample their clients in secret.

    For a client at s sites, a sum with Skellam noise of variance mu is post-processing of s sums of
    variance mu / s, one for each site: s events with independent samples. Gaussian noise has an
    event of its own for such clients (`SeveralSites`). If each site adds noise `alone`, to its own
    sum, s sites are s events.

    Raises:
      Refused: if there is no proof for the sampler.
    """
    drawn = witness.release
    event = Event(noised, witness.sampler, witness.relation, slack=slack)
    match drawn, noised:
        case (PoissonSampled() | SeveralSites() | Gaussian(), Unprotected()) | (Gaussian(), _):
            return event
        case PoissonSampled(rate=rate), Gaussian() | Skellam():
            return replace(event, release=PoissonSampled(rate, noised))
        case SeveralSites(rate=rate, sites=sites), Gaussian() if alone:
            return replace(event, release=Repeated(sites, PoissonSampled(rate, noised)))
        case SeveralSites(rate=rate, sites=sites), Gaussian() | Skellam():
            return replace(event, release=at_several_sites(rate, sites, noised))
    raise Refused(
        f"cohort.sampler = {witness.sampler!r} has no proof if sites sample their own clients; "
        f"use {draws_of(PoissonSampled, Gaussian)}"
    )
