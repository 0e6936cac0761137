"""The event of a round of Gaussian noise that somebody states in numbers, of their own pipeline."""

from __future__ import annotations

from accounting.errors import Unaccountable
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.errors import Refused, public_text


def gaussian_round(noise_multiplier: float, sampling_rate: float) -> Event:
    """One round of Gaussian noise, on a Poisson cohort where `sampling_rate` is below 1.

    `noise_multiplier` is its deviation over how far neighbours' sums lie apart. Raises `Refused`
    for numbers that no accountant takes, as those that are not finite.
    """
    try:
        noise = Gaussian(float(noise_multiplier))
        if sampling_rate == 1:
            return Event(noise, "full")
        return Event(PoissonSampled(float(sampling_rate), noise), "poisson")
    except Unaccountable as error:
        raise Refused(f"the claim states no noise: {public_text(error)}") from None
