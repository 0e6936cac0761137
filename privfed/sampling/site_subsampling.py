"""Sampling by sites: each site samples its own clients independently and in secret."""

from __future__ import annotations

from dataclasses import replace

from accounting.bounds.several_sites import at_several_sites
from accounting.events import Event
from accounting.noises import DiscreteGaussians, Gaussian, Noise, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites, Unprotected
from privfed.core.errors import Refused
from privfed.sampling.cohort import Witness, draws_of


def sampled_at_sites(witness: Witness, noised: Noise | Unprotected, slack: float = 0.0) -> Event:
    """Returns the event of a sum with the noise of sites, which sample their clients in secret.

    For a client at s sites, a sum with Skellam noise of variance mu is post-processing of s sums of
    variance mu / s, one for each site: s events with independent samples. Discrete Gaussians are
    not divisible in this way. Gaussian noise is added by each site to its own sum, so s sites are s
    such events.

    Raises:
      Refused: if there is no proof for the sampler.
    """
    drawn = witness.release
    event = Event(noised, witness.sampler, witness.relation, slack=slack)
    match drawn, noised:
        case (PoissonSampled() | SeveralSites() | Gaussian(), Unprotected()) | (Gaussian(), _):
            return event
        case PoissonSampled(rate=rate), Gaussian() | Skellam() | DiscreteGaussians():
            return replace(event, release=PoissonSampled(rate, noised))
        case SeveralSites(rate=rate, sites=sites), Skellam():
            return replace(event, release=at_several_sites(rate, sites, noised))
        case SeveralSites(rate=rate, sites=sites), Gaussian():
            return replace(event, release=Repeated(sites, PoissonSampled(rate, noised)))
        case SeveralSites(sites=sites), _:
            raise Refused(
                f"data.sites_per_client is {sites}, but sums of discrete "
                "Gaussians cannot be divided among a client's sites; use privacy.mechanism = "
                '"skellam" or "gaussian"'
            )
    raise Refused(
        f"cohort.sampler = {witness.sampler!r} has no proof if sites sample their own clients; "
        f"use {draws_of(PoissonSampled, Gaussian)}"
    )
