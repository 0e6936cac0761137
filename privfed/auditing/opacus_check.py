"""Opacus as a second opinion on what a run spent; it never becomes the headline."""

from __future__ import annotations

import math
import warnings

from accounting.events import Spending, apart
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from accounting.slack import with_slack
from privfed.errors import Refused

CROSS_CHECKS = ("opacus_rdp", "opacus_prv")


def opacus_epsilon(spending: Spending, delta: float, accountant: str) -> float | None:
    """The epsilon of `spending` by opacus' RDP or PRV, on the same Gaussians and Poisson draws.

    None where opacus has no accountant for an event. Its GDP accountant is never asked: it
    under-counts. Raises `Refused` where opacus is not installed.
    """
    history = []
    for event, count in apart(spending).items():
        match event.release:
            case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)) if z > 0:
                history.append((z, q, count))
            case Gaussian(noise_multiplier=z) if z > 0:
                history.append((z, 1.0, count))
            case PoissonSampled(of=Gaussian()) | Gaussian():
                return math.inf
            case _:
                return None
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError as error:
        raise Refused(
            f"{accountant} needs opacus, which is not installed: pip install 'privfed[opacus]'"
        ) from error
    opacus = RDPAccountant() if accountant == "opacus_rdp" else PRVAccountant()
    opacus.history = history
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on orders that could be wider: it is a cross-check
            slack = sum(event.slack * count for event, count in spending.items())
            epsilon = with_slack(lambda left: float(opacus.get_epsilon(delta=left)), delta, slack)
            return epsilon if history else 0.0
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        raise Refused(f"{accountant} cannot account for this run: {error}") from error
