"""Rounds of Gaussian noise that somebody claims in numbers, of a function or pipeline of theirs."""

from __future__ import annotations

from accounting.errors import Unaccountable
from accounting.events import Event
from accounting.noises import Gaussian, natural_number
from accounting.releases import PoissonSampled
from privfed.errors import Refused, public_text


def gaussian_rounds(noise_multiplier: float, rate: float, rounds: int) -> tuple[Event, int]:
    """The event of one round, on Poisson cohorts where `rate` is below 1, and how many there are.

    `noise_multiplier` is its deviation over how far the neighbours' sums lie apart, and `rate` the
    probability with which a client takes part. Raises `Refused` for numbers that are none of these.
    """
    if rate == 0:
        raise Refused("sampling rate is 0, so that nobody takes part; expected one above 0")
    try:
        count, noise = natural_number(rounds, "rounds"), Gaussian(float(noise_multiplier))
        full = Event(noise, "full")
        return (full if rate == 1 else Event(PoissonSampled(rate, noise), "poisson")), count
    except Unaccountable as error:
        raise Refused(f"the claim of Gaussian noise: {public_text(error)}") from error
