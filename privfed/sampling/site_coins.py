"""Draws by coins that sites flip for their own clients, and that nobody else sees."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from accounting.bounds.several_sites import at_several_sites
from accounting.events import Event
from accounting.noises import DiscreteGaussians, Gaussian, Noise, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites, Unprotected
from privfed.core.errors import Refused
from privfed.sampling.cohort import Witness, draws_of


def over_several_sites(witness: Witness, sites: int) -> Witness:
    """The rule of a draw in which each of at most `sites` sites flips a coin for the same client.

    Each holds a part of the client's rows, clipped to a `sites`-th of the clipping norm, to which
    the multiplier of a Gaussian is then relative (PRIVACY, section 9.4). Raises `Refused` for
    draws that are no independent coins.
    """
    if sites == 1:
        return witness
    if not isinstance(witness.release, PoissonSampled):
        raise Refused(
            f"data.sites_per_client is {sites}, and cohort.sampler = {witness.sampler!r} has no "
            f"proof for clients whose rows lie at several sites; use {draws_of(PoissonSampled)}"
        )
    return replace(witness, sampled=partial(SeveralSites, witness.rate, sites))


def drawn_at_sites(witness: Witness, noised: Noise | Unprotected, slack: float = 0.0) -> Event:
    """The event of a sum with noise of sites, over clients that sites draw, in secret.

    Of a client at s sites a sum with Skellam noise of variance mu is post-processing of s sums of
    variance mu / s, one for each site: s events with coins of their own. Discrete Gaussians do not
    divide so. A Gaussian is what each site by itself adds to its own sum: that of s sites is s
    events as it is. Raises `Refused` for draws without a proof.
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
        case SeveralSites(), _:
            raise Refused(
                "data.sites_per_client is above 1, and sums of discrete Gaussians do not divide "
                'over a client\'s sites; use privacy.mechanism = "skellam" or "gaussian"'
            )
    raise Refused(
        f"cohort.sampler = {witness.sampler!r} has no proof where sites draw their own clients; "
        f"use {draws_of(PoissonSampled, Gaussian)}"
    )
