"""Configurations and sums with sites as parties, for tests."""

import numpy as np

from privfed.core.streams import Streams
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.setting import CohortSize, Setting, SiteNoise
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Session

LENGTH = 16
FIVE = SiteNoise(sites=5, minimum=4, colluders=1)

AT_SITES = (
    "data.sites=5",
    "privacy.mechanism=skellam",
    "secure.protocol=masks",
    "data.clients=40",
    "cohort.size=10",
)

KINDS = {
    "minimum": lambda z: SkellamNoise(noise_multiplier=z),
    "layers": lambda z: SkellamNoise(noise_multiplier=z, sizing="layers"),
    "Gaussian": lambda z: DiscreteGaussianNoise(noise_multiplier=z),
    "Gaussian layers": lambda z: DiscreteGaussianNoise(noise_multiplier=z, sizing="layers"),
}


def setting(noise=FIVE, size=20):
    return Setting(
        cohort=CohortSize(size, 4 * size), noise=noise, bits=32, length=LENGTH, against="sites"
    )


def limits(noise=FIVE, arithmetic=True, rows=80):
    return Limits(
        capacity=noise.sites,
        minimum=noise.minimum,
        arithmetic=arithmetic,
        size=noise.sites,
        sites=noise.sites,
        colluders=noise.colluders,
        rows=rows,
    )


def opened(mechanism, round, leaves=(), site_of=(), noise=FIVE, arithmetic=True, seed=3):
    """Returns the accumulator of one sum over `noise.sites` sites that hold the clients
    `site_of`.
    """
    session = Session(
        round,
        0,
        b"h" * 32,
        np.arange(noise.sites),
        np.array(leaves, dtype=np.int64),
        Streams(seed, simulated=True),
        sites=np.array(site_of, dtype=np.int64),
    )
    summation = MaskedSums(threat="malicious").over(limits(noise, arithmetic))
    return summation.open(session, LENGTH, mechanism.encoding(mechanism.init()))
