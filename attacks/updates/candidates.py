"""Candidate rows of the adaptive attack: several directions, and rows of published attacks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from attacks.types import UpdateAttack, View
from attacks.updates.fang import Fang
from attacks.updates.mimic import Mimic
from attacks.updates.min_max import MinMax, MinSum
from attacks.updates.simple import FreeRider, GaussianNoise, Scaling, SignFlip
from attacks.updates.statistics import Alie, InnerProduct

FIXED: tuple[UpdateAttack, ...] = (
    Alie(),
    Alie(z=1.5),
    *(InnerProduct(strength=strength) for strength in (0.1, 0.5, 1.0, 2.0)),
    *(MinMax(direction=direction) for direction in ("unit", "sign", "std")),
    *(MinSum(direction=direction) for direction in ("unit", "sign", "std")),
    Fang(),
    Fang(against="krum"),
    Mimic(),
    FreeRider(),
    SignFlip(),
    SignFlip(strength=3.0),
    Scaling(),
    GaussianNoise(),
)
"""Published attacks whose rows are candidates, with their published and other common settings."""


def directions(honest: Tensor) -> list[Tensor]:
    """Returns directions `[m]` away from the mean mu of `honest` rows `[h, m]`.

    They are -mu, -sign(mu), -sigma, and the first principal direction of the rows with both signs.
    All are scaled to the norm of sigma, the coordinate-wise standard deviations; zero directions
    are left out.
    """
    mean, spread = honest.mean(0), honest.std(0, correction=0)
    widest = first_principal(honest)
    ways = (-mean, -mean.sign(), -spread, widest, -widest)
    return [way * (spread.norm() / way.norm()) for way in ways if way.any()]


def first_principal(honest: Tensor) -> Tensor:
    """Returns the unit direction `[m]` in which the rows `honest` `[h, m]` vary most; zero if they
    do not vary.

    It is computed as a combination of the rows, from their inner products `[h, h]`.
    """
    away = honest - honest.mean(0)
    weights = torch.linalg.eigh((away @ away.T).double()).eigenvectors[:, -1]
    way: Tensor = weights.to(away.dtype) @ away
    length = way.norm()
    return way / length if float(length) > 0.0 else torch.zeros_like(way)


def fixed_rows(view: View, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yields the rows `[b, m]` that each attack in `FIXED` would send in its first round.

    Each attack draws from a copy of `rng`, so its row is the one that it would send alone.
    """
    for attack in FIXED:
        yield attack.corrupt(view, {}, copy.deepcopy(rng))[0]
